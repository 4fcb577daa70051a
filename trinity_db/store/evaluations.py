"""Evaluations: attempts of one policy version at every task of a taskset, scored and never trained on.

An evaluation is a row with one rollout group per task. Any explorer of the run claims these groups, any
processor scores their rows, and a processor ends the evaluation. Its results are computed when read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from trinity_db.postgres.connection import Transaction
from trinity_db.schema.queries import query
from trinity_db.schema.states import WorkerRole
from trinity_db.schema.typed_rows import EvaluationDifference, EvaluationRow
from trinity_db.store import runs
from trinity_db.store.groups import ClaimedGroup
from trinity_db.store.metrics import record_metrics


@dataclass(frozen=True)
class Settings:
    """Sampling settings of an evaluation."""

    taskset_id: int
    samples: int
    """Attempts per task."""
    temperature: float
    """0: greedy sampling."""
    max_new_tokens: int


@dataclass(frozen=True)
class DueEvaluation:
    """An evaluation with unclaimed groups, and the version that must sample all of its tokens."""

    id: int
    version: int
    step: int
    """The trainer's step at that version."""
    checkpoint: Path
    checkpoint_hash: str
    samples: int
    """Attempts per task."""
    temperature: float
    max_new_tokens: int
    seed: int
    weights: str | None = None
    """Address of the version's files in an object store; None: they are only in the folder."""


def begin_due(tx: Transaction, run_id: int, version: int, is_last: bool = False) -> None:
    """Begin the evaluations configured for a version, in the transaction that publishes it. Idempotent.

    Args:
        is_last: the run has finished training, so the version is evaluated whatever its number.
    """
    values = {"run_id": run_id, "version": version, "is_last": is_last}
    for row in tx.execute(query("due_tasksets"), values).fetchall():
        begin(tx, run_id, version, Settings(**row))


def begin(tx: Transaction, run_id: int, version: int, settings: Settings) -> int | None:
    """Begin an evaluation, or resume it; returns its id. None: the version has no checkpoint.

    A resumed evaluation includes the tasks imported since. The checkpoint is kept until the evaluation ends.
    """
    values = {"run_id": run_id, "version": version, **vars(settings)}
    if tx.execute(query("hold_evaluated_version"), values).fetchone() is None:
        return None
    row = tx.execute(query("begin_evaluation"), values).fetchone()
    if row is None:
        row = tx.execute(query("resume_evaluation"), values).fetchone()
        assert row is not None
        tx.execute(query("extend_evaluation"), {"evaluation_id": row["id"]})
    assert row is not None
    runs.announce(tx, run_id)
    return int(row["id"])


def due(
    tx: Transaction, run_id: int, loaded: int, among: Sequence[int] | None = None
) -> DueEvaluation | None:
    """Return the next evaluation with unclaimed groups; evaluations of the loaded version come first.

    Args:
        among: consider only these evaluations.
    """
    values = {"run_id": run_id, "loaded": loaded, "among": _ids(among)}
    row = tx.execute(query("due_evaluation"), values).fetchone()
    return DueEvaluation(**row | {"checkpoint": Path(row["checkpoint"])}) if row else None


def claim(tx: Transaction, worker_id: int, evaluation_id: int, limit: int) -> list[ClaimedGroup]:
    """Claim up to `limit` groups of an evaluation to explore."""
    values = {"evaluation_id": evaluation_id, "worker_id": worker_id, "limit": limit}
    return [
        ClaimedGroup(
            row["id"],
            row["attempt"],
            row["payload"],
            row["members"],
            key=row["key"],
            parked=frozenset(row["parked"]),
            waits=row["waits"],
        )
        for row in tx.execute(query("claim_evaluation_groups"), values)
    ]


def give_up(tx: Transaction, run_id: int, evaluation_id: int, error: str) -> None:
    """End an evaluation whose version cannot be loaded. Beginning it again resumes it."""
    tx.execute(query("give_up_evaluation"), {"evaluation_id": evaluation_id, "error": error})
    runs.announce(tx, run_id)


def give_up_withdrawn(tx: Transaction, run_id: int) -> None:
    """End the evaluations of withdrawn versions."""
    tx.execute(query("give_up_withdrawn_evaluations"), {"run_id": run_id})


def are_open(tx: Transaction, run_id: int, among: Sequence[int] | None = None) -> bool:
    """Whether a run's evaluations (or only those in `among`) have attempts left to make or to score."""
    row = tx.execute(query("open_evaluations"), {"run_id": run_id, "among": _ids(among)}).fetchone()
    assert row is not None
    return bool(row["evaluations"])


def finish(tx: Transaction, run_id: int) -> list[EvaluationRow]:
    """End evaluations whose attempts are all scored, record their metrics, and return them."""
    ended = [row["id"] for row in tx.execute(query("finish_evaluations"), {"run_id": run_id})]
    evaluations = read(tx, ended) if ended else []
    for row in evaluations:
        record_metrics(tx, run_id, WorkerRole.PROCESS, row["step"], metrics(row))
    if ended:
        runs.announce(tx, run_id)
    return evaluations


def read(tx: Transaction, ids: Sequence[int]) -> list[EvaluationRow]:
    """Read rows of evaluation_view, in the order in which the evaluations began."""
    return cast(list[EvaluationRow], tx.execute(query("read_evaluations"), {"ids": list(ids)}).fetchall())


def compare(tx: Transaction, before: int, after: int, k: int = 1) -> EvaluationDifference:
    """Compare two evaluations with evaluation_difference."""
    values = {"before": before, "after": after, "k": k}
    [difference] = cast(
        list[EvaluationDifference], tx.execute(query("compare_evaluations"), values).fetchall()
    )
    return difference


def progress(tx: Transaction, ids: Sequence[int]) -> tuple[int, int]:
    """Count the ended attempts and all attempts of evaluations."""
    row = tx.execute(query("evaluation_progress"), {"ids": list(ids)}).fetchone()
    assert row is not None
    return int(row["ended"]), int(row["attempts"])


def shared_tasks(tx: Transaction, taskset_id: int, other_id: int) -> int:
    """Count the tasks of a taskset that another taskset contains, too."""
    values = {"taskset_id": taskset_id, "other_id": other_id}
    row = tx.execute(query("shared_tasks"), values).fetchone()
    assert row is not None
    return int(row["tasks"])


def metrics(evaluation: Mapping[str, Any]) -> dict[str, float]:
    """Metrics of an evaluation (a row of evaluation_view), without missing values."""
    mean, first, best, every, failed = metric_names(evaluation["taskset"], evaluation["samples"])
    values = {
        mean: evaluation["mean"],
        first: evaluation["pass_1"],
        best: evaluation["best"],
        every: evaluation["pass_k"],
        failed: evaluation["failed"],
    }
    return {name: value for name, value in values.items() if value is not None}


def metric_names(taskset: str, k: int) -> tuple[str, str, str, str, str]:
    """Metric names of an evaluation: mean@k, pass@1, best@k, pass@k, and the number of failed attempts."""
    mean, first, best, every, failed = (
        f"eval/{taskset}/{name}" for name in (f"mean@{k}", "pass@1", f"best@{k}", f"pass@{k}", "failed")
    )
    return mean, first, best, every, failed


def describe(evaluation: Mapping[str, Any]) -> str:
    """Summarise an evaluation (a row of evaluation_view) in one line."""
    summary = f"{evaluation['taskset']}, version {evaluation['version']}: "
    if evaluation["error"] is not None:
        return f"{summary}given up: {evaluation['error']}"
    if evaluation["mean"] is not None:
        summary += (
            f"mean@{evaluation['samples']} {evaluation['mean']:.3f}, pass@1 {evaluation['pass_1']:.3f}, "
        )
    if evaluation["finished_at"] is None or evaluation["waiting"]:
        summary += f"{evaluation['waiting']} attempts wait, "
    return f"{summary}{evaluation['failed']} failed"


def _ids(among: Sequence[int] | None) -> list[int] | None:
    return None if among is None else list(among)
