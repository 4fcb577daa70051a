"""Measures of a batch, against numbers worked out by hand."""

import math

import numpy as np
import pytest

from trinity_db.arrays.codec import Payload
from trinity_db.store.metrics import Outcomes
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.rows.step_metrics import of_rollouts, of_time

NOTHING = Outcomes(None, {})


def payload(prompt: int, response: int) -> Payload:
    tokens = np.arange(prompt + response, dtype=np.int32)
    return Payload(tokens, tokens >= prompt)


ROWS = [payload(2, 1), payload(3, 4), payload(1, 2), payload(1, 3)]


def test_rewards_lengths_and_staleness_are_those_of_the_rows() -> None:
    columns = {
        "rewards": np.array([1.0, 0.0, 0.5, 0.5]),
        "groups": np.array([7, 7, 3, 3]),
        "staleness": np.array([0, 0, 2, 1]),
    }
    assert of_rollouts(Batch(ROWS, columns), NOTHING) == pytest.approx(
        {
            "reward": 0.5,
            "reward_std": math.sqrt((0.25 + 0.25) / 3),
            "frac_reward_zero_std": 0.5,
            "completions/mean_length": 2.5,
            "completions/min_length": 1.0,
            "completions/max_length": 4.0,
            "sample/staleness_mean": 0.75,
            "sample/staleness_max": 2.0,
        }
    )


def test_groups_of_unequal_size_count_by_their_rows() -> None:
    columns = {"rewards": np.array([1.0, 0.1 + 0.2, 0.3, 0.3]), "groups": np.array([1, 2, 2, 2])}
    assert of_rollouts(Batch(ROWS, columns), NOTHING)["frac_reward_zero_std"] == 1.0
    columns["rewards"][3] = 0.0
    assert of_rollouts(Batch(ROWS, columns), NOTHING)["frac_reward_zero_std"] == 0.25


def test_rows_of_experts_do_not_count() -> None:
    columns = {
        "rewards": np.array([1.0, 0.0, 0.0, 0.0]),
        "groups": np.array([7, 7, 0, 0]),
        "staleness": np.array([1, 1, 0, 0]),
        "is_expert": np.array([False, False, True, True]),
    }
    found = of_rollouts(Batch(ROWS, columns), NOTHING)
    assert (found["reward"], found["sample/staleness_mean"]) == (0.5, 1.0)
    assert (found["frac_reward_zero_std"], found["completions/mean_length"]) == (0.0, 2.5)


def test_rows_that_are_only_compared_with_do_not_count() -> None:
    columns = {
        "rewards": np.array([1.0, 0.0, 0.5, 7.0]),
        "groups": np.zeros(4),
        "weight": np.array([1, 1, 1, 0.0]),
    }
    found = of_rollouts(Batch(ROWS, columns), NOTHING)
    assert (found["reward"], found["completions/max_length"]) == (0.5, 4.0)


def test_a_single_row_has_no_deviation_and_rows_without_rewards_have_none_of_these() -> None:
    alone = Batch(ROWS[:1], {"rewards": np.array([3.0]), "groups": np.array([1])})
    assert of_rollouts(alone, NOTHING)["reward_std"] == 0.0
    assert set(of_rollouts(Batch(ROWS), NOTHING)) == {
        f"completions/{which}_length" for which in ("mean", "min", "max")
    }


def test_what_the_store_knows_has_the_names_of_trl() -> None:
    found = of_rollouts(Batch(ROWS), Outcomes(0.25, {"exact_match": (0.5, 0.1)}))
    assert found["completions/clipped_ratio"] == 0.25
    assert (found["rewards/exact_match/mean"], found["rewards/exact_match/std"]) == (0.5, 0.1)


def test_throughput_is_of_waiting_and_computing_and_of_each_process() -> None:
    assert of_time(Batch(ROWS), waited=1.0, computed=1.125, ranks=2) == {
        "time/wait_for_batch": 1.0,
        "time/step": 1.125,
        "step_time": 2.125,
        "perf/throughput": 17 / 2.125 / 2,
    }
