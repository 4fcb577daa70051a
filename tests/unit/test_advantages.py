"""Advantages against numbers worked out by hand, and against plain loops over groups."""

import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest

from trinity_db.trainer.recipes.parts.advantages import (
    Floats,
    asymre,
    group,
    leave_one_out,
    opmd,
    returns_to_go,
    reward,
    whiten,
)

REWARDS, GROUPS = [1, 0, 3, 0, 1, 2, 1, 5], [7, 7, 2, 7, 7, 2, 2, 4]
COMPARING: list[Callable[..., Floats]] = [
    group,
    partial(group, scale_rewards="batch"),
    partial(group, scale_rewards="none"),
    partial(group, unbiased=False),
    leave_one_out,
    opmd,
    partial(opmd, baseline="logavgexp", temperature=0.5),
]
ALL = [*COMPARING, asymre, lambda rewards, groups: reward(rewards)]


def by_loop(of_one: Callable[[list[float], int], float]) -> list[float]:
    """Each rollout's advantage from the rewards of its group and its own place among them."""
    advantages = []
    for n, of in enumerate(GROUPS):
        places = [place for place, other in enumerate(GROUPS) if other == of]
        advantages.append(of_one([float(REWARDS[place]) for place in places], places.index(n)))
    return advantages


def test_group_advantages_are_in_units_of_the_groups_standard_deviation() -> None:
    # Group 7: mean 0.5, unbiased std sqrt(1/3). Group 2: mean 2, std 1. Group 4 is one rollout.
    unit = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    assert group(REWARDS, GROUPS) == pytest.approx([unit, -unit, 1, -unit, unit, 0, -1, 0], abs=2e-6)


def test_group_advantages_of_a_whole_population_are_larger() -> None:
    unit, other = 0.5 / (0.5 + 1e-6), 1 / (math.sqrt(2 / 3) + 1e-6)
    expected = [unit, -unit, other, -unit, unit, 0, -other, 0]
    assert group(REWARDS, GROUPS, unbiased=False) == pytest.approx(expected)


def test_group_advantages_without_scale_are_differences_to_the_mean() -> None:
    expected = [0.5, -0.5, 1, -0.5, 0.5, 0, -1, 0]
    assert group(REWARDS, GROUPS, scale_rewards="none") == pytest.approx(expected)


@pytest.mark.parametrize(("unbiased", "std"), [(True, statistics.stdev), (False, statistics.pstdev)])
def test_group_advantages_in_units_of_the_batch_take_the_means_of_groups(
    unbiased: bool, std: Callable[[Sequence[float]], float]
) -> None:
    expected = [d / (std(REWARDS) + 1e-6) for d in (0.5, -0.5, 1, -0.5, 0.5, 0, -1, 0)]
    given = group(REWARDS, GROUPS, scale_rewards="batch", unbiased=unbiased)
    assert given == pytest.approx(expected, abs=1e-12)


def test_leaving_one_out_compares_with_the_mean_of_the_others() -> None:
    def of_one(rewards: list[float], own: int) -> float:
        others = rewards[:own] + rewards[own + 1 :]
        return rewards[own] - sum(others) / len(others) if others else 0.0

    assert leave_one_out(REWARDS, GROUPS) == pytest.approx(by_loop(of_one), abs=1e-12)


def test_the_reward_as_it_is_knows_no_groups() -> None:
    assert reward(REWARDS).tolist() == REWARDS


@pytest.mark.parametrize("temperature", [0.1, 1.0, 7.0])
def test_opmd_takes_the_logarithm_of_the_average_exponential(temperature: float) -> None:
    def of_one(rewards: list[float], own: int) -> float:
        average = sum(math.exp(value / temperature) for value in rewards) / len(rewards)
        return rewards[own] - temperature * math.log(average)

    given = opmd(REWARDS, GROUPS, baseline="logavgexp", temperature=temperature)
    assert given == pytest.approx(by_loop(of_one), abs=1e-12)


def test_opmd_lies_between_the_mean_and_the_best() -> None:
    cold = opmd(REWARDS, GROUPS, baseline="logavgexp", temperature=1e-6)
    assert cold == pytest.approx(by_loop(lambda rewards, own: rewards[own] - max(rewards)), abs=1e-5)
    hot = opmd(REWARDS, GROUPS, baseline="logavgexp", temperature=1e6)
    assert hot == pytest.approx(opmd(REWARDS, GROUPS), abs=1e-5)


def test_opmd_of_large_rewards_stays_finite() -> None:
    given = opmd([1e6, -1e6], [0, 0], baseline="logavgexp", temperature=0.01)
    assert given == pytest.approx([0.01 * math.log(2), -2e6 + 0.01 * math.log(2)])


def test_asymre_shifts_the_mean_also_where_nothing_differs() -> None:
    expected = by_loop(lambda rewards, own: rewards[own] - (sum(rewards) / len(rewards) - 0.25))
    assert asymre(REWARDS, GROUPS, baseline_shift=-0.25) == pytest.approx(expected)
    assert asymre([0.1, 0.1, 0.1, 5.0], [0, 0, 0, 1]).tolist() == [0.1] * 4


@pytest.mark.parametrize("advantage", COMPARING)
def test_a_group_with_nothing_to_compare_has_no_advantage(advantage: Callable[..., Floats]) -> None:
    # The mean of three times 0.1 is not exactly 0.1 in floating point.
    assert advantage([0.1, 0.1, 0.1, 5.0], [0, 0, 0, 1]).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("advantage", ALL)
def test_advantages_do_not_depend_on_the_order_of_rows(advantage: Callable[..., Floats]) -> None:
    rng = np.random.default_rng(0)
    rewards, groups, order = rng.normal(size=40), rng.integers(0, 6, 40), rng.permutation(40)
    expected = advantage(rewards, groups)[order]
    assert advantage(rewards[order], groups[order]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("advantage", ALL)
def test_advantages_leave_the_rewards_as_they_are(advantage: Callable[..., Floats]) -> None:
    rewards = np.array(REWARDS, np.float64)
    advantage(rewards, np.array(GROUPS))[:] = 9.0
    assert rewards.tolist() == REWARDS


def test_a_token_earns_the_reward_less_the_penalties_from_it_on() -> None:
    assert returns_to_go(2.0, np.array([0.5, -0.25, 1.0])) == pytest.approx([0.75, 1.25, 1.0])
    assert returns_to_go(2.0, np.zeros(3)).tolist() == [2.0, 2.0, 2.0]


def test_whitened_tokens_have_mean_zero_and_variance_one_over_the_whole_step() -> None:
    rng = np.random.default_rng(0)
    rows = [rng.normal(3.0, 5.0, size) for size in (1, 7, 30)]
    whitened = whiten(rows)
    assert [len(row) for row in whitened] == [1, 7, 30]
    tokens = np.concatenate(whitened)
    assert (tokens.mean(), tokens.var(ddof=1)) == pytest.approx((0.0, 1.0))
    assert np.argsort(tokens).tolist() == np.argsort(np.concatenate(rows)).tolist()


def test_a_long_response_weighs_by_its_tokens_when_whitened() -> None:
    # Three tokens of reward 1, one of 5: mean 2, unbiased variance (3 * 1 + 9) / 3.
    short, long = whiten([np.full(1, 5.0), np.full(3, 1.0)])
    assert (short.tolist(), long.tolist()) == (pytest.approx([1.5]), pytest.approx([-0.5] * 3))


@pytest.mark.parametrize("rows", [[np.full(3, 0.1), np.full(4, 0.1)], [np.full(1, 0.7)]])
def test_tokens_that_are_all_equal_have_no_advantage_when_whitened(rows: list[Floats]) -> None:
    assert np.concatenate(whiten(rows)).tolist() == [0.0] * sum(map(len, rows))
