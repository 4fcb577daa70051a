"""How often `checkpoint_every: auto` writes a checkpoint."""

import time

import pytest

from trinity_db.trainer.checkpoints.cadence import Cadence, interval


@pytest.mark.parametrize(
    ("cost", "seconds"),
    [
        (0.02, pytest.approx(58.8, abs=0.1)),  # sqrt(2 * 0.02 * 86400)
        (4.5, 600.0),
        (30.0, 600.0),
        (60.0, 1200.0),
        (None, 600.0),
    ],
)
def test_the_interval_follows_the_cost(cost: float | None, seconds: float) -> None:
    assert interval(cost) == seconds


@pytest.mark.parametrize("cost", [0.001, 0.1, 1.0, 10.0, 100.0, 1000.0])
def test_checkpoints_take_below_a_twentieth_of_the_time(cost: float) -> None:
    assert cost / (cost + interval(cost)) < 0.05


def test_the_time_since_a_checkpoint_of_an_earlier_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    assert not Cadence(age=599.0).is_due
    resumed = Cadence(age=600.0)
    was_due = resumed.is_due
    resumed.written(cost=0.02)
    assert (was_due, resumed.is_due) == (True, False)
    now[0] += 59
    assert resumed.is_due
