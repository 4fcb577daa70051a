"""Draws: select the rows of one trainer step's batch.

A draw is one statement, so one snapshot covers everything that it could see. The snapshot is recorded with
the batch, and `store.replay` reruns the draw on it. (Expert rows added to rollout groups are a second
statement with its own snapshot.) The lease follows; it takes all drawn rows, or none if another session took
one.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from trinity_db.errors import LeaseLost
from trinity_db.postgres.connection import Transaction
from trinity_db.schema.queries import query
from trinity_db.schema.states import WorkerRole
from trinity_db.store import (
    attempts,
    batches,
    metrics,
    offline,
    processing,
    runs,
    samplers,
    stratified_allocation,
)
from trinity_db.store.batches import Batch, Draw
from trinity_db.store.samplers import Picked, Picks


@dataclass(frozen=True)
class Item:
    """One row of a batch, with the numbers recorded for it."""

    experience_id: int
    preference_id: int | None = None
    reward: float | None = None
    advantage: float | None = None
    staleness: int | None = None
    probability: float | None = None
    weight: float = 1.0


def draw_groups(
    tx: Transaction,
    draw: Draw,
    max_staleness: int | None,
    advantage: attempts.Advantage,
    sampler: Picks = samplers.FIFO,
    compares: Collection[str] = (),
) -> Batch | None:
    """Lease `batch_size` complete groups within the staleness limit; None if there are not enough.

    Like all draws, it first reopens a batch that this worker drew for the same step, for example if that
    commit's outcome is unknown. Groups that are too stale are dropped with a reason, even if None is
    returned. Advantages are computed from the rewards in the draw's snapshot, and recorded. The next
    `experts` adopted rows follow, without advantages.

    Raises:
        LeaseLost: if another trainer draws for this run.
        TrinityError: if the run has fewer than `experts` adopted rows.
    """
    version = batches.begin_draw(tx, draw)
    if max_staleness is not None:
        _expire(tx, draw, version, max_staleness)
    limits = samplers.DrawLimits(
        draw.run_id, draw.step, draw.seed, draw.batch_size, version, draw.versions_ahead, max_staleness
    )
    picked = sampler.pick(tx, limits)
    group_ids = sorted({member["group_id"] for member in picked.members})
    if picked.missing:
        _record_missing(tx, draw, picked.missing)
    if len(group_ids) < draw.batch_size:
        return None
    assert picked.snapshot is not None
    texts, items = [*picked.texts], _valued(tx, picked, advantage, compares)
    parameters = {**picked.parameters, "max_uses": draw.max_uses}
    leases = {"lease_groups": group_ids, "lease_members": [item.experience_id for item in items]}
    if draw.experts:
        experts = _experts(tx, draw)
        texts.append(query("draw_experts" if draw.expert_shares else "draw_rows"))
        items += [Item(row["id"]) for row in experts]
        parameters |= {"experts": draw.experts, "experts_snapshot": experts[0]["snapshot"]}
        parameters |= {"expert_shares": dict(draw.expert_shares)} if draw.expert_shares else {}
        leases["lease_experiences"] = [row["id"] for row in experts]
    drawn = _Drawn(
        texts=texts,
        sampler=sampler.name,
        items=items,
        size=len(group_ids),
        epoch=0,
        snapshot=picked.snapshot,
        max_staleness=max_staleness,
        parameters=parameters,
    )
    return _record(tx, draw, version, drawn, leases)


def draw_adopted_groups(
    tx: Transaction, draw: Draw, advantage: attempts.Advantage, compares: Collection[str] = ()
) -> Batch | None:
    """Lease the next adopted groups; None if none are left. A batch never extends into the next epoch.

    Advantages are computed as in `draw_groups`. Staleness is not counted: other runs sampled the rows.

    Raises:
        LeaseLost: if another trainer draws for this run.
    """
    version = batches.begin_draw(tx, draw)
    rows = _select(tx, draw, "draw_adopted_groups", draw.batch_size)
    if not rows:
        return None
    epoch = min(row["use_count"] for row in rows)
    members = [row for row in rows if row["use_count"] == epoch]
    group_ids = sorted({member["group_id"] for member in members})
    texts, snapshot = [query("draw_adopted_groups")], members[0]["snapshot"]
    picked = Picked(texts, {}, members, [1.0] * len(members), snapshot)
    items = _valued(tx, picked, advantage, compares)
    drawn = _Drawn(texts, "group_epochs", items, len(group_ids), epoch, snapshot)
    leases = {"lease_groups": group_ids, "lease_members": [item.experience_id for item in items]}
    return _record(tx, draw, version, drawn, leases)


def draw_rows(tx: Transaction, draw: Draw) -> Batch | None:
    """Lease the next rows to imitate, or labelled rows; None if none are left.

    A batch never extends into the next epoch.

    Raises:
        LeaseLost: if another trainer draws for this run.
    """
    version = batches.begin_draw(tx, draw)
    rows = _select(tx, draw, "draw_rows", draw.batch_size)
    if not rows:
        return None
    epoch = rows[0]["use_count"]
    items = [Item(row["id"], None, row["reward"]) for row in rows if row["use_count"] == epoch]
    drawn = _Drawn([query("draw_rows")], "epochs", items, len(items), epoch, rows[0]["snapshot"])
    leases = {"lease_experiences": [item.experience_id for item in items]}
    return _record(tx, draw, version, drawn, leases)


def draw_pairs(tx: Transaction, draw: Draw) -> Batch | None:
    """Lease the next pairs; None if none are left. A batch never extends into the next epoch.

    Raises:
        LeaseLost: if another trainer draws for this run.
    """
    version = batches.begin_draw(tx, draw)
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
    drawn = _Drawn([query("draw_pairs")], "epochs", items, len(pairs), epoch, rows[0]["snapshot"])
    leases = {"lease_preferences": [row["id"] for row in pairs]}
    return _record(tx, draw, version, drawn, leases)


@dataclass(frozen=True)
class _Drawn:
    """Result of a draw, with the statements and parameters that produced it."""

    texts: Sequence[str]
    """The statements as sent."""
    sampler: str
    items: Sequence[Item]
    size: int
    """Number of groups, rows or pairs."""
    epoch: int
    snapshot: str
    """The pg_snapshot of the draw's statement."""
    max_staleness: int | None = None
    parameters: Mapping[str, Any] | None = None
    """Inputs and choices of the sampler, so that the draw can be rerun."""


def _valued(
    tx: Transaction, picked: Picked, advantage: attempts.Advantage, compares: Collection[str]
) -> list[Item]:
    """Members of groups with advantages and weights; greedy members are only a baseline and weigh 0."""
    values, is_greedy = attempts.compare(tx, picked.members, advantage, compares)
    weights = np.where(is_greedy, 0.0, picked.weights).tolist()
    numbers = zip(picked.members, values, weights, strict=True)
    return [
        Item(m["id"], None, m["reward"], value, m["staleness"], m["probability"], weight)
        for m, value, weight in numbers
    ]


def _record_missing(tx: Transaction, draw: Draw, missing: Mapping[str, int]) -> None:
    """Record which parts of the sampler a step waits for; a repeated number is recorded once."""
    values = {f"draw/missing/{name}": float(count) for name, count in missing.items()}
    metrics.record_changes(tx, draw.run_id, WorkerRole.TRAIN, draw.step, values)


def _experts(tx: Transaction, draw: Draw) -> list[DictRow]:
    """Draw the next adopted rows; at the end of a pass, also the first rows of the next pass.

    Raises:
        TrinityError: if the run has too few adopted rows.
    """
    if draw.expert_shares:
        values = {"run_id": draw.run_id, "data": list(draw.expert_shares), "limit": draw.experts}
        candidates = tx.execute(query("draw_experts"), values).fetchall()
        rows = shared(candidates, draw.expert_shares, draw.experts, draw.step)
    else:
        rows = _select(tx, draw, "draw_rows", draw.experts)
    if len(rows) < draw.experts:
        raise offline.too_few(len(rows), draw.experts)
    return rows


def shared(
    rows: Sequence[DictRow], expert_shares: Mapping[str, float], size: int, step: int
) -> list[DictRow]:
    """Select the first rows of each data set by share; the others make up for one with too few rows."""
    by_data = {name: [row for row in rows if row["data"] == name] for name in expert_shares}
    shares = list(expert_shares.values())
    available = [len(rows) for rows in by_data.values()]
    taken = stratified_allocation.spread(
        shares, stratified_allocation.apportion(shares, size, step), available, step
    )
    return [
        row for part_rows, count in zip(by_data.values(), taken, strict=True) for row in part_rows[:count]
    ]


def _select(tx: Transaction, draw: Draw, name: str, limit: int) -> list[DictRow]:
    return tx.execute(query(name), {"run_id": draw.run_id, "limit": limit}).fetchall()


def _record(
    tx: Transaction, draw: Draw, version: int, drawn: _Drawn, leases: Mapping[str, Sequence[int]]
) -> Batch:
    """Write the batch and take its leases (ids by statement), in one round trip."""
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
                f"Step {draw.step} lost its draw: {len(ids) - cursor.rowcount} of {len(ids)} are no longer "
                "ready, since another trainer took the run over."
            )
    return Batch(row["id"], draw.step, drawn.size, drawn.epoch, version, row["created_at"], draw.experts)


def _recorded(draw: Draw, version: int, drawn: _Drawn) -> dict[str, Any]:
    return {
        "run_id": draw.run_id,
        "step": draw.step,
        "worker_id": draw.worker_id,
        "version": version,
        "versions_ahead": draw.versions_ahead,
        "max_staleness": drawn.max_staleness,
        "size": drawn.size,
        "epoch": drawn.epoch,
        "sampler": drawn.sampler,
        "seed": draw.seed,
        "query": "\n\n".join(drawn.texts),
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


def _expire(tx: Transaction, draw: Draw, version: int, max_staleness: int) -> None:
    values = {"run_id": draw.run_id, "version": version, "versions_ahead": draw.versions_ahead}
    stale = tx.execute(query("stale_groups"), {**values, "max_staleness": max_staleness})
    groups = [row["id"] for row in stale]
    if not groups:
        return
    tx.execute(query("expire_groups"), {"group_ids": groups})
    members = tx.execute(query("expire_members"), {**values, "group_ids": groups}).fetchall()
    drops = [processing.Drop(row["id"], "stale", {"staleness": row["staleness"]}) for row in members]
    processing.record_drops(tx, draw.run_id, "draw", drops)
    runs.announce(tx, draw.run_id)
