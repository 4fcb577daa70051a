"""What would stop a role is found before its run is created, so that the run's name stays free."""

from pathlib import Path
from typing import Any

import pytest

from trinity_db.cli import launch
from trinity_db.cli.configuration import RunConfig
from trinity_db.errors import ConfigError

OFFLINE: dict[str, Any] = {"name": "run", "model": {"scratch": {}}, "data": ["set"]}
LOSS = "def mine(logprobs, mask):\n    return -logprobs * mask\n"


class Opened(Exception):
    """A command has come as far as the store."""


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_run(config: RunConfig, change: bool) -> None:
        raise Opened

    monkeypatch.setattr(launch, "open_run", open_run)


@pytest.fixture
def losses(tmp_path: Path) -> Path:
    path = tmp_path / "losses.py"
    path.write_text(LOSS)
    return path


def configured(algorithm: Any, **trainer: Any) -> RunConfig:
    return RunConfig.model_validate(OFFLINE | {"algorithm": algorithm, "trainer": trainer})


@pytest.mark.parametrize("command", [launch.train, launch.check])
def test_a_part_of_ones_own_that_does_not_fit_is_found_before_the_run_is_created(
    command: Any, losses: Path
) -> None:
    with pytest.raises(ConfigError, match="has no function 'typo'"):
        command(configured({"name": "sft", "loss": f"{losses}:typo"}))
    with pytest.raises(Opened):
        command(configured({"name": "sft", "loss": f"{losses}:mine"}))


@pytest.mark.parametrize("command", [launch.train, launch.check])
def test_a_reference_that_nothing_is_compared_with_is_found_before_the_run_is_created(command: Any) -> None:
    with pytest.raises(ConfigError, match="compares the policy with nothing; leave it out"):
        command(configured("sft", reference="synchronised"))
    with pytest.raises(Opened):
        command(configured("dpo", reference="synchronised"))


def test_a_supervisor_composes_no_algorithm_that_fits_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    def compose(config: RunConfig) -> None:
        pytest.fail("torch is loaded for it, which takes seconds")

    monkeypatch.setattr(launch, "_trainer_setup", compose)
    for algorithm in ("sft", "dpo", "kto"):
        with pytest.raises(Opened):
            launch.check(configured(algorithm))
