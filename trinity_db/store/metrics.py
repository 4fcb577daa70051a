"""Metrics: roles write them, sinks read them in the order of their ids, each once, and leave none out.

An id is given out before its row can be seen, so that rows appear out of order. A role that writes metrics
holds a lock that shows as much (`record_metrics`), and up to a settled id nothing appears any more: a
position is one number. Rows that are inserted by hand, without that lock, may be left out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from psycopg.rows import DictRow

from trinity_db.database import Transaction
from trinity_db.schema.queries import query
from trinity_db.schema.states import WorkerRole


@dataclass(frozen=True)
class Measurement:
    """What a role measured of one step, or a part of it where others measured at the same time."""

    id: int
    """Of its last number."""
    role: WorkerRole
    step: int
    """Of the trainer; an explorer's is the policy version that it had."""
    time: datetime
    values: dict[str, float]


@dataclass(frozen=True)
class Outcomes:
    """What the store knows of a batch's rollouts beyond their rows."""

    clipped: float | None
    """The share that ended by its length; None where there are none."""
    rewards: Mapping[str, tuple[float, float]]
    """Of each name of reward events mean and deviation of the latest values, not weighed."""


def record_metrics(
    tx: Transaction, run_id: int, role: WorkerRole, step: int, values: Mapping[str, float]
) -> None:
    """Write measured numbers of one step."""
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
    """Write those numbers of one step that are not what was written of it last."""
    written = {"run_id": run_id, "step": step, "names": list(values)}
    last = {row["name"]: row["value"] for row in tx.execute(query("last_metrics"), written)}
    if changed := {name: value for name, value in values.items() if last.get(name) != value}:
        record_metrics(tx, run_id, role, step, changed)


def outcomes_of(tx: Transaction, batch_id: int) -> Outcomes:
    """How the rollouts of a batch ended and what was said of each."""
    row = tx.execute(query("measure_batch"), {"batch_id": batch_id}).fetchone()
    assert row is not None
    return Outcomes(row["clipped"], {one["name"]: (one["mean"], one["std"]) for one in row["rewards"]})


def last_id(tx: Transaction) -> int:
    """The highest id that any metric was given."""
    row = tx.execute(query("last_metric_id")).fetchone()
    assert row is not None
    return int(row["id"])


def is_settled(tx: Transaction, run_id: int) -> bool:
    """Whether whatever the run will ever have, up to what `last_id` said before, can be read from now on."""
    row = tx.execute(query("metrics_in_flight"), {"run_id": run_id}).fetchone()
    assert row is not None
    return not row["is_so"]


def read(tx: Transaction, run_id: int, after: int, upto: int, limit: int) -> list[Measurement]:
    """What was measured with ids between these, `limit` numbers at most, the first ones first."""
    values = {"run_id": run_id, "after": after, "upto": upto, "limit": limit}
    return _together(tx.execute(query("read_metrics"), values))


def _together(rows: Iterable[DictRow]) -> list[Measurement]:
    """Neighbours of the same role, step and transaction as one; of a name there is one number in each."""
    measured: list[Measurement] = []
    for row in rows:
        one = Measurement(
            row["id"], WorkerRole(row["role"]), row["step"], row["created_at"], {row["name"]: row["value"]}
        )
        last = measured[-1] if measured else None
        if last and row["name"] not in last.values and _origin(last) == _origin(one):
            measured[-1] = Measurement(one.id, one.role, one.step, one.time, last.values | one.values)
        else:
            measured.append(one)
    return measured


def _origin(one: Measurement) -> tuple[WorkerRole, int, datetime]:
    return one.role, one.step, one.time
