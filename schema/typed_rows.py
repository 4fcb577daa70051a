"""Types of the rows that functions of the store return as dictionaries, since commands print them as JSON.

Each type has the columns of the query that `QUERIES` names for it, which a test compares. Times have a zone.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict


class EvaluationRow(TypedDict):
    """Row of evaluation_view."""

    id: int
    run: str
    taskset: str
    version: int
    step: int
    samples: int
    temperature: float
    max_new_tokens: int
    tasks: int
    judged: int
    failed: int
    waiting: int
    mean: float | None
    mean_low: float | None
    mean_high: float | None
    pass_1: float | None
    pass_1_low: float | None
    pass_1_high: float | None
    tasks_at_k: int
    best: float | None
    pass_k: float | None
    pass_k_low: float | None
    pass_k_high: float | None
    created_at: datetime
    finished_at: datetime | None
    error: str | None


EvaluationDifference = TypedDict(
    "EvaluationDifference",
    {
        "tasks": int,
        "mean": float | None,
        "mean_low": float | None,
        "mean_high": float | None,
        "tasks_at_k": int,
        "pass": float | None,
        "pass_low": float | None,
        "pass_high": float | None,
    },
)
"""Result of evaluation_difference: later minus earlier, with the ends of the intervals."""


class RewardPart(TypedDict):
    """Latest reward event of one name about a row or its rollout."""

    experience_id: int
    name: str
    value: float
    weight: float
    source: str


class WaitingReview(TypedDict):
    """Row or pair that waits for verdicts, with its texts."""

    review_id: int
    experience_id: int
    other_id: int | None
    source: str
    name: str
    lowest: int
    highest: int
    wanted: int
    prompt: str | None
    messages: list[dict[str, Any]] | None
    response: str
    other_response: str | None


class ParkedAttempt(TypedDict):
    """Attempt that waits for an answer from outside."""

    ticket: int
    group_id: int
    member: int
    parked_at: datetime
    wake_at: datetime | None
    answered_at: datetime | None
    state: Any


class FailedRow(TypedDict):
    """Row that a stage gave up."""

    experience: int
    group: int | None
    version: int | None
    stage: str
    step: str | None
    failed_at: datetime
    error: str
    obstacle: str | None


class OverlapRow(TypedDict):
    """Evidence that the text of an evaluation's task is in a training task or a response."""

    experience: int | None
    task: int | None
    evaluated: int
    measure: str
    share: float
    text: str


QUERIES: Mapping[str, type] = {
    "read_evaluations": EvaluationRow,
    "compare_evaluations": EvaluationDifference,
    "read_reward_parts": RewardPart,
    "list_reviews": WaitingReview,
    "list_parks": ParkedAttempt,
    "list_failures": FailedRow,
    "strongest_overlaps": OverlapRow,
}
