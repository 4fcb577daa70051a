"""Model and trainer settings say what is wrong with them."""

from typing import Any

import pytest

from trinity_db.cli.configuration import RunConfig
from trinity_db.config import ModelConfig
from trinity_db.errors import ConfigError
from trinity_db.settings import Settings, validate
from trinity_db.trainer.config import AlgorithmConfig, GrpoConfig, SftConfig, TrainerConfig


class Run(Settings):
    algorithm: AlgorithmConfig


def test_an_algorithm_is_a_name_or_a_mapping() -> None:
    assert validate(Run, {"algorithm": "sft"}, "run.yaml").algorithm == SftConfig()
    changed = validate(Run, {"algorithm": {"name": "grpo", "clip_high": 0.28}}, "run.yaml").algorithm
    assert changed == GrpoConfig(clip_high=0.28)


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ("ppo2", "'grpo', 'sft', 'dpo'"),
        ({"name": "grpo", "clip_hihg": 0.3}, "did you mean 'clip_high'"),
        ({"name": "dpo", "beta": 0}, "greater than 0"),
    ],
)
def test_a_wrong_algorithm_is_explained(algorithm: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(Run, {"algorithm": algorithm}, "run.yaml")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({}, "exactly one of path, run and scratch"),
        ({"run": "a", "path": "b"}, "given: path, run"),
        ({"run": "a", "prompt_template": "Solve it."}, "must contain {prompt}"),
        ({"scratch": {"hidden_size": 60, "heads": 4}}, "60 is not a multiple"),
        ({"scratch": {"alphabet": "aa"}}, "each only once"),
        ({"scratch": {"alphabet": "é"}}, "ASCII"),
    ],
)
def test_a_wrong_model_is_explained(model: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(ModelConfig, model, "run.yaml")


def test_at_least_two_checkpoints_are_kept() -> None:
    with pytest.raises(ConfigError, match="keep_checkpoints"):
        validate(TrainerConfig, {"keep_checkpoints": 1}, "run.yaml")


def test_a_run_may_go_on_in_another_folder_of_checkpoints() -> None:
    content = {"name": "run", "algorithm": "sft", "data": ["rows"], "model": {"path": "model"}}
    here, there = (
        validate(RunConfig, content | {"trainer": {"checkpoints": folder}}, "run.yaml")
        for folder in ("here", "there")
    )
    assert here.checkpoints != there.checkpoints
    assert here.stored() == there.stored()
    assert RunConfig.completed(here.model_dump(mode="json")) == here.stored()
