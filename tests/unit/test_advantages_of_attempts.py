"""Advantages of attempts that have several steps, or a greedy one beside them, against plain loops."""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from trinity_db.trainer.recipes.parts.advantages import (
    Floats,
    gigpo,
    group,
    leave_one_out,
    multi_step_group,
    remax,
)

# Two groups of three attempts, and one of a single attempt. Rows are in no order; state 5 is met by several
# attempts of group 7 and twice by one of them, and by one of group 2.
ROWS = [
    # reward, group, rollout, step, state, greedy
    (0.5, 7, 11, 1, 5, False),
    (0.0, 7, 10, 0, 5, False),
    (1.0, 7, 10, 1, 6, False),
    (0.0, 2, 20, 0, 5, False),
    (-0.25, 7, 11, 0, 5, False),
    (2.0, 7, 12, 0, 5, True),
    (3.0, 2, 21, 0, 8, True),
    (1.0, 2, 20, 2, 9, False),
    (0.75, 2, 20, 1, 8, False),
    (0.25, 2, 22, 0, 4, False),
    (4.0, 9, 30, 0, 5, False),
]
REWARDS, GROUPS, ROLLOUTS, STEPS, STATES, GREEDY = (list(column) for column in zip(*ROWS, strict=True))

PARTS: list[Callable[..., Floats]] = [
    lambda *columns: multi_step_group(*columns[:4]),
    lambda *columns: multi_step_group(*columns[:4], scale_rewards="batch", step_norm=True),
    lambda *columns: gigpo(*(*columns[:5], [False] * len(columns[0])), scale_rewards="group"),
    lambda *columns: gigpo(*(*columns[:5], [True] * len(columns[0])), scale_rewards="none"),
    lambda *columns: remax(columns[0], columns[1], columns[2], columns[3], columns[5]),
]
"""Each takes all columns in the order of ROWS."""


def attempts() -> dict[int, dict[int, list[tuple[int, int]]]]:
    """By group and rollout: steps and rows, in order."""
    found: dict[int, dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for row, (of, rollout, step) in enumerate(zip(GROUPS, ROLLOUTS, STEPS, strict=True)):
        found[of][rollout].append((step, row))
        found[of][rollout].sort()
    return found


def broadcast(of_group: Callable[[list[float], int], Sequence[float]]) -> list[float]:
    """What a function of a group's final rewards and its number gives to each attempt, at all of its rows."""
    result = [math.nan] * len(ROWS)
    for number, members in attempts().items():
        finals = [REWARDS[steps[-1][1]] for steps in members.values()]
        for steps, value in zip(members.values(), of_group(finals, number), strict=True):
            for _, row in steps:
                result[row] = value
    return result


def lengths() -> list[int]:
    """Steps of each row's attempt."""
    return [ROLLOUTS.count(rollout) for rollout in ROLLOUTS]


@pytest.mark.parametrize("step_norm", [False, True])
def test_all_steps_of_an_attempt_have_the_advantage_of_its_final_reward(step_norm: bool) -> None:
    def of_group(finals: list[float], _: int) -> list[float]:
        std = statistics.stdev(finals) if len(finals) > 1 else 1.0
        return [(final - statistics.fmean(finals)) / (std + 1e-6) for final in finals]

    expected = broadcast(of_group)
    if step_norm:
        expected = [value / length for value, length in zip(expected, lengths(), strict=True)]
    given = multi_step_group(REWARDS, GROUPS, ROLLOUTS, STEPS, step_norm=step_norm)
    assert given == pytest.approx(expected, abs=1e-12)


def test_a_batch_of_attempts_counts_each_of_them_once() -> None:
    finals = [REWARDS[steps[-1][1]] for members in attempts().values() for steps in members.values()]
    unit = statistics.stdev(finals) + 1e-6
    expected = broadcast(lambda finals, _: [(final - statistics.fmean(finals)) / unit for final in finals])
    given = multi_step_group(REWARDS, GROUPS, ROLLOUTS, STEPS, scale_rewards="batch")
    assert given == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("scale_rewards", ["group", "none"])
@pytest.mark.parametrize(("omega", "gamma"), [(1.0, 0.95), (0.3, 1.0), (0.0, 0.5)])
def test_gigpo_adds_what_attempts_and_what_steps_in_equal_states_are_worth(
    scale_rewards: Any, omega: float, gamma: float
) -> None:
    def relative(values: Sequence[float]) -> list[float]:
        mean = statistics.fmean(values)
        scaled = scale_rewards == "group" and len(values) > 1
        return [(value - mean) / (statistics.stdev(values) + 1e-6 if scaled else 1.0) for value in values]

    expected, returns = [0.0] * len(ROWS), [0.0] * len(ROWS)
    anchors: dict[tuple[int, int], list[int]] = defaultdict(list)
    for of, members in attempts().items():
        totals = [sum(REWARDS[row] for _, row in steps) for steps in members.values()]
        for steps, of_episode in zip(members.values(), relative(totals), strict=True):
            for place, (_, row) in enumerate(steps):
                expected[row] += of_episode
                later = [REWARDS[other] for _, other in steps[place:]]
                returns[row] = sum(gamma**k * value for k, value in enumerate(later))
                anchors[of, STATES[row]].append(row)
    for rows in anchors.values():
        for row, of_step in zip(rows, relative([returns[row] for row in rows]), strict=True):
            expected[row] += omega * of_step
    columns = REWARDS, GROUPS, ROLLOUTS, STEPS, STATES, [False] * len(ROWS)
    given = gigpo(*columns, omega=omega, gamma=gamma, scale_rewards=scale_rewards)
    assert given == pytest.approx(expected, abs=1e-9)


def test_the_greedy_attempt_is_what_the_others_are_compared_with() -> None:
    def of_group(finals: list[float], number: int) -> list[float]:
        greedy = {7: 2.0, 2: 3.0}
        return [0.0] if number == 9 else [final - greedy[number] for final in finals]

    assert remax(REWARDS, GROUPS, ROLLOUTS, STEPS, GREEDY) == pytest.approx(broadcast(of_group))


def test_a_group_without_its_greedy_attempt_is_compared_with_the_mean_of_its_others() -> None:
    none = [False] * len(ROWS)

    def of_group(finals: list[float], _: int) -> list[float]:
        return list(leave_one_out(finals, [0] * len(finals)))

    assert remax(REWARDS, GROUPS, ROLLOUTS, STEPS, none) == pytest.approx(broadcast(of_group))


def test_attempts_of_one_step_are_compared_as_rows_are() -> None:
    rng = np.random.default_rng(0)
    rewards, groups, rollouts = rng.normal(size=20), rng.integers(0, 4, 20), rng.permutation(20)
    one = np.zeros(20, np.int64)
    given = multi_step_group(rewards, groups, rollouts, one, step_norm=True)
    assert given == pytest.approx(group(rewards, groups), abs=1e-12)
    alone = np.arange(20)  # a state of its own for each
    centered = group(rewards, groups, scale_rewards="none")
    shares = np.arange(20) % 2
    assert gigpo(rewards, groups, rollouts, one, alone, shares) == pytest.approx(centered, abs=1e-12)


def test_gigpo_takes_a_reward_that_the_rows_of_an_attempt_share_as_that_of_each() -> None:
    """Three sequences that earned 0.3 together, beside two steps of 0.25 each, in two states."""
    rewards, rollouts, shares = [0.3] * 3 + [0.25] * 2, [1] * 3 + [2] * 2, [True] * 3 + [False] * 2
    steps, states = [0, 1, 2, 0, 1], [8, 9, 9, 8, 9]
    given = gigpo(rewards, [0] * 5, rollouts, steps, states, shares, omega=2.0, gamma=0.5)
    episodes = [0.3 - 0.4] * 3 + [0.5 - 0.4] * 2
    first, second = (0.3 + 0.375) / 2, (0.3 + 0.3 + 0.25) / 3
    returns = [0.3 - first, 0.3 - second, 0.3 - second, 0.375 - first, 0.25 - second]
    expected = [episode + 2.0 * earned for episode, earned in zip(episodes, returns, strict=True)]
    assert given == pytest.approx(expected, abs=1e-12)
    alike = gigpo([0.1] * 4, [0] * 4, [1, 1, 1, 2], [0, 1, 2, 0], [5] * 4, [True] * 3 + [False])
    assert not alike.any(), "exactly, or equal rewards would look different"


@pytest.mark.parametrize("advantage", PARTS)
def test_advantages_do_not_depend_on_the_order_of_rows(advantage: Callable[..., Floats]) -> None:
    columns: list[NDArray[Any]] = [np.array(column) for column in zip(*ROWS, strict=True)]
    order = np.random.default_rng(1).permutation(len(ROWS))
    expected = advantage(*columns)[order]
    assert advantage(*(column[order] for column in columns)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("advantage", PARTS)
def test_attempts_that_all_ended_alike_have_no_advantage(advantage: Callable[..., Floats]) -> None:
    columns = ([0.1] * 6, [0] * 6, [1, 1, 2, 2, 3, 3], [0, 1] * 3, [4, 5] * 3, [False] * 4 + [True] * 2)
    assert advantage(*columns) == pytest.approx([0.0] * 6, abs=1e-12)
