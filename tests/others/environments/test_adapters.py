"""Environments of packages, each with the real package, in processes of an interpreter of their own."""

import json

import pytest

from tests.others.environments.conftest import PYTHON, attempted, played
from trinity_db.data.files.generated import written
from trinity_db.errors import ConfigError, ImportFileError
from trinity_db.explorer.config import EnvironmentConfig
from trinity_db.explorer.environments.played import Environment

LAKE = {
    "name": "gymnasium",
    "python": PYTHON,
    "id": "FrozenLake-v1",
    "actions": ["left", "down", "right", "up"],
    "options": {"is_slippery": False},
}


def test_a_lake_is_crossed_by_words_with_a_row_for_each_action() -> None:
    way = ["Down!", "I go down", "what?", "right", "not left but right", "down", "right"]
    made = played({**LAKE, "steps": True}, *way)
    assert [(step.state, step.reward) for step in made.steps] == [
        *(("0", 0.0), ("4", 0.0), ("8", 0.0), ("8", 0.0), ("9", 0.0), ("10", 0.0), ("14", 1.0)),
    ]
    assert made.steps[0].prompt == "[S]FFF\nFHFH\nFFFH\nHFFG"
    assert made.steps[2].prompt == "  (Down)\nSFFF\nFHFH\n[F]FFH\nHFFG"


def test_an_observation_may_be_read_in_place_of_the_picture_and_no_action_may_cost() -> None:
    made = played({**LAKE, "actions": None, "show": "observation", "penalty": 0.5}, "1", "9", "2")
    [step] = made.steps  # the third action falls into a hole
    assert (step.prompt, step.response, step.reward) == ("0", "14942", -0.5)


def test_the_longer_of_two_words_is_read() -> None:
    made = played({**LAKE, "actions": {"go": 0, "go on": 2}, "steps": True, "turns": 2}, "go on", "go")
    assert [step.state for step in made.steps] == ["0", "1"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"id": "FrozenLake-v9"}, "FrozenLake"),
        ({"id": "FrozenLake-v1", "actions": {"fly": 7}}, "unknown action 7 for 'fly'"),
        ({"id": "Blackjack-v1", "show": "picture"}, "cannot be rendered as text"),
        ({"id": "Pendulum-v1"}, "which cannot be named"),
    ],
)
def test_what_does_not_fit_says_so(options: dict[str, object], error: str) -> None:
    made = attempted({"name": "gymnasium", "python": PYTHON, **options})
    assert str(made.error).startswith("NotStarted: EnvironmentRaised: ")
    assert error in str(made.error)


def test_an_option_that_is_not_there_is_found_before_the_run() -> None:
    with pytest.raises(ConfigError, match=r"'gymnasium'.*unexpected keyword argument 'action'"):
        Environment(EnvironmentConfig(name="gymnasium", python=PYTHON, id="FrozenLake-v1", action=["left"]))


@pytest.mark.parametrize("whole", [False, True])
def test_a_game_of_textarena_is_played_to_its_end(whole: bool) -> None:
    towers = {"name": "textarena", "python": PYTHON, "id": "TowerOfHanoi-v0", "whole": whole, "steps": whole}
    moves = ["[A C]", "[A B]", "[C B]", "[A C]", "[B A]", "[B C]", "[A C]"]
    made = played(towers, *moves)
    rewards = [step.reward for step in made.steps]
    assert rewards == ([0.0] * 6 + [1.0] if whole else [1.0])
    assert sum(step.prompt.count("You are playing Tower of Hanoi") for step in made.steps) == (
        7 if whole else 1
    )


def test_games_of_a_group_have_the_same_secret() -> None:
    guessing = {"name": "textarena", "python": PYTHON, "id": "GuessTheNumber-v0", "turns": 3}
    first, second, other = (
        played(guessing, "[10]", "[5]", "[15]", task={"seed": seed}).steps[0].response for seed in (1, 1, 2)
    )
    assert first == second
    assert first != other


SUMS = {"name": "reasoning-gym", "python": PYTHON, "dataset": "chain_sum"}


def test_a_question_of_reasoning_gym_is_made_from_the_seed_and_scored_by_the_package() -> None:
    [asked] = played(SUMS, "unknown").steps
    assert asked.prompt.startswith("State the final answer to the following arithmetic problem: ")
    assert asked.prompt.endswith("\nGive the final answer between <answer> and </answer>.")
    assert asked.reward == 0.0  # a response without the tag
    problem = asked.prompt.partition(": ")[2].partition("=")[0]
    right = f"<answer>12</answer>, no, it is <answer> {sum_of(problem)} </answer>."
    assert [step.reward for step in played(SUMS, right).steps] == [1.0]


def test_a_task_names_its_entry_and_its_data_set() -> None:
    environment = {**SUMS, "tag": None, "instructions": " = ?"}
    task = {"seed": 3, "index": 4}
    short = {"min_terms": 2, "max_terms": 2, "max_digits": 1}
    [step] = played(environment, "7", task={**task, "config": short}).steps
    assert len(step.prompt.partition(": ")[2].split()) <= 7
    assert played(environment, "a", task={**task, "dataset": "spell_backward"}).steps[0].prompt != step.prompt


def sum_of(problem: str) -> int:
    """What a chain of additions and subtractions comes to."""
    return sum(map(int, problem.replace("- ", "+ -").split("+")))


def test_imported_tasks_are_the_questions_that_the_environment_asks() -> None:
    with written("reasoning-gym:chain_sum", 3, 8, PYTHON) as path:
        assert path.name == "chain_sum.jsonl"
        tasks = [json.loads(line) for line in path.read_text().splitlines()]
    assert [task["index"] for task in tasks] == [0, 1, 2]
    for task in tasks:
        [step] = played({**SUMS, "dataset": None}, f"<answer>{task['answer']}</answer>", task=task).steps
        assert (step.prompt.partition("\n")[0], step.reward) == (task["prompt"], 1.0)
    with (
        pytest.raises(ImportFileError, match=r"no such data set; did you mean chain_sum\.$"),
        written("reasoning-gym:chain_smu", 3, 8, PYTHON),
    ):
        pass
