"""What would stop a role is found before its run is created, so that the run's name stays free.

And what a role needs to know of another's settings it learns without that role's code.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.recipes import recipe
from trinity_db.errors import ConfigError
from trinity_db.run import checks, joining
from trinity_db.run.configuration import RunConfig
from trinity_db.run.explore import run_explorer
from trinity_db.run.train import run_trainer
from trinity_db.trainer.algorithms.compositions import create
from trinity_db.trainer.recipes.parts.kinds import KINDS
from trinity_db.trainer.recipes.recipes import RECIPES, compares_with_greedy

OFFLINE: dict[str, Any] = {"name": "run", "model": {"scratch": {}}, "data": ["set"]}
ONLINE: dict[str, Any] = {
    "name": "run",
    "model": {"scratch": {}},
    "taskset": "tasks",
    "trainer": {"steps": 1},
}
PARTS = """
def mine(logprobs, mask):
    return -logprobs * mask

def advantage(rewards):
    return rewards

def baseline(rewards, greedy):
    return rewards
"""


class Opened(Exception):
    """A command has come as far as the store."""


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_run(config: RunConfig, change: bool = False) -> None:
        raise Opened

    monkeypatch.setattr(joining, "open_run", open_run)


@pytest.fixture
def losses(tmp_path: Path) -> Path:
    path = tmp_path / "losses.py"
    path.write_text(PARTS)
    return path


def supervised(config: RunConfig) -> None:
    """What a supervisor does before it starts the roles."""
    checks.check_fits(config)
    joining.open_run(config)


def configured(algorithm: Any, **trainer: Any) -> RunConfig:
    return RunConfig.model_validate(OFFLINE | {"algorithm": algorithm, "trainer": trainer})


@pytest.mark.parametrize("command", [run_trainer, supervised])
def test_a_part_of_the_users_own_that_does_not_fit_is_found_before_the_run_is_created(
    command: Any, losses: Path
) -> None:
    with pytest.raises(ConfigError, match="has no function 'typo'"):
        command(configured({"name": "sft", "loss": f"{losses}:typo"}))
    with pytest.raises(Opened):
        command(configured({"name": "sft", "loss": f"{losses}:mine"}))


@pytest.mark.parametrize("command", [run_trainer, supervised])
def test_a_reference_that_nothing_is_compared_with_is_found_before_the_run_is_created(command: Any) -> None:
    with pytest.raises(ConfigError, match="compares the policy with nothing; remove it"):
        command(configured("sft", reference="synchronised"))
    with pytest.raises(Opened):
        command(configured("dpo", reference="synchronised"))


def test_a_supervisor_composes_no_algorithm_that_fits_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    def compose(config: RunConfig) -> None:
        pytest.fail("torch is loaded for it, which takes seconds")

    monkeypatch.setattr("trinity_db.run.trainer_setup.trainer_setup", compose)
    for algorithm in ("sft", "dpo", "kto"):
        with pytest.raises(Opened):
            supervised(configured(algorithm))


def online(algorithm: Any) -> RunConfig:
    return RunConfig.model_validate(ONLINE | {"algorithm": algorithm})


def test_an_explorer_finds_a_part_of_the_users_own_that_does_not_fit_before_the_run_is_created(
    losses: Path,
) -> None:
    with pytest.raises(ConfigError, match="has no function 'typo'"):
        run_explorer(online({"name": "grpo", "loss": f"{losses}:typo"}))
    with pytest.raises(ConfigError, match="the value is the baseline of a reward"):
        run_explorer(online({"name": "ppo", "advantage": f"{losses}:advantage"}))
    with pytest.raises(Opened):
        run_explorer(online({"name": "grpo", "advantage": f"{losses}:advantage"}))


@pytest.mark.parametrize("name", RECIPES)
def test_an_explorer_knows_of_each_recipe_whether_it_compares_with_a_greedy_attempt(name: str) -> None:
    found = compares_with_greedy(RECIPES[name])
    assert found == ("greedy" in create(RECIPES[name]).compares) == (name == "remax")


def test_spare_members_are_refused_where_the_greedy_one_must_not_be_left_out() -> None:
    spare = {"explorer": {"spare": 2}}
    with pytest.raises(ConfigError, match=r"explorer.spare: algorithm remax .* leave out spare"):
        run_explorer(RunConfig.model_validate(ONLINE | {"algorithm": "remax"} | spare))
    with pytest.raises(Opened):
        run_explorer(RunConfig.model_validate(ONLINE | {"algorithm": "grpo"} | spare))


def test_an_explorer_knows_it_of_an_advantage_of_the_users_own(losses: Path) -> None:
    assert compares_with_greedy(recipe("grpo", advantage=f"{losses}:baseline"))
    assert not compares_with_greedy(recipe("grpo", advantage=f"{losses}:advantage"))


def test_an_explorer_loads_the_declarations_of_parts_and_makes_no_algorithm() -> None:
    program = (
        "import json, sys\n"
        "from trinity_db.run import joining\n"
        "from trinity_db.run.configuration import RunConfig\n"
        "from trinity_db.run.explore import run_explorer\n"
        "def opened(*_): raise SystemExit\n"
        "joining.open_run = opened\n"
        "for content in map(json.loads, sys.argv[1:]):\n"
        "    try:\n"
        "        run_explorer(RunConfig.model_validate(content))\n"
        "    except SystemExit:\n"
        "        print(json.dumps([one for one in sys.modules if one.startswith('trinity_db.trainer.')]))\n"
    )
    contents = [json.dumps(ONLINE | {"algorithm": algorithm}) for algorithm in ("remax", "ppo", "raft")]
    done = subprocess.run(
        [sys.executable, "-c", program, *contents], capture_output=True, text=True, check=True
    )
    *_, last = lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len(contents), "each came as far as the store"
    assert {name.removeprefix("trinity_db.trainer.") for name in last} <= {
        *("config", "recipes", "recipes.recipes", "recipes.parser", "recipes.optimizers"),
        *(
            "recipes.parts",
            *(f"recipes.parts.{name}" for name in ("kinds", "built_in", "options", "columns")),
        ),
        "recipes.parts.properties",
        *(f"recipes.parts.{kind.file}" for kind in KINDS.values()),
    }
