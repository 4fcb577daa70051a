"""Synthesis: groups from which tasks and responses are made, and the origin of each result.

A synthesis is leased while its worker is alive. It ends in the transaction that writes the results, so the
groups of a killed worker are asked about again, and nothing is made twice.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.rows import DictRow

from trinity_db.postgres.connection import Transaction
from trinity_db.schema.queries import query
from trinity_db.store import processing


@dataclass(frozen=True)
class SourceGroup:
    """A group held by a worker, with the row shown to the steps."""

    id: int
    """Id of the synthesis."""
    attempt: int
    group_id: int
    experience_id: int
    task_id: int
    taskset: str
    columns: DictRow
    """Columns of the row that the steps read."""
    made: int
    """Number of results made from its task before."""


@dataclass(frozen=True)
class Origin:
    """Origin of a result."""

    source: SourceGroup
    step: str
    digest: str
    detail: Mapping[str, Any] | None
    task_id: int | None = None
    experience_id: int | None = None


@dataclass(frozen=True)
class SynthesisFailure:
    """Reason why nothing could be made."""

    source: SourceGroup
    error: str
    step: str | None


def count_made(tx: Transaction, run_id: int) -> int:
    """Count the results made from the rows of a run."""
    return int(_only_row(tx, "count_made", run_id)["made"])


def count_due(tx: Transaction, run_id: int) -> int:
    """Count the groups that are still to be asked about."""
    return int(_only_row(tx, "count_due_sources", run_id)["groups"])


def take(
    tx: Transaction, run_id: int, worker_id: int, columns: tuple[str, ...], limit: int, lease_seconds: float
) -> list[SourceGroup]:
    """Lease due groups, and read the step's columns of their best rows. One whose worker died comes alone.

    Args:
        columns: names from `processing.columns()`.
    """
    values = {"run_id": run_id, "worker_id": worker_id, "lease_seconds": lease_seconds}
    taken = tx.execute(query("take_sources"), values | {"limit": limit, "suspects": False}).fetchall()
    if not taken:
        taken = tx.execute(query("take_sources"), values | {"limit": 1, "suspects": True}).fetchall()
    if not taken:
        return []
    leases = {row["group_id"]: row for row in taken}
    rows = tx.execute(query("source_rows"), {"group_ids": list(leases)}).fetchall()
    read = {row["id"]: row for row in processing.read(tx, columns, [row["id"] for row in rows])}
    return [
        SourceGroup(
            leases[row["group_id"]]["id"],
            leases[row["group_id"]]["attempt"],
            row["group_id"],
            row["id"],
            row["task_id"],
            row["taskset"],
            read[row["id"]],
            row["made"],
        )
        for row in rows
    ]


def hold(tx: Transaction, run_id: int, worker_id: int, sources: Sequence[SourceGroup]) -> set[int]:
    """Return the syntheses that the worker still holds; blocks the run's other processors from writing."""
    tx.execute(query("lock_makers"), {"run_id": run_id})
    values = {"ids": [source.id for source in sources], "worker_id": worker_id}
    attempts = {source.id: source.attempt for source in sources}
    rows = tx.execute(query("hold_sources"), values)
    return {row["id"] for row in rows if row["attempt"] == attempts[row["id"]]}


def made_before(tx: Transaction, run_id: int, digests: Sequence[str]) -> set[str]:
    """Return those of these results that were made from the run's rows before."""
    rows = tx.execute(query("made_before"), {"run_id": run_id, "digests": list(digests)})
    return {row["digest"] for row in rows}


def made_of(tx: Transaction, run_id: int, task_ids: Sequence[int]) -> Counter[int]:
    """Count the results made from each of these tasks."""
    rows = tx.execute(query("count_made_of"), {"run_id": run_id, "task_ids": list(task_ids)})
    return Counter({row["task_id"]: row["made"] for row in rows})


def write_origins(tx: Transaction, run_id: int, origins: Sequence[Origin]) -> None:
    """Record results and their origin, in the transaction that wrote the results."""
    if origins:
        values = {
            "synthesis_ids": [origin.source.id for origin in origins],
            "source_task_ids": [origin.source.task_id for origin in origins],
            "task_ids": [origin.task_id for origin in origins],
            "experience_ids": [origin.experience_id for origin in origins],
            "steps": [origin.step for origin in origins],
            "digests": [origin.digest for origin in origins],
            "details": [json.dumps(origin.detail) if origin.detail else None for origin in origins],
        }
        tx.execute(query("write_origins"), values | {"run_id": run_id})


def finish(
    tx: Transaction, processor_version: int, ended: Sequence[tuple[SourceGroup, Mapping[str, int]]]
) -> None:
    """End held syntheses, each with the reasons for its refused results."""
    if ended:
        values = {
            "ids": [source.id for source, _ in ended],
            "experience_ids": [source.experience_id for source, _ in ended],
            "refused": [json.dumps(refused) if refused else None for _, refused in ended],
            "processor_version": processor_version,
        }
        tx.execute(query("finish_sources"), values)


def fail(tx: Transaction, failures: Sequence[SynthesisFailure], max_attempts: int) -> None:
    """Return held syntheses to the queue, or give them up."""
    if failures:
        values = {
            "ids": [failure.source.id for failure in failures],
            "experience_ids": [failure.source.experience_id for failure in failures],
            "steps": [failure.step for failure in failures],
            "errors": [failure.error for failure in failures],
            "max_attempts": max_attempts,
        }
        tx.execute(query("fail_sources"), values)


def release(tx: Transaction, worker_id: int, ids: Sequence[int]) -> None:
    """Release syntheses that were not completed."""
    if ids:
        tx.execute(query("release_sources"), {"ids": list(ids), "worker_id": worker_id})


def _only_row(tx: Transaction, name: str, run_id: int) -> DictRow:
    row = tx.execute(query(name), {"run_id": run_id}).fetchone()
    assert row is not None
    return row
