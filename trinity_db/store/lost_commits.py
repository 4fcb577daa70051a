"""Setbacks: acknowledged commits that a server lost, for example in a failover to a lagging replica.

The trainer detects them: its weights contain steps, or its folder contains versions, that the store does not
have.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from trinity_db.postgres.connection import Transaction
from trinity_db.schema.queries import query
from trinity_db.store import policies
from trinity_db.store.policies import PolicyVersion


@dataclass(frozen=True)
class Setback:
    """Lost steps, after `known_step` up to `last_step`, and lost versions, if any."""

    known_version: int
    known_step: int
    last_step: int
    num_rows: int | None
    first_version: int | None
    last_version: int | None

    def __str__(self) -> str:
        steps = f"steps {self.known_step + 1} to {self.last_step}" if self.last_step > self.known_step else ""
        rows = f" ({self.num_rows} rows)" if steps and self.num_rows is not None else ""
        versions = (
            f"versions {self.first_version} to {self.last_version}" if self.last_version is not None else ""
        )
        return " and ".join(part for part in (steps + rows, versions) if part)


def describe(row: Mapping[str, Any]) -> str:
    """Describe a row of `setback`: the lost part, and the version from which the run continued."""
    lost = Setback(**{field.name: row[field.name] for field in fields(Setback)})
    again = "" if row["adopted_version"] is None else f", which is the lost version {row['adopted_version']}"
    return f"{lost}; continued from version {row['resumed_version']}{again}"


def record(tx: Transaction, run_id: int, worker_id: int, setback: Setback, resumed_version: int) -> None:
    """Record the setback, with the version from which the run continues. Idempotent."""
    values = {"run_id": run_id, "worker_id": worker_id, "resumed_version": resumed_version}
    tx.execute(query("record_setback"), values | asdict(setback))


def base_of(tx: Transaction, run_id: int, lost_version: int) -> int | None:
    """Newest version that the store had when it lost this one; None if this one was not lost."""
    row = tx.execute(query("setback_of_version"), {"run_id": run_id, "version": lost_version}).fetchone()
    return None if row is None else int(row["known_version"])


def adopted(tx: Transaction, run_id: int, lost_version: int) -> bool:
    """Whether the run has continued from this lost version before."""
    row = tx.execute(query("setback_of_version"), {"run_id": run_id, "version": lost_version}).fetchone()
    return row is not None and row["adopted_version"] == lost_version


def adopt(tx: Transaction, run_id: int, lost_version: int, policy: PolicyVersion) -> None:
    """Make the checkpoint of a lost version a version of the run again, with a new number."""
    values = {
        "run_id": run_id,
        "version": policy.version,
        "step": policy.step,
        "checkpoint": str(policy.checkpoint),
        "checkpoint_hash": policy.checkpoint_hash,
    } | policies.named(policy.resumed)
    tx.execute(query("adopt_version"), values)
    row = tx.execute(query("setback_of_version"), {"run_id": run_id, "version": lost_version}).fetchone()
    assert row is not None, "the setback is recorded before"
    names = {"id": row["id"], "lost_version": lost_version, "version": policy.version}
    tx.execute(query("adopt_lost_version"), names)
