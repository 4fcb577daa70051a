"""Model and trainer settings say what is wrong with them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.recipes import recipe
from trinity_db.config.base import Change, Kept, Settings, rule, sections_below, validate
from trinity_db.config.shared import ModelConfig
from trinity_db.errors import ConfigError
from trinity_db.explorer.config import ExplorerConfig
from trinity_db.processors.config import ProcessorsConfig
from trinity_db.run.configuration import PER_PROCESS, RunConfig
from trinity_db.trainer.config import (
    AlgorithmConfig,
    FifoConfig,
    LoraConfig,
    PrioritizedConfig,
    SynchronisedReference,
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
        ("ppo2", "there is no 'ppo2'; did you mean 'ppo'"),
        ({"name": "grpo", "clip_hihg": 0.3}, "did you mean 'clip_high'"),
        ({"name": "dpo", "beta": 0}, "greater than 0"),
        ({"beta": 1}, r"^run.yaml: algorithm: it needs a name, such as {name: dpo, beta: 0.2}$"),
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


def test_a_run_may_go_on_in_another_folder_of_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    here, there = (
        validate(RunConfig, OFFLINE | {"trainer": {"checkpoints": folder}}, "run.yaml")
        for folder in ("~/here", "there")
    )
    assert here.checkpoints == Path("/home/me/here/run")
    assert there.checkpoints == Path.cwd() / "there" / "run"
    assert here.stored() == there.stored()
    assert RunConfig.completed(here.model_dump(mode="json")) == here.stored()


SGLANG = {"name": "endpoint", "dialect": "sglang", "urls": ["http://host:8000"]}
OTHERS: dict[str, Any] = {
    "explorer.engine": {"name": "mine.py:Engine", "size": 3},
    "explorer.record_routing": True,
    "explorers": 3,
    "metrics": {"tensorboard": "runs"},
    "processors.archive": {},
    "processors.claim_size": 1,
    "processors.max_attempts": 1,
    "ray": {"place_seconds": 5},
    "trainer.checkpoints": "elsewhere",
    "trainer.checkpoint_every": 7,
    "trainer.keep_best": "-eval/loss",
    "trainer.keep_checkpoints": 9,
    "trainer.keep_deltas": 0.5,
    "trainer.keep_every": 100,
    "trainer.publish": "merged",
    "trainer.ranks": 2,
    "trainer.sharding": "full",
    "trainer.sum_gradients": "micro_batch",
    "trainer.offload": True,
    "trainer.micro_batch_size": 1,
    "trainer.micro_batch_tokens": 1,
    "trainer.gradient_checkpointing": True,
    "trainer.compile": True,
    "trainer.weights": "s3://bucket/prefix",
    "trainer.broadcast": "10.0.0.1",
}
BESIDE: dict[str, dict[str, Any]] = {"trainer.offload": {"sharding": "full"}, "trainer.publish": {"lora": {}}}
"""Keys of the same section that a key needs."""


@pytest.mark.parametrize("key", PER_PROCESS)
def test_a_run_goes_on_with_another_value_of_what_may_change(key: str) -> None:
    section, _, name = key.rpartition(".")
    beside = BESIDE.get(key, {})
    change = {section: {name: OTHERS[key], **beside}} if section else {name: OTHERS[key]}
    kind = ONLINE if key.startswith("explorer") else OFFLINE
    before, after = (
        validate(RunConfig, kind | more, "run.yaml") for more in ({section: beside} if beside else {}, change)
    )
    assert before != after
    assert after.stored() == before.stored()
    # The run may be older, from when this was compared.
    assert RunConfig.completed(after.model_dump(mode="json")) == before.stored()


@pytest.mark.parametrize(
    ("explorer", "trainer", "message"),
    [
        ({"engine": "mine.py:Engine"}, {}, "a custom engine returns the experts in the routing of each"),
        (
            {"engine": SGLANG},
            {},
            "sglang servers do not return the chosen experts; use vLLM servers",
        ),
        ({}, {"compile": True}, "leave out trainer.compile, or set trainer.replay_routing: false"),
        (
            {"engine": {"name": "vllm", "arguments": ["--enable-return-routed-experts"]}},
            {},
            "use explorer.rec",
        ),
    ],
)
def test_experts_are_recorded_where_the_engine_says_them_and_the_trainer_can_replay_them(
    explorer: dict[str, Any], trainer: dict[str, Any], message: str
) -> None:
    content = {"explorer": explorer | {"record_routing": True}, "trainer": {"steps": 3} | trainer}
    with pytest.raises(ConfigError, match=message):
        validate(RunConfig, ONLINE | content, "run.yaml")


@pytest.mark.parametrize(
    ("engine", "publishes"), [("transformers", "adapter"), ("vllm", "adapter"), ("mine.py:Engine", "merged")]
)
def test_an_adapter_is_published_if_the_engine_loads_adapters(engine: str, publishes: str) -> None:
    explorer = {"explorer": {"engine": engine}}
    found = validate(RunConfig, ONLINE | explorer | {"trainer": {"steps": 3, "lora": {}}}, "run.yaml")
    assert found.publishes == publishes
    said = validate(
        RunConfig, ONLINE | explorer | {"trainer": {"steps": 3, "lora": {}, "publish": "merged"}}, "run.yaml"
    )
    assert said.publishes == "merged"
    assert validate(RunConfig, ONLINE | explorer, "run.yaml").publishes is None


def test_servers_of_other_people_are_given_merged_weights() -> None:
    fleet = {"explorer": {"engine": {"name": "endpoint", "urls": ["http://10.0.0.7:8000"]}}}
    trainer: dict[str, Any] = {"steps": 3, "lora": {}}
    found = validate(RunConfig, ONLINE | fleet | {"trainer": trainer}, "run.yaml")
    assert found.publishes == "merged"
    with pytest.raises(ConfigError, match=r"publish: adapter is not loaded into servers .*; take merged"):
        validate(RunConfig, ONLINE | fleet | {"trainer": trainer | {"publish": "adapter"}}, "run.yaml")


def test_the_text_of_a_key_says_whether_it_may_change() -> None:
    sections: dict[str, type[Settings]] = {
        "": RunConfig,
        "explorer.": ExplorerConfig,
        "processors.": ProcessorsConfig,
        "trainer.": TrainerConfig,
    }
    said = {
        f"{prefix}{name}"
        for prefix, section in sections.items()
        for name, field in section.model_fields.items()
        if "may change during a run" in " ".join((field.description or "").lower().split())
    }
    assert said == set(PER_PROCESS)


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
        (
            ONLINE | {"sampler": {"alpha": 1}},
            r"sampler: it needs a name, such as {name: prioritized, alpha: 1}$",
        ),
        (ONLINE | {"max_uses": 0}, "max_uses: Input should be greater than or equal to 1"),
        (ONLINE | {"processors": {"group": {"priority": "loss"}}}, "'even' or 'reward_std'"),
        (OFFLINE | {"sampler": "newest"}, "in passes over all of them: leave out sampler"),
        (OFFLINE | {"max_uses": 2}, "set trainer.epochs in place of max_uses"),
    ],
)
def test_a_wrong_sampler_is_explained(content: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(RunConfig, content, "run.yaml")


LABELS = OFFLINE | {"algorithm": "kto"}


def test_one_row_a_step_cannot_be_compared_with_others() -> None:
    single = {"trainer": {"batch_size": 1}}
    with pytest.raises(
        ConfigError, match=r"algorithm kto compares each row .*: set trainer.batch_size to 2 or"
    ):
        validate(RunConfig, LABELS | single, "run.yaml")
    alone = LABELS | {"algorithm": {"name": "kto", "loss": "apo_zero_unpaired"}}
    validate(RunConfig, alone | single, "run.yaml")


def test_an_adapter_takes_its_options_as_they_are_or_some_of_its_own() -> None:
    assert validate(TrainerConfig, {"lora": {}}, "run.yaml").lora == LoraConfig(rank=16, alpha=32)
    assert validate(TrainerConfig, {}, "run.yaml").lora is None
    content = OFFLINE | {"trainer": {"lora": {"rank": 8, "targets": ["q_proj", "v_proj"]}}}
    stored = validate(RunConfig, content, "run.yaml").stored()
    assert stored["trainer"]["lora"] == {"rank": 8, "alpha": 32, "targets": ["q_proj", "v_proj"]}
    assert RunConfig.completed(stored) == stored


def test_a_reference_is_a_name_or_a_mapping() -> None:
    follows = validate(TrainerConfig, {"reference": "synchronised"}, "run.yaml").reference
    assert follows == SynchronisedReference(sync_every=512, mix=0.6)
    changed = validate(TrainerConfig, {"reference": {"name": "synchronised", "mix": 1}}, "run.yaml")
    assert changed.reference == SynchronisedReference(mix=1.0)


@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        ({"lora": {"rank": 0}}, "lora.rank: Input should be greater than or equal to 1"),
        ({"lora": {"r": 8}}, r"unknown key 'lora\.r'"),
        ({"lora": {"targets": []}}, "lora.targets: Tuple should have at least 1 item"),
        ({"lora": {}, "reference": "synchronised"}, "reference: synchronised; remove one of them"),
        ({"publish": "adapter"}, "publish: adapter applies to an adapter.*or set lora too"),
        (
            {"publish": "adapters", "lora": {}},
            "trainer.publish|publish: Input should be 'adapter' or 'merged'",
        ),
        ({"reference": "synchronized"}, "there is no 'synchronized'; did you mean 'synchronised'"),
        ({"reference": {"name": "synchronised", "mix": 0}}, "reference.mix: Input should be greater than 0"),
        ({"reference": {"name": "start", "mix": 0.5}}, "unknown key"),
        ({"reference": {"mix": 0.5}}, r"it needs a name, such as {name: synchronised, sync_every: 100}$"),
    ],
)
def test_a_wrong_adapter_or_reference_is_explained(trainer: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(TrainerConfig, trainer, "run.yaml")


DISTILLED = ONLINE | {"algorithm": "on_policy_distillation"}
TEACHER = {"name": "teacher", "path": "teacher"}
NO_REWARDS: dict[str, Any] = {"score": []}


def test_a_run_that_learns_from_a_teacher_alone_needs_no_rewards() -> None:
    for score in ([TEACHER], ["defaults", TEACHER], ["mine.py:Teacher"]):
        validate(RunConfig, DISTILLED | {"processors": {"score": score}}, "run.yaml")
    human = ONLINE | {"processors": NO_REWARDS, "requires_reward": "human"}
    assert validate(RunConfig, human, "run.yaml").processors.score == []


@pytest.mark.parametrize("workflow", ["served", {"command": "my-agent", "check": "my-check"}])
def test_attempts_that_bring_their_rewards_need_no_step_of_score(workflow: Any) -> None:
    run = ONLINE | {"explorer": {"workflow": workflow}}
    config = validate(RunConfig, run, "run.yaml")
    assert (config.processors.score, config.attempts_need_reward) == ([], True)
    assert RunConfig.completed(config.stored()) == config.stored()
    later = validate(RunConfig, run | {"requires_reward": "explore"}, "run.yaml")
    assert not later.attempts_need_reward
    both = validate(RunConfig, run | {"processors": {"score": ["defaults"]}}, "run.yaml")
    assert [step.name for step in both.processors.score] == ["exact_match"]
    assert not both.attempts_need_reward


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (DISTILLED, "learns from a teacher: name one, as in processors: {score: "),
        (
            OFFLINE | {"processors": {"score": ["defaults", TEACHER]}},
            "and no teacher is asked about them: leave it out of processors.score",
        ),
        (ONLINE | {"processors": NO_REWARDS}, "algorithm grpo learns from rewards, and nothing gives any"),
        (
            ONLINE
            | {"algorithm": {"name": "grpo", "distillation": "jsd"}, "processors": {"score": [TEACHER]}},
            "learns from rewards, and nothing gives any",
        ),
        (
            DISTILLED | {"algorithm": {"name": "on_policy_distillation", "distillation": None}},
            "advantage zero learns nothing from rewards: add a distillation",
        ),
        (
            ONLINE | {"trainer": {"steps": 1, "reference": "precomputed"}},
            "asks about imported rows, .*; algorithm grpo trains on rollouts, which come later: take start",
        ),
    ],
)
def test_scores_that_no_model_gives_are_asked_for_before_the_first_step(
    content: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(RunConfig, content, "run.yaml")


def leaves(section: type[Settings], prefix: str = "") -> Iterator[str]:
    """Every key that holds a value, by its path."""
    for name in section.model_fields:
        below = sections_below(section, name)
        if below:
            for one in below:
                yield from leaves(one, f"{prefix}{name}.")  # type: ignore[arg-type]
        else:
            yield f"{prefix}{name}"


def test_of_every_key_it_is_said_whether_it_may_change_and_if_not_why() -> None:
    keys = {key for key in leaves(RunConfig) if key != "name"}  # the name is what a run is found by
    rules = {key: rule(RunConfig, key) for key in keys}
    assert all(mark.because for mark in rules.values() if isinstance(mark, Kept))
    assert rules["trainer.learning_rate"] is rules["processors.score.weight"] is Change.DATED
    assert rules["metrics.wandb.project"] is Change.PER_PROCESS
    assert isinstance(rules["algorithm.advantage.scale_rewards"], Kept)
