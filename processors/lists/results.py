"""Applies results of steps to a row's verdict; each list interprets results in its own way."""

import math
import reprlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from trinity_db.postgres.connection import storable
from trinity_db.processors.lists.step import Answer, Drop, Step
from trinity_db.schema.states import Outcome
from trinity_db.store.processing import StepVerdict
from trinity_db.store.rewards import MAX_REWARD, RewardEvent
from trinity_db.store.scores import Score

LONGEST_REASON = 200  # characters; reasons are indexed, and an index entry holds 2,704 bytes
LONGEST_NAME = 500  # characters of a reward event's name, for the same reason
UNNAMED = f"a name has at most {LONGEST_NAME} characters, without NUL or lone surrogates"
LONGEST_WHOLE = 1024  # bits of an integer in a detail; JSON parsers reject longer ones

Reading = Callable[[Step, Mapping[str, Any], StepVerdict, Any], StepVerdict]
"""Function that adds one result to a verdict: from step, columns of the row, verdict so far, and result."""


def of_cleaning(step: Step, row: Mapping[str, Any], verdict: StepVerdict, result: Any) -> StepVerdict:
    """Apply a result of `clean`: None passes the row; a string is the reason to drop it.

    The detail of an answer of None is recorded with the row.
    """
    detail = None
    if isinstance(result, Answer):
        result, detail = result.value, plain(result.detail)
    if result is None:
        return replace(verdict, notes={**verdict.notes, step.name: detail}) if detail else verdict
    if isinstance(result, str):
        return dropped(verdict, step, Drop(result, detail))
    return failed(verdict, step, f"{step.name} returned {reprlib.repr(result)}, neither a reason nor None")


def of_scoring(step: Step, row: Mapping[str, Any], verdict: StepVerdict, result: Any) -> StepVerdict:
    """Apply a result of `score`: a number is a reward event named after the step; a mapping gives one per
    key.

    Values are weighted. An answer in a mapping has its own weight and details in addition to those of the
    whole. Another model's log-probabilities of the row's tokens are stored with it, and are not a reward.
    """
    detail = None
    if isinstance(result, Answer):
        result, detail = result.value, plain(result.detail)
    if isinstance(result, Score):
        return replace(verdict, model_scores=[*verdict.model_scores, result])
    if not isinstance(result, Mapping):
        result = {"": result}
    for part, value in result.items():
        name, weight, about = f"{step.name}/{part}" if part else step.name, step.weight, detail
        if isinstance(value, Answer):
            about = {**(detail or {}), **(plain(value.detail) or {})}
            value, weight = value.value, step.weight * value.weight
        if name != storable(name) or len(name) > LONGEST_NAME:
            return failed(
                verdict, step, f"{step.name} returned a reward named {reprlib.repr(part)}: {UNNAMED}"
            )
        number = _number(value)
        if number is None:
            return failed(verdict, step, f"{name} returned {reprlib.repr(value)}, not one number")
        if not math.isfinite(weight):
            return failed(verdict, step, f"{name} has the weight {weight}, not a finite number")
        if not math.isfinite(number):
            return failed(verdict, step, f"{name} returned {number}, not a finite number")
        if abs(number) * max(abs(weight), 1.0) > MAX_REWARD:
            return failed(verdict, step, f"{name} returned {number}, beyond {MAX_REWARD:g}")
        verdict = replace(
            verdict,
            events=[*verdict.events, _event(row, RewardEvent(None, name, number, weight, None, about))],
        )
    return verdict


def of_priority(step: Step, row: Mapping[str, Any], verdict: StepVerdict, result: Any) -> StepVerdict:
    """Apply a result of `priority`: a non-negative factor of the row's priority, raised to the step's
    weight."""
    if isinstance(result, Answer):
        result = result.value
    number = _number(result)
    if number is None:
        return failed(verdict, step, f"{step.name} returned {reprlib.repr(result)}, not one number")
    if not (math.isfinite(number) and 0 <= number <= MAX_REWARD):
        return failed(verdict, step, f"{step.name} returned {number}, not a number from 0 to {MAX_REWARD:g}")
    try:
        factor = number**step.weight
    except OverflowError:
        factor = sys.float_info.max  # not infinity, because infinity times 0 is NaN
    return replace(
        verdict, priority=min(factor * (1.0 if verdict.priority is None else verdict.priority), MAX_REWARD)
    )


def dropped(verdict: StepVerdict, step: Step, drop: Drop) -> StepVerdict:
    """Return a verdict that drops the row and discards other results. A long reason is kept whole in the
    detail."""
    reason, detail = storable(drop.reason), plain(drop.detail)
    if len(reason) > LONGEST_REASON:
        detail = {"reason": reason, **(detail or {})}
        reason = f"{reason[:LONGEST_REASON]}…"
    return StepVerdict(verdict.id, verdict.attempt, Outcome.DROPPED, reason, detail, step=step.name)


def failed(verdict: StepVerdict, step: Step, error: str) -> StepVerdict:
    """Return a verdict that the step failed to judge the row, which is retried."""
    detail = {"error": storable(error)}
    return StepVerdict(verdict.id, verdict.attempt, Outcome.FAILED, detail=detail, step=step.name)


def _event(row: Mapping[str, Any], event: RewardEvent) -> RewardEvent:
    """Assign the event to the rollout, or to the single step if the rollout has several."""
    if row["last_step"]:
        return replace(event, experience_id=row["id"])
    return replace(event, rollout_id=row["rollout_id"])


def plain(value: Any) -> Any:
    """Convert a step's detail to a form that Postgres accepts; values that JSON lacks become strings."""
    if isinstance(value, Mapping):
        return {storable(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, int) and value.bit_length() > LONGEST_WHOLE:
        return str(value)
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return storable(str(value))


def _number(result: Any) -> float | None:
    """Return a step's result as a number; None if it is not a number."""
    try:
        return float(result)
    except (TypeError, ValueError, OverflowError):
        return None
