"""Batches: leased for one trainer step, committed with it, reopened if no checkpoint includes them.

`store.draws` selects, records and leases the rows of a batch. Every transaction that changes rows locks
their groups first, then the rows, each in order of id.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from psycopg import Cursor
from psycopg.rows import DictRow

from trinity_db.arrays import codec
from trinity_db.errors import LeaseLost, NotFound, TrinityError
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.schema.queries import query
from trinity_db.store import evaluations, payloads, runs, workers


@dataclass(frozen=True)
class Mark:
    """Position of a run: its newest version, and its last committed step with that step's batch."""

    version: int
    step: int = 0
    batch_id: int | None = None
    created_at: datetime | None = None
    """Creation time of the batch; a server that lost a batch may assign its id again."""


class SetBack(TrinityError):
    """Raised if the store's version or last step differs from the trainer's: the server has lost commits."""

    def __init__(self, remedy: str = "start the trainer again.") -> None:
        super().__init__(f"The server has lost steps that it had committed; {remedy}")


@dataclass(frozen=True)
class Draw:
    """The step that a batch is drawn for, and its size."""

    run_id: int
    worker_id: int
    step: int
    batch_size: int
    seed: int
    max_uses: int = 1
    """Number of committed batches that may use a rollout group; recorded, so that the draw can be rerun."""
    experts: int = 0
    """Adopted rows to draw in addition to rollout groups; they can be used any number of times."""
    expert_shares: Mapping[str, float] = field(default_factory=dict)
    """Share of these rows by data set. Empty: one pass over all data sets together."""
    after: Mark | None = None
    """Position that the trainer's weights contain; None: not compared with the store's."""
    versions_ahead: int = 0
    """1 if the version with the trainer's weights is still being written: staleness counts from it."""


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
    """Number of its rows, the last ones, that are adopted rows added to rollout groups."""


@dataclass(frozen=True)
class Row:
    """One row of a batch as the trainer uses it, with its ids in the store."""

    ordinal: int
    experience_id: int
    preference_id: int | None
    group_id: int | None
    payload: codec.Payload
    reward: float | None
    advantage: float | None
    weight: float
    probability: float | None
    staleness: int | None
    margin: float
    """Reward gap of the row's pair; 0 without a pair, or if the pair has none."""


def begin_draw(tx: Transaction, draw: Draw) -> int:
    """Start a draw in one round trip; returns the latest published version.

    Raises:
        LeaseLost: if the worker was replaced; it may not have noticed yet.
        SetBack: if the server has lost steps that the trainer's weights contain.
    """
    values = {"run_id": draw.run_id, "step": draw.step, "worker_id": draw.worker_id}
    with tx.pipeline():
        leased = tx.execute(query("leased_batch"), values)
        trainer = tx.execute(query("hold_trainer"), values)
    mark = _mark(tx, trainer, draw.worker_id, [draw.after] if draw.after else [])
    _reopen(tx, draw.run_id, leased.fetchall())
    return mark.version


def read(database: Database, batch_id: int) -> list[Row]:
    """Read the rows of a batch in the order of the draw, in a separate transaction.

    Raises:
        NotFound: if a row's arrays are gone.
    """
    rows = payloads.select(database, "read_batch", {"batch_id": batch_id})
    gone = [row["experience_id"] for row in rows if row["codec"] is None]
    if gone or not rows:
        which = f"experience {gone[0]}" if len(gone) == 1 else f"{len(gone) or 'all'} of its rows"
        raise NotFound(f"The arrays of batch {batch_id} are gone: {which} cannot be read any more.")
    return [
        Row(payload=codec.decode(row.pop("codec"), row.pop("data"), row.pop("num_tokens")), **row)
        for row in rows
    ]


def commit(tx: Transaction, batch: Batch, worker_id: int, max_uses: int) -> bool:
    """Commit the batch with its trainer step and count the uses. Returns False if it was committed before.

    Rows and groups used `max_uses` times become trained; adopted rows drawn next to rollout groups never do.

    Raises:
        LeaseLost: if the batch was reopened, or belongs to another worker.
        SetBack: if the server has lost the batch.
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
    """Reopen a batch that this worker drew for the same step and has not committed."""
    values = {"run_id": draw.run_id, "step": draw.step, "worker_id": draw.worker_id}
    _reopen(tx, draw.run_id, tx.execute(query("leased_batch"), values).fetchall())


def reopen(tx: Transaction, run_id: int, worker_id: int, version: int) -> int:
    """Reopen every batch that the checkpoint of `version` does not include; returns their number.

    Later versions, which include some of these batches, are withdrawn.

    Raises:
        TrinityError: if rows of these batches were pruned. Nothing is changed then.
        LeaseLost: if another trainer replaced this one; the batches may be its.
    """
    workers.hold_place(tx, worker_id)
    values = {"run_id": run_id, "version": version}
    batches = tx.execute(query("open_batches"), values).fetchall()
    tx.execute(query("withdraw_later_versions"), values)
    evaluations.give_up_withdrawn(tx, run_id)
    # After the withdrawal: until then, a concurrent prune holds the oldest checkpoint.
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
    """Block replacement of the run's trainer until this transaction ends; returns the run's position.

    Args:
        heard: accepted positions; all are accepted if empty.

    Raises:
        LeaseLost: if another worker replaced the trainer, or reopened its last step.
        SetBack: if the run is at another position.
    """
    trainer = tx.execute(query("hold_trainer"), {"run_id": run_id, "worker_id": worker_id})
    return _mark(tx, trainer, worker_id, heard)


def _mark(tx: Transaction, cursor: Cursor[DictRow], worker_id: int, heard: Sequence[Mark]) -> Mark:
    trainer = cursor.fetchone()
    if trainer is None:
        raise workers.replaced(worker_id)
    if trainer["version"] is None:  # a trainer publishes version 0 before it draws
        raise SetBack
    mark = Mark(**trainer)
    if heard and mark not in heard:
        for known in heard:
            row = tx.execute(query("batch_state"), {"batch_id": known.batch_id}).fetchone()
            if row is not None and (row["state"], row["created_at"]) == ("reopened", known.created_at):
                raise workers.replaced(worker_id)
        raise SetBack
    return mark


def _lock(tx: Transaction, batch_ids: Sequence[int]) -> None:
    for name in ("lock_batch_groups", "lock_batch_rows"):
        tx.execute(query(name), {"batch_ids": batch_ids})
