"""Which side of a run waits for the other: what an explorer counts, and what status says."""

from typing import Any

import pytest

from trinity_db.explorer.loop.idle_time import EmptyPlaces
from trinity_db.insight.status import _waiting


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_only_places_that_no_group_may_fill_count_as_waiting() -> None:
    clock = Clock()
    empty = EmptyPlaces(8, clock)
    clock.now = 5
    empty.look(8)
    empty.is_held_back = True
    clock.now = 7
    empty.look(4)
    clock.now = 10
    empty.look(8)
    empty.is_held_back = False
    clock.now = 16
    empty.look(8)
    assert empty.measure() == {"explore/wait_for_training": 2 * 4 / 8 + 3, "explore/time": 16}
    clock.now = 20
    assert empty.measure() == {"explore/wait_for_training": 0, "explore/time": 4}


@pytest.mark.parametrize(
    ("trainer", "explorers", "max_staleness", "said"),
    [
        (0.62, 0.03, 1, "trainer 62% of its time for rollouts, explorers 3% for training: add explorers"),
        (0.05, 0.5, 1, "training is slower"),
        (0.5, 0.5, 0, "they take turns"),
        (0.5, 0.5, 4, "the processors"),
        (0.5, 0.5, None, "the processors"),
    ],
)
def test_status_says_what_helps(trainer: float, explorers: float, max_staleness: Any, said: str) -> None:
    found = _waiting({"trainer": trainer, "explorers": explorers, "max_staleness": max_staleness})
    assert found is not None
    assert said in found


def test_status_gives_no_advice_where_little_time_is_lost() -> None:
    found = _waiting({"trainer": 0.1, "explorers": 0.2, "max_staleness": 1})
    assert found == "trainer 10% of its time for rollouts, explorers 20% for training"
    assert _waiting({"trainer": None, "explorers": 0.2, "max_staleness": 1}) is None
