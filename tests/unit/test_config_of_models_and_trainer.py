"""Model and trainer settings say what is wrong with them."""

from typing import Any

import pytest

from tests.recipes import recipe
from trinity_db.cli.configuration import RunConfig
from trinity_db.config import ModelConfig
from trinity_db.errors import ConfigError
from trinity_db.settings import Settings, validate
from trinity_db.trainer.config import (
    AlgorithmConfig,
    FifoConfig,
    PrioritizedConfig,
    TrainerConfig,
    UniformConfig,
)


class Run(Settings):
    algorithm: AlgorithmConfig


def test_an_algorithm_is_a_name_or_a_mapping() -> None:
    assert validate(Run, {"algorithm": "sft"}, "run.yaml").algorithm == recipe("sft")
    changed = validate(Run, {"algorithm": {"name": "grpo", "clip_high": 0.28}}, "run.yaml").algorithm
    assert changed == recipe("grpo", clip_high=0.28)


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ("ppo2", "there is no 'ppo2'; did you mean 'sppo'"),
        ({"name": "grpo", "clip_hihg": 0.3}, "did you mean 'clip_high'"),
        ({"name": "dpo", "beta": 0}, "greater than 0"),
        ({"beta": 1}, r"^run.yaml: algorithm: name it, as in {name: dpo, beta: 0.2}$"),
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


ONLINE = {
    "name": "run",
    "algorithm": "grpo",
    "taskset": "tasks",
    "model": {"path": "model"},
    "trainer": {"steps": 1},
}
OFFLINE = {"name": "run", "algorithm": "sft", "data": ["rows"], "model": {"path": "model"}}


def test_a_sampler_is_a_name_or_a_mapping() -> None:
    assert validate(RunConfig, ONLINE, "run.yaml").sampler == FifoConfig()
    assert validate(RunConfig, ONLINE | {"sampler": "uniform"}, "run.yaml").sampler == UniformConfig()
    changed = validate(RunConfig, ONLINE | {"sampler": {"name": "prioritized", "alpha": 1}}, "run.yaml")
    assert changed.sampler == PrioritizedConfig(alpha=1.0)
    assert RunConfig.completed(changed.stored()) == changed.stored()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (ONLINE | {"sampler": "oldest"}, "sampler: there is no 'oldest'; did you mean 'newest'"),
        (ONLINE | {"sampler": "lifo"}, "did you mean 'fifo'"),
        (ONLINE | {"sampler": "random"}, "known: fifo, newest, uniform, prioritized"),
        (ONLINE | {"sampler": {"name": "prioritized", "beta": 2}}, "less than or equal to 1"),
        (ONLINE | {"sampler": {"name": "fifo", "alpha": 1}}, "unknown key"),
        (ONLINE | {"sampler": {"alpha": 1}}, r"sampler: name it, as in {name: prioritized, alpha: 1}$"),
        (ONLINE | {"max_uses": 0}, "max_uses: Input should be greater than or equal to 1"),
        (ONLINE | {"processors": {"group": {"priority": "loss"}}}, "'even' or 'reward_std'"),
        (OFFLINE | {"sampler": "newest"}, "in passes over all of them: leave out sampler"),
        (OFFLINE | {"max_uses": 2}, "set trainer.epochs in place of max_uses"),
    ],
)
def test_a_wrong_sampler_is_explained(content: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(RunConfig, content, "run.yaml")
