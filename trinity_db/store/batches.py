"""Batches: drawn for one trainer step, committed with it, reopened when no checkpoint includes them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from psycopg.rows import DictRow

from trinity_db import arrays
from trinity_db.database import Transaction
from trinity_db.errors import LeaseLost
from trinity_db.schema.queries import query
from trinity_db.store import policies, runs

Advantage = Callable[[NDArray[np.float64], NDArray[np.int64]], NDArray[np.float64]]
"""From the rewards of a batch and the number of each row's group to the rows' advantages."""


@dataclass(frozen=True)
class Draw:
    """What a batch is drawn for."""

    run_id: int
    worker_id: int
    step: int
    batch_size: int
    seed: int


@dataclass(frozen=True)
class Item:
    """One row of a batch, with the numbers that are recorded for it."""

    experience_id: int
    preference_id: int | None = None
    reward: float | None = None
    advantage: float | None = None
    staleness: int | None = None


@dataclass(frozen=True)
class Batch:
    """A leased batch."""

    id: int
    step: int
    size: int
    epoch: int
    version: int


@dataclass(frozen=True)
class Row:
    """One row of a batch as the trainer uses it."""

    experience_id: int
    payload: arrays.Payload
    advantage: float | None


def draw_groups(tx: Transaction, draw: Draw, max_staleness: int | None, advantage: Advantage) -> Batch | None:
    """Lease the oldest `batch_size` whole groups within the staleness limit; None when there are not enough.

    Groups that are too stale become drops with a reason, also when None is returned. Advantages
    are computed from the rewards as they are in this transaction, and recorded.
    """
    version = _version(tx, draw)
    if max_staleness is not None:
        _expire(tx, draw.run_id, version, max_staleness)
    rows = tx.execute(query("draw_groups"), {"run_id": draw.run_id, "limit": draw.batch_size}).fetchall()
    if len(rows) < draw.batch_size:
        return None
    group_ids = [row["id"] for row in rows]
    members = tx.execute(query("draw_members"), {"group_ids": group_ids, "version": version}).fetchall()
    rewards = np.array([member["reward"] for member in members], np.float64)
    groups = np.array([member["group_id"] for member in members], np.int64)
    items = [
        Item(member["id"], None, member["reward"], float(value), member["staleness"])
        for member, value in zip(members, advantage(rewards, groups), strict=True)
    ]
    batch = _record(tx, draw, version, "fifo", "draw_groups", items, len(group_ids), epoch=0)
    tx.execute(query("lease_groups"), {"ids": group_ids, "worker_id": draw.worker_id})
    _lease_experiences(tx, draw, items)
    return batch


def draw_rows(tx: Transaction, draw: Draw) -> Batch | None:
    """Lease the next rows to imitate; None when none is left. A batch never reaches into the next epoch."""
    values = {"run_id": draw.run_id, "seed": draw.seed, "limit": draw.batch_size}
    rows = tx.execute(query("draw_rows"), values).fetchall()
    if not rows:
        return None
    epoch = rows[0]["use_count"]
    items = [Item(row["id"]) for row in rows if row["use_count"] == epoch]
    batch = _record(tx, draw, _version(tx, draw), "epochs", "draw_rows", items, len(items), epoch)
    _lease_experiences(tx, draw, items)
    return batch


def draw_pairs(tx: Transaction, draw: Draw) -> Batch | None:
    """Lease the next pairs; None when none is left. A batch never reaches into the next epoch."""
    values = {"run_id": draw.run_id, "seed": draw.seed, "limit": draw.batch_size}
    rows = tx.execute(query("draw_pairs"), values).fetchall()
    if not rows:
        return None
    epoch = rows[0]["use_count"]
    pairs = [row for row in rows if row["use_count"] == epoch]
    items = [Item(row[side], row["id"]) for row in pairs for side in ("chosen_id", "rejected_id")]
    batch = _record(tx, draw, _version(tx, draw), "epochs", "draw_pairs", items, len(pairs), epoch)
    tx.execute(query("lease_preferences"), {"ids": [row["id"] for row in pairs], "worker_id": draw.worker_id})
    return batch


def read(tx: Transaction, batch_id: int) -> list[Row]:
    """The rows of a batch in the order of the draw."""
    return [
        Row(
            row["experience_id"],
            arrays.decode(row["codec"], row["data"], row["num_tokens"]),
            row["advantage"],
        )
        for row in tx.execute(query("read_batch"), {"batch_id": batch_id}, binary=True)
    ]


def held_out(tx: Transaction, run_id: int, pairs: bool, limit: int) -> list[arrays.Payload]:
    """Payloads of rows, or of chosen and rejected in turn, that are kept for evaluation."""
    name = "held_out_pairs" if pairs else "held_out_rows"
    rows = tx.execute(query(name), {"run_id": run_id, "limit": limit}).fetchall()
    ids = [row[side] for row in rows for side in (("chosen_id", "rejected_id") if pairs else ("id",))]
    found = {
        row["id"]: arrays.decode(row["codec"], row["data"], row["num_tokens"])
        for row in tx.execute(query("read_payloads"), {"ids": ids}, binary=True)
    }
    return [found[experience_id] for experience_id in ids]


def count_trainable(tx: Transaction, run_id: int, pairs: bool) -> int:
    """Rows or pairs that the whole of the training uses, those it has used already included."""
    row = tx.execute(query("count_pairs" if pairs else "count_rows"), {"run_id": run_id}).fetchone()
    assert row is not None
    return int(row["rows"])


def commit(tx: Transaction, batch: Batch, worker_id: int, max_uses: int) -> bool:
    """The trainer step is done: count the uses. Saying it again changes nothing, and returns False.

    Raises:
        LeaseLost: the batch was reopened, or belongs to another worker.
    """
    values = {"batch_id": batch.id, "worker_id": worker_id}
    row = tx.execute(query("commit_batch"), values).fetchone()
    if row is None:
        state = tx.execute(query("batch_state"), values).fetchone()
        if state is None or state["state"] != "committed":
            raise LeaseLost(
                f"Batch {batch.id} was taken from this trainer; another one runs or ran for this run."
            )
        return False
    tx.execute(query("use_experiences"), {"batch_id": batch.id, "max_uses": max_uses})
    tx.execute(query("use_groups"), {"batch_id": batch.id, "run_id": row["run_id"]})
    tx.execute(query("use_preferences"), {"batch_id": batch.id, "max_uses": max_uses})
    runs.announce(tx, row["run_id"])
    return True


def reopen_leased(tx: Transaction, draw: Draw) -> None:
    """Give back a batch that was drawn for this very step before, as when that draw's commit was unclear."""
    _reopen(
        tx,
        draw.run_id,
        tx.execute(query("leased_batch"), {"run_id": draw.run_id, "step": draw.step}).fetchall(),
    )


def reopen(tx: Transaction, run_id: int, version: int) -> int:
    """Give back every batch that the checkpoint of `version` does not include; returns how many."""
    batches = tx.execute(query("open_batches"), {"run_id": run_id, "version": version}).fetchall()
    _reopen(tx, run_id, batches)
    return len(batches)


def _reopen(tx: Transaction, run_id: int, batches: Sequence[DictRow]) -> None:
    if batches:
        values = {"run_id": run_id, "batch_ids": [batch["id"] for batch in batches]}
        for name in ("reopen_experiences", "reopen_groups", "reopen_preferences", "reopen_batches"):
            tx.execute(query(name), values)
        runs.announce(tx, run_id)


def _version(tx: Transaction, draw: Draw) -> int:
    """What staleness is counted from: a version that was withdrawn does not make the others older."""
    policy = policies.newest(tx, draw.run_id)
    assert policy is not None, "the trainer publishes version 0 before it draws"
    return policy.version


def _record(
    tx: Transaction,
    draw: Draw,
    version: int,
    sampler: str,
    drawn_by: str,
    items: Sequence[Item],
    size: int,
    epoch: int,
) -> Batch:
    row = tx.execute(
        query("insert_batch"),
        {
            "run_id": draw.run_id,
            "step": draw.step,
            "worker_id": draw.worker_id,
            "version": version,
            "size": size,
            "epoch": epoch,
            "sampler": sampler,
            "seed": draw.seed,
            "query": query(drawn_by),
        },
    ).fetchone()
    assert row is not None
    tx.execute(
        query("insert_batch_items"),
        {
            "batch_id": row["id"],
            "experience_ids": [item.experience_id for item in items],
            "preference_ids": [item.preference_id for item in items],
            "rewards": [item.reward for item in items],
            "advantages": [item.advantage for item in items],
            "staleness": [item.staleness for item in items],
        },
    )
    return Batch(row["id"], draw.step, size, epoch, version)


def _lease_experiences(tx: Transaction, draw: Draw, items: Sequence[Item]) -> None:
    ids = [item.experience_id for item in items]
    tx.execute(query("lease_experiences"), {"ids": ids, "worker_id": draw.worker_id})


def _expire(tx: Transaction, run_id: int, version: int, max_staleness: int) -> None:
    values = {"run_id": run_id, "version": version, "max_staleness": max_staleness}
    groups = [row["id"] for row in tx.execute(query("expire_stale_groups"), values)]
    if not groups:
        return
    members = tx.execute(query("expire_members"), {"group_ids": groups}).fetchall()
    tx.execute(
        query("record_drops"),
        {
            "run_id": run_id,
            "stage": "draw",
            "ids": [member["id"] for member in members],
            "reasons": ["stale"] * len(members),
            "details": [json.dumps({"staleness": version - member["version_min"]}) for member in members],
        },
    )
    runs.announce(tx, run_id)
