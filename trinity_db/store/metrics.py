"""Metrics: roles write them; sinks read them in order of id, each exactly once.

Ids are assigned before rows become visible, so rows appear out of order. A role that writes metrics holds a
lock meanwhile (`record_metrics`), and no row appears below a settled id: one number is a complete position.
Rows inserted by hand, without that lock, may be skipped.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from psycopg.rows import DictRow

from trinity_db.postgres.connection import Transaction
from trinity_db.schema.queries import query
from trinity_db.schema.states import WorkerRole


@dataclass(frozen=True)
class Measurement:
    """Numbers that a role measured for one step; concurrent measurements may be split."""

    id: int
    """Id of its last number."""
    role: WorkerRole
    step: int
    """Step of the trainer; for an explorer, its policy version."""
    time: datetime
    values: dict[str, float]


@dataclass(frozen=True)
class Outcomes:
    """Facts about a batch's rollouts that are not in its rows."""

    clipped: float | None
    """Share of rollouts that reached the length limit; None without rollouts."""
    rewards: Mapping[str, tuple[float, float]]
    """Mean and deviation of the latest values by name of reward event, unweighted."""


def record_metrics(
    tx: Transaction, run_id: int, role: WorkerRole, step: int, values: Mapping[str, float]
) -> None:
    """Write metrics of one step."""
    tx.execute(
        query("record_metrics"),
        {
            "run_id": run_id,
            "role": role,
            "step": step,
            "names": list(values),
            "values": [float(value) for value in values.values()],
        },
    )


def record_changes(
    tx: Transaction, run_id: int, role: WorkerRole, step: int, values: Mapping[str, float]
) -> None:
    """Write those metrics of one step whose values differ from the last written ones."""
    written = {"run_id": run_id, "step": step, "names": list(values)}
    last = {row["name"]: row["value"] for row in tx.execute(query("last_metrics"), written)}
    if changed := {name: value for name, value in values.items() if last.get(name) != value}:
        record_metrics(tx, run_id, role, step, changed)


def outcomes_of(tx: Transaction, batch_id: int) -> Outcomes:
    """Measure how the rollouts of a batch ended, and their rewards by name."""
    row = tx.execute(query("measure_batch"), {"batch_id": batch_id}).fetchone()
    assert row is not None
    return Outcomes(
        row["clipped"], {reward["name"]: (reward["mean"], reward["std"]) for reward in row["rewards"]}
    )


def last_id(tx: Transaction) -> int:
    """Highest id assigned to any metric."""
    row = tx.execute(query("last_metric_id")).fetchone()
    assert row is not None
    return int(row["id"])


def is_settled(tx: Transaction, run_id: int) -> bool:
    """Whether all rows of the run up to an earlier `last_id` are visible."""
    row = tx.execute(query("metrics_in_flight"), {"run_id": run_id}).fetchone()
    assert row is not None
    return not row["is_so"]


def read(tx: Transaction, run_id: int, after: int, upto: int, limit: int) -> list[Measurement]:
    """Read metrics with ids in (after, upto], at most `limit` numbers, lowest ids first."""
    values = {"run_id": run_id, "after": after, "upto": upto, "limit": limit}
    return _together(tx.execute(query("read_metrics"), values))


def _together(rows: Iterable[DictRow]) -> list[Measurement]:
    """Merge adjacent rows of the same role, step and transaction; each measurement has a name only once."""
    measured: list[Measurement] = []
    for row in rows:
        measurement = Measurement(
            row["id"], WorkerRole(row["role"]), row["step"], row["created_at"], {row["name"]: row["value"]}
        )
        last = measured[-1] if measured else None
        if last and row["name"] not in last.values and _origin(last) == _origin(measurement):
            measured[-1] = replace(measurement, values=last.values | measurement.values)
        else:
            measured.append(measurement)
    return measured


def _origin(measurement: Measurement) -> tuple[WorkerRole, int, datetime]:
    return measurement.role, measurement.step, measurement.time
