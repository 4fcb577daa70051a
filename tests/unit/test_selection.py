"""Choosing tasks: the shuffle of a pass, the shares of tasksets, how often a task is taken."""

from collections import Counter
from itertools import pairwise

import pytest

from trinity_db.errors import ConfigError
from trinity_db.explorer.config import ExplorerConfig
from trinity_db.explorer.loop import tasks
from trinity_db.store.selection import FLOOR, chance_to_be_taken, shuffled, take_turns


@pytest.mark.parametrize("size", [1, 2, 4, 8, 64, 4096])
def test_a_shuffle_has_every_number_once(size: int) -> None:
    assert sorted(shuffled(range(size), size, "a")) == list(range(size))


def test_a_part_of_a_shuffle_is_the_same_as_in_the_whole() -> None:
    assert shuffled(range(100, 110), 4096, "a") == shuffled(range(4096), 4096, "a")[100:110]


def test_each_number_comes_at_each_place_about_as_often() -> None:
    size, keys = 16, 4000
    found = Counter(
        (place, n) for key in range(keys) for place, n in enumerate(shuffled(range(size), size, str(key)))
    )
    expected = keys / size
    chi_squared = (
        sum((found[place, n] - expected) ** 2 for place in range(size) for n in range(size)) / expected
    )
    # 225 degrees of freedom: mean 225, standard deviation 21.
    assert chi_squared < 225 + 5 * 21


def test_neighbours_of_a_pass_are_others_in_the_next_one() -> None:
    size = 1024
    pairs = [set(pairwise(shuffled(range(size), size, key))) for key in "ab"]
    assert len(pairs[0] & pairs[1]) < 10
    in_order = sum(b - a == 1 for a, b in pairs[0])
    assert in_order < 10


def test_shares_are_exact_however_the_groups_are_split_into_claims() -> None:
    weights = {1: 3.0, 2: 1.0, 3: 0.5}
    issued = dict.fromkeys(weights, 0)
    turns: list[int] = []
    for limit in (1, 2, 40, 7, 400):
        for key in take_turns(weights, issued, limit):
            issued[key] += 1
            turns.append(key)
    assert turns == take_turns(weights, dict.fromkeys(weights, 0), 450)
    assert issued == {1: 300, 2: 100, 3: 50}
    for number in range(1, 451):
        for key, weight in weights.items():
            assert abs(turns[:number].count(key) - number * weight / 4.5) < 1


def test_no_taskset_no_turn() -> None:
    assert take_turns({}, {}, 5) == []


def test_a_task_of_which_nothing_is_known_is_taken_each_time() -> None:
    assert all(chance_to_be_taken(1, 1, target) == 1 for target in (0.0, 0.3, 0.5, 1.0))


def test_a_task_is_taken_the_more_seldom_the_surer_it_is_far_from_the_target() -> None:
    chances = [chance_to_be_taken(1 + solved, 1 + 64 - solved, 0.5) for solved in (32, 44, 52, 64)]
    assert chances == sorted(chances, reverse=True)
    assert chances[0] == 1
    assert chances[-1] == FLOOR
    assert chance_to_be_taken(1, 9, 0.5) > chance_to_be_taken(1, 65, 0.5)


def test_a_select_that_names_no_file_is_said_before_anything_starts() -> None:
    config = ExplorerConfig.model_validate({"tasks": {"name": "select", "query": "no/such.sql"}})
    with pytest.raises(ConfigError, match=r"explorer\.tasks\.query: there is no file no/such\.sql"):
        tasks.check(config.tasks)
