"""What the results of steps mean for a row: each list has its own reading of them."""

import math
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from trinity_db.database import storable
from trinity_db.processors.step import Drop, Step
from trinity_db.schema.states import Outcome
from trinity_db.store.processing import Verdict
from trinity_db.store.rewards import MAX_REWARD, RewardEvent
from trinity_db.store.scores import Score

Reading = Callable[[Step, Mapping[str, Any], Verdict, Any], Verdict]
"""The verdict on a row with one more result: from step, columns of the row, verdict so far, and result."""


def of_cleaning(step: Step, row: Mapping[str, Any], verdict: Verdict, result: Any) -> Verdict:
    """None passes the row; a text is the reason why it is dropped."""
    if result is None:
        return verdict
    if isinstance(result, str):
        return dropped(verdict, step, Drop(result))
    return failed(verdict, step, f"{step.name} returned {reprlib.repr(result)}, neither a reason nor None")


def of_scoring(step: Step, row: Mapping[str, Any], verdict: Verdict, result: Any) -> Verdict:
    """A number is a reward event of the step's name, a mapping one for each of its names; both are weighted.

    Another model's scores of the row's tokens are stored with it, and are no reward.
    """
    if isinstance(result, Score):
        return replace(verdict, said=[*verdict.said, result])
    if not isinstance(result, Mapping):
        result = {"": result}
    for part, value in result.items():
        name = f"{step.name}/{part}" if part else step.name
        number = _number(value)
        if number is None:
            return failed(verdict, step, f"{name} returned {reprlib.repr(value)}, not one number")
        if not math.isfinite(number):
            return failed(verdict, step, f"{name} returned {number}, not a finite number")
        if abs(number) * max(abs(step.weight), 1.0) > MAX_REWARD:
            return failed(verdict, step, f"{name} returned {number}, beyond {MAX_REWARD:g}")
        verdict = replace(verdict, events=[*verdict.events, _event(row, name, number, step.weight)])
    return verdict


def dropped(verdict: Verdict, step: Step, drop: Drop) -> Verdict:
    """The row is dropped, and no other result about it counts."""
    return Verdict(verdict.id, verdict.attempt, Outcome.DROPPED, drop.reason, drop.detail, step=step.name)


def failed(verdict: Verdict, step: Step, error: str) -> Verdict:
    """The step could not judge the row, which is tried again."""
    detail = {"error": storable(error)}
    return Verdict(verdict.id, verdict.attempt, Outcome.FAILED, detail=detail, step=step.name)


def _event(row: Mapping[str, Any], name: str, value: float, weight: float) -> RewardEvent:
    """About the rollout. If it has several steps, only about the step."""
    if row["last_step"]:
        return RewardEvent(None, name, value, weight, experience_id=row["id"])
    return RewardEvent(row["rollout_id"], name, value, weight)


def _number(result: Any) -> float | None:
    """What a step returned as a number; None where it is none."""
    try:
        return float(result)
    except (TypeError, ValueError, OverflowError):
        return None
