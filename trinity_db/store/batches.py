"""Batches: drawn for one trainer step, committed with it, reopened when no checkpoint includes them.

A draw is one statement, so that one snapshot says all it could see; it is recorded with the batch, and
`store.replay` runs the draw again on it. (Expert rows beside rollout groups are a second one, with a snapshot
of its own.) The lease comes after it and takes all of the drawn rows, or none if another session took one.
Every transaction that changes rows locks their groups first, then the rows, each in the order of their ids.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from psycopg import Cursor
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from trinity_db import arrays
from trinity_db.database import Database, Transaction
from trinity_db.errors import LeaseLost, NotFound, TrinityError
from trinity_db.schema.queries import query
from trinity_db.store import attempts, offline, payloads, processing, runs, samplers, workers
from trinity_db.store.samplers import Sampler


@dataclass(frozen=True)
class Mark:
    """Where a run is: its newest version, and its last committed step with the batch of it."""

    version: int
    step: int = 0
    batch_id: int | None = None
    created_at: datetime | None = None
    """Of the batch: a server that lost a batch may give its id to another."""


class SetBack(TrinityError):
    """The store says another version or last step than this trainer heard: the server has lost commits."""

    def __init__(self) -> None:
        super().__init__("The server has lost steps that it had committed; start the trainer again.")


@dataclass(frozen=True)
class Draw:
    """The step that a batch is drawn for, and how much it takes."""

    run_id: int
    worker_id: int
    step: int
    batch_size: int
    seed: int
    max_uses: int = 1
    """How many committed batches may use a rollout group; kept, so that the draw can be run again."""
    experts: int = 0
    """Adopted rows to take beside rollout groups, which batches go on using without end."""
    after: Mark | None = None
    """What the trainer's weights contain; None: it is not compared with what the store says."""


@dataclass(frozen=True)
class Item:
    """One row of a batch, with the numbers that are recorded for it."""

    experience_id: int
    preference_id: int | None = None
    reward: float | None = None
    advantage: float | None = None
    staleness: int | None = None
    probability: float | None = None
    weight: float = 1.0


@dataclass(frozen=True)
class Batch:
    """A leased batch."""

    id: int
    step: int
    size: int
    epoch: int
    version: int
    created_at: datetime
    experts: int = 0
    """How many of its rows, the last ones, are adopted ones beside rollout groups."""


@dataclass(frozen=True)
class Row:
    """One row of a batch as the trainer uses it, and where it stands in the store."""

    ordinal: int
    experience_id: int
    preference_id: int | None
    group_id: int | None
    payload: arrays.Payload
    reward: float | None
    advantage: float | None
    weight: float
    probability: float | None
    staleness: int | None


def draw_groups(
    tx: Transaction,
    draw: Draw,
    max_staleness: int | None,
    advantage: attempts.Advantage,
    sampler: Sampler = samplers.FIFO,
    compares: Collection[str] = (),
) -> Batch | None:
    """Lease `batch_size` whole groups within the staleness limit; None when there are not enough.

    As all draws, gives back first what this worker drew for this very step before, as when that commit was
    unclear.
    Groups that are too stale become drops with a reason, also when None is returned. Advantages
    are computed from the rewards as they are in the draw's snapshot, and recorded. After them come the next
    `experts` adopted rows, without a number of their own.

    Raises:
        LeaseLost: another trainer draws for this run.
        TrinityError: the run has fewer adopted rows to imitate than that.
    """
    version = _begin(tx, draw)
    if max_staleness is not None:
        _expire(tx, draw.run_id, version, max_staleness)
    limits = samplers.Limits(draw.run_id, draw.step, draw.seed, draw.batch_size, version, max_staleness)
    picked = samplers.pick(tx, sampler, limits)
    members = picked.members
    group_ids = sorted({member["group_id"] for member in members})
    if len(group_ids) < draw.batch_size:
        return None
    queries, items = [picked.query], _valued(tx, members, advantage, sampler, compares)
    parameters: dict[str, float | str] = {**picked.parameters, "max_uses": draw.max_uses}
    leases = {"lease_groups": group_ids, "lease_members": [item.experience_id for item in items]}
    if draw.experts:
        experts = _experts(tx, draw)
        queries.append("draw_rows")
        items += [Item(row["id"]) for row in experts]
        parameters |= {"experts": draw.experts, "experts_snapshot": experts[0]["snapshot"]}
        leases["lease_experiences"] = [row["id"] for row in experts]
    drawn = _Drawn(
        queries=queries,
        sampler=sampler.name,
        items=items,
        size=len(group_ids),
        epoch=0,
        snapshot=members[0]["snapshot"],
        max_staleness=max_staleness,
        parameters=parameters,
    )
    return _record(tx, draw, version, drawn, leases)


def draw_rows(tx: Transaction, draw: Draw) -> Batch | None:
    """Lease the next rows to imitate, or with labels; None when none is left. A batch never reaches into the
    next epoch.

    Raises:
        LeaseLost: another trainer draws for this run.
    """
    version = _begin(tx, draw)
    rows = _select(tx, draw, "draw_rows", draw.batch_size)
    if not rows:
        return None
    epoch = rows[0]["use_count"]
    items = [Item(row["id"], None, row["reward"]) for row in rows if row["use_count"] == epoch]
    drawn = _Drawn(["draw_rows"], "epochs", items, len(items), epoch, rows[0]["snapshot"])
    leases = {"lease_experiences": [item.experience_id for item in items]}
    return _record(tx, draw, version, drawn, leases)


def draw_pairs(tx: Transaction, draw: Draw) -> Batch | None:
    """Lease the next pairs; None when none is left. A batch never reaches into the next epoch.

    Raises:
        LeaseLost: another trainer draws for this run.
    """
    version = _begin(tx, draw)
    rows = _select(tx, draw, "draw_pairs", draw.batch_size)
    if not rows:
        return None
    epoch = rows[0]["use_count"]
    pairs = [row for row in rows if row["use_count"] == epoch]
    items = [
        Item(row[f"{side}_id"], row["id"], row[f"{side}_reward"])
        for row in pairs
        for side in ("chosen", "rejected")
    ]
    drawn = _Drawn(["draw_pairs"], "epochs", items, len(pairs), epoch, rows[0]["snapshot"])
    leases = {"lease_preferences": [row["id"] for row in pairs]}
    return _record(tx, draw, version, drawn, leases)


def read(database: Database, batch_id: int) -> list[Row]:
    """The rows of a batch in the order of the draw, in a transaction of its own.

    Raises:
        NotFound: a row's arrays are gone.
    """
    rows = payloads.select(database, "read_batch", {"batch_id": batch_id})
    gone = [row["experience_id"] for row in rows if row["codec"] is None]
    if gone or not rows:
        which = f"experience {gone[0]}" if len(gone) == 1 else f"{len(gone) or 'all'} of its rows"
        raise NotFound(f"The arrays of batch {batch_id} are gone: {which} cannot be read any more.")
    return [
        Row(payload=arrays.decode(row.pop("codec"), row.pop("data"), row.pop("num_tokens")), **row)
        for row in rows
    ]


def commit(tx: Transaction, batch: Batch, worker_id: int, max_uses: int) -> bool:
    """The trainer step is done: count the uses. Saying it again changes nothing, and returns False.

    What was used `max_uses` times is trained; adopted rows beside rollout groups never are.

    Raises:
        LeaseLost: the batch was reopened, or belongs to another worker.
        SetBack: the server has lost the batch.
    """
    values = {"batch_id": batch.id, "worker_id": worker_id}
    row = tx.execute(query("commit_batch"), values).fetchone()
    if row is None:
        state = tx.execute(query("batch_state"), values).fetchone()
        if state is None:
            raise SetBack
        if state["state"] != "committed":
            raise LeaseLost(
                f"Batch {batch.id} was taken from this trainer; another one runs or ran for this run."
            )
        return False
    _lock(tx, [batch.id])
    uses = {"batch_id": batch.id, "max_uses": max_uses, "keeps_adopted": batch.experts > 0}
    tx.execute(query("use_experiences"), uses)
    tx.execute(query("use_groups"), {"batch_id": batch.id, "max_uses": max_uses, "run_id": row["run_id"]})
    tx.execute(query("use_preferences"), {"batch_id": batch.id, "max_uses": max_uses})
    runs.announce(tx, row["run_id"])
    return True


def reopen_leased(tx: Transaction, draw: Draw) -> None:
    """Give back a batch that this worker drew for this very step and does not commit."""
    values = {"run_id": draw.run_id, "step": draw.step, "worker_id": draw.worker_id}
    _reopen(tx, draw.run_id, tx.execute(query("leased_batch"), values).fetchall())


def reopen(tx: Transaction, run_id: int, worker_id: int, version: int) -> int:
    """Give back every batch that the checkpoint of `version` does not include; returns how many.

    Later versions, which include some of them, are withdrawn.

    Raises:
        TrinityError: rows of these batches have been pruned. Nothing is changed then.
        LeaseLost: another trainer has this one's place, and the batches may be its own.
    """
    workers.hold_place(tx, worker_id)
    values = {"run_id": run_id, "version": version}
    batches = tx.execute(query("open_batches"), values).fetchall()
    tx.execute(query("withdraw_later_versions"), values)
    # After it, since a prune holds the oldest checkpoint meanwhile.
    row = tx.execute(query("count_pruned_rows"), {"batch_ids": [batch["id"] for batch in batches]}).fetchone()
    if row is not None and row["rows"]:
        raise TrinityError(
            f"The run cannot go back to version {version}: the arrays of {row['rows']} rows that it does not "
            "include were pruned; restore a later checkpoint, or start a run of another name."
        )
    _reopen(tx, run_id, batches)
    return len(batches)


def _reopen(tx: Transaction, run_id: int, batches: Sequence[DictRow]) -> None:
    if batches:
        batch_ids = [batch["id"] for batch in batches]
        _lock(tx, batch_ids)
        values = {"run_id": run_id, "batch_ids": batch_ids}
        for name in ("reopen_experiences", "reopen_groups", "reopen_preferences", "reopen_batches"):
            tx.execute(query(name), values)
        runs.announce(tx, run_id)


def hold_trainer(tx: Transaction, run_id: int, worker_id: int, *heard: Mark) -> Mark:
    """Let no worker replace the run's trainer before this transaction ends; returns where the run is.

    Args:
        heard: where it may be; anywhere if nothing is given.

    Raises:
        LeaseLost: another worker replaced it, or reopened its last step.
        SetBack: the run is somewhere else.
    """
    held = tx.execute(query("hold_trainer"), {"run_id": run_id, "worker_id": worker_id})
    return _mark(tx, held, worker_id, heard)


def _mark(tx: Transaction, held: Cursor[DictRow], worker_id: int, heard: Sequence[Mark]) -> Mark:
    trainer = held.fetchone()
    if trainer is None:
        raise workers.replaced(worker_id)
    if trainer["version"] is None:  # it publishes version 0 before it draws
        raise SetBack
    mark = Mark(**trainer)
    if heard and mark not in heard:
        for known in heard:
            row = tx.execute(query("batch_state"), {"batch_id": known.batch_id}).fetchone()
            if row is not None and (row["state"], row["created_at"]) == ("reopened", known.created_at):
                raise workers.replaced(worker_id)
        raise SetBack
    return mark


def _begin(tx: Transaction, draw: Draw) -> int:
    """What every draw begins with, in one round trip; returns the version that staleness is counted from.

    A version that was withdrawn does not make the others older.

    Raises:
        LeaseLost: the worker was replaced, and may not have heard of it yet.
        SetBack: the server has lost steps that the trainer's weights contain.
    """
    values = {"run_id": draw.run_id, "step": draw.step, "worker_id": draw.worker_id}
    with tx.pipeline():
        leased = tx.execute(query("leased_batch"), values)
        held = tx.execute(query("hold_trainer"), values)
    mark = _mark(tx, held, draw.worker_id, [draw.after] if draw.after else [])
    _reopen(tx, draw.run_id, leased.fetchall())
    return mark.version


@dataclass(frozen=True)
class _Drawn:
    """What a draw found, and how."""

    queries: Sequence[str]
    """Names of the statements."""
    sampler: str
    items: Sequence[Item]
    size: int
    """In groups, rows or pairs."""
    epoch: int
    snapshot: str
    """The pg_snapshot that the draw's statement saw."""
    max_staleness: int | None = None
    parameters: Mapping[str, float | str] | None = None
    """What the sampler was given and chose, so that the draw can be run again."""


def _valued(
    tx: Transaction,
    members: Sequence[DictRow],
    advantage: attempts.Advantage,
    sampler: Sampler,
    compares: Collection[str],
) -> list[Item]:
    """The members of groups with their advantages and weights; greedy ones, only compared with, weigh 0."""
    values, is_greedy = attempts.compare(tx, members, advantage, compares)
    weights = samplers.weights(sampler, [member["probability"] for member in members])
    numbers = zip(members, values, np.where(is_greedy, 0.0, weights).tolist(), strict=True)
    return [
        Item(m["id"], None, m["reward"], value, m["staleness"], m["probability"], weight)
        for m, value, weight in numbers
    ]


def _experts(tx: Transaction, draw: Draw) -> list[DictRow]:
    """The adopted rows that are next; where a pass over them ends, the first of the following one too.

    Raises:
        TrinityError: there are not that many at all.
    """
    rows = _select(tx, draw, "draw_rows", draw.experts)
    if len(rows) < draw.experts:
        raise offline.too_few(len(rows), draw.experts)
    return rows


def _select(tx: Transaction, draw: Draw, name: str, limit: int) -> list[DictRow]:
    return tx.execute(query(name), {"run_id": draw.run_id, "limit": limit}).fetchall()


def _record(
    tx: Transaction, draw: Draw, version: int, drawn: _Drawn, leases: Mapping[str, Sequence[int]]
) -> Batch:
    """Write the batch and take its leases, ids by statement, in one round trip."""
    values = _recorded(draw, version, drawn)
    with tx.pipeline():
        inserted = tx.execute(query("insert_batch"), values)
        leased = [
            (ids, tx.execute(query(statement), {"ids": ids, "worker_id": draw.worker_id}))
            for statement, ids in leases.items()
        ]
    row = inserted.fetchone()
    if row is None:
        raise LeaseLost(f"Step {draw.step} has a batch already: another trainer took the run over.")
    for ids, cursor in leased:
        if cursor.rowcount != len(ids):
            raise LeaseLost(
                f"Of what step {draw.step} drew, {len(ids) - cursor.rowcount} of {len(ids)} are not ready "
                "any more: another trainer took the run over."
            )
    return Batch(row["id"], draw.step, drawn.size, drawn.epoch, version, row["created_at"], draw.experts)


def _recorded(draw: Draw, version: int, drawn: _Drawn) -> dict[str, Any]:
    return {
        "run_id": draw.run_id,
        "step": draw.step,
        "worker_id": draw.worker_id,
        "version": version,
        "max_staleness": drawn.max_staleness,
        "size": drawn.size,
        "epoch": drawn.epoch,
        "sampler": drawn.sampler,
        "seed": draw.seed,
        "query": "\n\n".join(map(query, drawn.queries)),
        "snapshot": drawn.snapshot,
        "parameters": Jsonb(drawn.parameters) if drawn.parameters else None,
        "experience_ids": [item.experience_id for item in drawn.items],
        "preference_ids": [item.preference_id for item in drawn.items],
        "rewards": [item.reward for item in drawn.items],
        "advantages": [item.advantage for item in drawn.items],
        "staleness": [item.staleness for item in drawn.items],
        "probabilities": [item.probability for item in drawn.items],
        "weights": [item.weight for item in drawn.items],
    }


def _lock(tx: Transaction, batch_ids: Sequence[int]) -> None:
    for name in ("lock_batch_groups", "lock_batch_rows"):
        tx.execute(query(name), {"batch_ids": batch_ids})


def _expire(tx: Transaction, run_id: int, version: int, max_staleness: int) -> None:
    values = {"run_id": run_id, "version": version, "max_staleness": max_staleness}
    groups = [row["id"] for row in tx.execute(query("stale_groups"), values)]
    if not groups:
        return
    tx.execute(query("expire_groups"), {"group_ids": groups})
    members = tx.execute(query("expire_members"), {"group_ids": groups, "version": version}).fetchall()
    drops = [processing.Drop(row["id"], "stale", {"staleness": row["staleness"]}) for row in members]
    processing.record_drops(tx, run_id, "draw", drops)
    runs.announce(tx, run_id)
