"""The score processor: reward functions over clean rows, one reward event for each."""

import math
import reprlib
from typing import Any

from psycopg.rows import DictRow

from trinity_db.database import storable
from trinity_db.functions import describe_error
from trinity_db.processors import rewards
from trinity_db.processors.config import ScoreConfig
from trinity_db.schema.states import Outcome
from trinity_db.store.rewards import MAX_REWARD, RewardEvent
from trinity_db.store.rows import Verdict


class Scorer:
    """The configured reward functions, loaded."""

    def __init__(self, config: ScoreConfig) -> None:
        self._functions = [
            (reward.function, reward.weight, rewards.load(reward.function, reward.options))
            for reward in config.functions
        ]

    def judge(self, row: DictRow) -> Verdict:
        """The rewards of one clean row. A function that raises or returns no finite number fails the row."""
        events = []
        for name, weight, function in self._functions:
            try:
                result = function(row)
            except Exception as error:  # a user's function may raise anything; the row keeps the error
                return _failed(row, f"{name} raised {describe_error(error)}")
            value = _number(result)
            if value is None:
                return _failed(row, f"{name} returned {reprlib.repr(result)}, not one number")
            if not math.isfinite(value):
                return _failed(row, f"{name} returned {value}, not a finite number")
            if abs(value) * max(abs(weight), 1.0) > MAX_REWARD:
                return _failed(row, f"{name} returned {value}, beyond {MAX_REWARD:g}")
            events.append(_event(row, name, value, weight))
        return Verdict(row["id"], row["attempt"], events=events)


def _event(row: DictRow, name: str, value: float, weight: float) -> RewardEvent:
    """About the rollout; where that has several steps, about the step alone."""
    if row["last_step"]:
        return RewardEvent(None, name, value, weight, experience_id=row["id"])
    return RewardEvent(row["rollout_id"], name, value, weight)


def _number(result: Any) -> float | None:
    """What a reward function returned as a number; None where it is none."""
    try:
        return float(result)
    except (TypeError, ValueError, OverflowError):
        return None


def _failed(row: DictRow, error: str) -> Verdict:
    return Verdict(row["id"], row["attempt"], Outcome.FAILED, detail={"error": storable(error)})
