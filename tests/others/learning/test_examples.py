"""The examples of configs/ learn what their pages say, by the commands that the pages show."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.command import Store, new_store
from tests.support.examples import curve, reward_model, script

RUN_SECONDS = 1800.0  # three minutes on a machine that has nothing else to do

pytestmark = pytest.mark.timeout(RUN_SECONDS)


@pytest.fixture
def empty_store(server: str, template: str, tmp_path: Path) -> Iterator[Store]:
    with new_store(server, template, tmp_path) as store:
        yield store


def test_the_policy_learns_to_use_the_calculator(empty_store: Store, results: list[str]) -> None:
    script(empty_store, "configs/calculator/run.sh", empty_store.folder / "data", timeout=RUN_SECONDS)
    first, *_, last = curve(empty_store, "calculator")
    results.append(f"calculator  {first['right_answers']} to {last['right_answers']} right answers")
    assert first["right_answers"] < 0.6
    assert last["right_answers"] > 0.85
    assert first["right_without_calls"] < 0.05


def test_the_policy_learns_to_cross_the_lake(empty_store: Store, results: list[str]) -> None:
    script(empty_store, "configs/frozenlake/run.sh", empty_store.folder / "data", timeout=RUN_SECONDS)
    first, *_, last = curve(empty_store, "frozenlake")
    results.append(f"frozenlake  {first['goals_reached']} to {last['goals_reached']} of attempts at the goal")
    assert first["goals_reached"] < 0.35
    assert last["goals_reached"] > 0.7


def test_the_policy_learns_what_the_reward_model_learned_from_people(
    empty_store: Store, results: list[str]
) -> None:
    reward_model(empty_store, timeout=RUN_SECONDS)
    first, *_, last = curve(empty_store, "reward_model")
    results.append(f"reward_model {first['mean_digit']} to {last['mean_digit']} of 9")
    assert first["mean_digit"] < 6
    assert last["mean_digit"] > 8
    assert last["reward"] > first["reward"] + 1
