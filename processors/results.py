"""What the results of steps mean for a row: each list has its own reading of them."""

import math
import reprlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from trinity_db.database import storable
from trinity_db.processors.step import Answer, Drop, Step
from trinity_db.schema.states import Outcome
from trinity_db.store.processing import Verdict
from trinity_db.store.rewards import MAX_REWARD, RewardEvent
from trinity_db.store.scores import Score

LONGEST_REASON = 200  # characters; reasons are in an index, whose entries hold 2,704 bytes
LONGEST_NAME = 500  # characters of a reward event's name, for the same reason
UNNAMED = f"a name has at most {LONGEST_NAME} characters, none of them NUL or half of a surrogate pair"
LONGEST_WHOLE = 1024  # bits of a whole number in a detail; readers of JSON take no longer ones

Reading = Callable[[Step, Mapping[str, Any], Verdict, Any], Verdict]
"""The verdict on a row with one more result: from step, columns of the row, verdict so far, and result."""


def of_cleaning(step: Step, row: Mapping[str, Any], verdict: Verdict, result: Any) -> Verdict:
    """None passes the row; a text is the reason why it is dropped.

    The detail of an answer of None is recorded with the row that passes.
    """
    detail = None
    if isinstance(result, Answer):
        result, detail = result.value, plain(result.detail)
    if result is None:
        return replace(verdict, notes={**verdict.notes, step.name: detail}) if detail else verdict
    if isinstance(result, str):
        return dropped(verdict, step, Drop(result, detail))
    return failed(verdict, step, f"{step.name} returned {reprlib.repr(result)}, neither a reason nor None")


def of_scoring(step: Step, row: Mapping[str, Any], verdict: Verdict, result: Any) -> Verdict:
    """A number is a reward event of the step's name, a mapping one for each of its names; all are weighted.

    An answer in a mapping has a weight and details of its own beside those of the whole.

    Another model's scores of the row's tokens are stored with it, and are no reward.
    """
    detail = None
    if isinstance(result, Answer):
        result, detail = result.value, plain(result.detail)
    if isinstance(result, Score):
        return replace(verdict, said=[*verdict.said, result])
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


def of_priority(step: Step, row: Mapping[str, Any], verdict: Verdict, result: Any) -> Verdict:
    """A number from 0 on is a factor of the row's priority, to the power of the step's weight."""
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
        factor = sys.float_info.max  # not infinity, whose product with 0 is no number
    return replace(
        verdict, priority=min(factor * (1.0 if verdict.priority is None else verdict.priority), MAX_REWARD)
    )


def dropped(verdict: Verdict, step: Step, drop: Drop) -> Verdict:
    """The row is dropped, and no other result about it counts. A long reason stands whole in the detail."""
    reason, detail = storable(drop.reason), plain(drop.detail)
    if len(reason) > LONGEST_REASON:
        detail = {"reason": reason, **(detail or {})}
        reason = f"{reason[:LONGEST_REASON]}…"
    return Verdict(verdict.id, verdict.attempt, Outcome.DROPPED, reason, detail, step=step.name)


def failed(verdict: Verdict, step: Step, error: str) -> Verdict:
    """The step could not judge the row, which is tried again."""
    detail = {"error": storable(error)}
    return Verdict(verdict.id, verdict.attempt, Outcome.FAILED, detail=detail, step=step.name)


def _event(row: Mapping[str, Any], event: RewardEvent) -> RewardEvent:
    """About the rollout. If it has several steps, only about the step."""
    if row["last_step"]:
        return replace(event, experience_id=row["id"])
    return replace(event, rollout_id=row["rollout_id"])


def plain(value: Any) -> Any:
    """A step's detail in a form that Postgres takes; what JSON has not, as its text."""
    if isinstance(value, Mapping):
        return {storable(str(key)): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, int) and value.bit_length() > LONGEST_WHOLE:
        return str(value)
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return storable(str(value))


def _number(result: Any) -> float | None:
    """What a step returned as a number; None where it is none."""
    try:
        return float(result)
    except (TypeError, ValueError, OverflowError):
        return None
