"""Priorities that processing steps compute for ready groups: which are due, and their results.

A change of rewards marks the priority of a group as due in the same transaction, so none is missed.
Computed priorities are kept: a rerun draw weighs groups with their priorities of that time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg.rows import DictRow

from trinity_db.postgres.connection import Transaction
from trinity_db.schema.queries import query
from trinity_db.store import policies, processing, runs

LEAST, MOST = 1e-18, 1e18  # range if not 0; see rollout_group_priority_in_range_check


@dataclass(frozen=True)
class DuePriority:
    """A priority that a processor has claimed to compute."""

    id: int
    group_id: int
    attempt: int


@dataclass(frozen=True)
class Taken:
    """Priorities claimed by a processor, with the rows for its steps."""

    due: Sequence[DuePriority]
    rows: Sequence[DictRow]
    policy_version: int | None
    """Newest policy version of the run before the rows were read."""


@dataclass(frozen=True)
class PriorityFailure:
    """Reason why a priority could not be computed."""

    due: DuePriority
    error: str
    experience_id: int | None = None
    step: str | None = None


@dataclass(frozen=True)
class ComputedPriorities:
    """Priorities that steps computed for the rows of groups."""

    by_row: Mapping[int, Mapping[int, float]]
    """Priority of each row, by group and experience."""
    failures: Sequence[PriorityFailure]

    def of_group(self, group_id: int) -> float:
        """Mean over the group's rows, within the range of priorities."""
        rows = self.by_row[group_id].values()
        return within_range(sum(rows) / len(rows))


def within_range(priority: float) -> float:
    """Clamp a priority to the range that the store accepts."""
    return min(max(priority, LEAST), MOST) if priority else 0.0


def take(tx: Transaction, run_id: int, columns: tuple[str, ...], limit: int, seconds: float) -> Taken:
    """Claim due priorities, and read the columns that steps need of the groups' rows.

    A priority that was claimed before without a result is claimed alone, once no others are left.

    Args:
        columns: names from `processing.columns()`.
        seconds: time after which another processor may claim them.
    """
    values = {"run_id": run_id, "seconds": seconds, "limit": limit, "suspects": False}
    taken = tx.execute(query("take_priorities"), values).fetchall()
    if not taken:
        values |= {"suspects": True, "limit": 1}
        taken = tx.execute(query("take_priorities"), values).fetchall()
    due = [DuePriority(row["id"], row["group_id"], row["attempt"]) for row in taken]
    if not due:
        return Taken((), (), None)
    version = policies.latest_version(tx, run_id)
    groups = list({priority.group_id for priority in due})
    members = tx.execute(query("prioritised_rows"), {"group_ids": groups}).fetchall()
    rows = processing.read(tx, ("group_id", *columns), [row["id"] for row in members])
    return Taken(due, rows, version)


def finish(
    tx: Transaction,
    run_id: int,
    taken: Taken,
    outcome: ComputedPriorities,
    processor_version: int,
    max_attempts: int,
) -> None:
    """Write the computed priorities. A group for which the steps failed keeps its current priority."""
    _fail(tx, outcome.failures, max_attempts)
    live = {row["group_id"] for row in taken.rows}
    tx.execute(query("forget_priorities"), {"ids": [due.id for due in taken.due if due.group_id not in live]})
    computed = [due for due in taken.due if due.group_id in outcome.by_row]
    if not computed:
        return
    rows = [pair for of_group in outcome.by_row.values() for pair in of_group.items()]
    groups = {"group_ids": list(outcome.by_row)}
    tx.execute(query("lock_prioritised"), {**groups, "ids": [id for id, _ in rows]})
    written = tx.execute(
        query("compute_priorities"),
        {
            "ids": [due.id for due in computed],
            "attempts": [due.attempt for due in computed],
            "priorities": [outcome.of_group(due.group_id) for due in computed],
            "processor_version": processor_version,
            "policy_version": taken.policy_version,
        },
    )
    groups = {"group_ids": list({row["group_id"] for row in written})}
    tx.execute(query("set_group_priorities"), groups)
    values = {"ids": [id for id, _ in rows], "priorities": [priority for _, priority in rows]}
    tx.execute(query("set_row_priorities"), values | groups)
    runs.announce(tx, run_id)


def renew(tx: Transaction, run_id: int, policy_version: int) -> int:
    """Mark priorities of ready groups as due if computed before this version; returns their number."""
    return tx.execute(
        query("renew_priorities"), {"run_id": run_id, "policy_version": policy_version}
    ).rowcount


def count_due(tx: Transaction, run_id: int) -> int:
    """Count the priorities that are still to be computed."""
    row = tx.execute(query("count_due_priorities"), {"run_id": run_id}).fetchone()
    assert row is not None
    return int(row["groups"])


def _fail(tx: Transaction, failures: Sequence[PriorityFailure], max_attempts: int) -> None:
    if failures:
        tx.execute(
            query("fail_priorities"),
            {
                "ids": [failure.due.id for failure in failures],
                "attempts": [failure.due.attempt for failure in failures],
                "experience_ids": [failure.experience_id for failure in failures],
                "steps": [failure.step for failure in failures],
                "errors": [failure.error for failure in failures],
                "max_attempts": max_attempts,
            },
        )
