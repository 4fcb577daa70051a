"""Configuration files: read, overridden, checked, and mistakes told in one line that helps."""

from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from tests.support.recipes import recipe
from trinity_db.config import base
from trinity_db.config.base import Settings
from trinity_db.errors import ConfigError
from trinity_db.run.checks import check_members
from trinity_db.run.configuration import RunConfig
from trinity_db.trainer.config import PrioritizedConfig, SynchronisedReference

OFFLINE = "name: first\nmodel: {scratch: {}}\ndata: [set]\nalgorithm: sft\n"
ONLINE = "name: first\nmodel: {scratch: {}}\ntaskset: tasks\nalgorithm: {name: grpo}\ntrainer: {steps: 3}\n"


@pytest.fixture
def read(tmp_path: Path) -> Any:
    """Reads a configuration out of a file with this text."""

    def read(text: str, *overrides: str) -> RunConfig:
        path = tmp_path / "run.yaml"
        path.write_text(text, encoding="utf-8")
        return base.load(RunConfig, path, overrides)

    return read


def mistake(read: Any, text: str, *overrides: str) -> str:
    """The message of the error that reading this raises; one line."""
    with pytest.raises(ConfigError) as error:
        read(text, *overrides)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_only_explored_groups_wait_for_a_reward(read: Any) -> None:
    assert read(ONLINE, "requires_reward=human").requires_reward == "human"
    assert "leave out requires_reward" in mistake(read, OFFLINE, "requires_reward=human")


@pytest.mark.parametrize(
    ("text", "override", "key"),
    [
        (ONLINE, "data=[set]", "data"),
        (ONLINE, "holdout=0.1", "holdout"),
        (ONLINE, "trainer.epochs=2", "trainer.epochs"),
        (ONLINE, "trainer.eval_every=2", "trainer.eval_every"),
        (ONLINE, "trainer.max_length=9", "trainer.max_length"),
        (OFFLINE, "taskset=tasks", "taskset"),
        (OFFLINE, "explorers=2", "explorers"),
        *(
            (ONLINE.replace("{name: grpo}", "external"), f"trainer.{key}={value}", f"trainer.{key}")
            for key, value in {"learning_rate": 1e-3, "lora": "{}", "checkpoints": "a", "epochs": 2}.items()
        ),
        *(
            (f"{ONLINE}explorer: {{workflow: external}}\n", f"{key}={value}", key)
            for key, value in {
                "explorers": 2,
                "evaluation": "{taskset: other}",
                "explorer.engine": "vllm",
                "explorer.spare": 1,
            }.items()
        ),
    ],
)
def test_a_key_that_the_run_would_not_read_is_refused(read: Any, text: str, override: str, key: str) -> None:
    assert mistake(read, text, override).endswith(f": leave out {key}")


def test_what_says_the_same_as_nothing_is_left_out_already(read: Any) -> None:
    online = read(ONLINE, "data=[]", "holdout=0", "trainer.epochs=1", "trainer.eval_every=null")
    assert online == read(ONLINE)
    assert read(OFFLINE, "taskset=null", "trainer.steps=null") == read(OFFLINE)


def test_a_program_that_trains_reads_what_concerns_its_batches(read: Any) -> None:
    online = ONLINE.replace("{name: grpo}", "{name: external, advantage: leave_one_out}")
    config = read(online, "trainer.batch_size=2", "trainer.publish_every=3", "max_uses=2", "sampler=newest")
    assert (config.is_external, config.is_online, config.algorithm.draws) == (True, True, "groups")
    assert not config.attempts_need_reward
    pairs = OFFLINE.replace("sft", "{name: external, draws: pairs}")
    assert not read(pairs, "trainer.epochs=2", "trainer.max_length=9").is_online
    wrong = mistake(read, pairs, "algorithm.advantage=leave_one_out")
    assert wrong.endswith("draws: pairs has no groups to compare rewards in: leave out advantage")
    assert "'groups', 'rows' or 'pairs'" in mistake(read, pairs, "algorithm.draws=labels")


def test_a_program_that_explores_gives_rewards_and_samples_no_greedy_rollout(read: Any) -> None:
    config = read(f"{ONLINE}explorer: {{workflow: external, group_size: 3, temperature: 0.5}}\n")
    assert (config.processors.score, config.attempts_need_reward, config.waits_for) == ([], True, "explores")
    both = read(f"{ONLINE.replace('grpo', 'external')}explorer: {{workflow: external}}\n")
    assert (both.waits_for, both.attempts_need_reward) == ("explores and trains", True)
    remax = read(f"{ONLINE.replace('grpo', 'remax')}explorer: {{workflow: external}}\n")
    with pytest.raises(ConfigError, match="compares with the greedy rollout of each group, which no program"):
        check_members(remax)


def test_a_mix_reads_the_keys_of_imported_rows(read: Any) -> None:
    mix = ONLINE.replace("{name: grpo}", "mix")
    assert read(mix, "data=[set]", "holdout=0.1", "trainer.max_length=9").holdout == 0.1
    assert "leave out trainer.epochs" in mistake(read, mix, "data=[set]", "trainer.epochs=2")


def test_a_run_that_was_stored_with_keys_that_it_did_not_read_goes_on(read: Any) -> None:
    online, offline = read(ONLINE), read(OFFLINE)
    older = offline.model_dump(mode="json") | {"taskset": "tasks", "explorers": 4}
    assert RunConfig.completed(older) == offline.stored()
    older = online.model_dump(mode="json") | {"data": ["set"], "holdout": 0.5}
    older["trainer"] |= {"epochs": 2, "eval_every": 10, "max_length": 9}
    assert RunConfig.completed(older) == online.stored()


def test_of_two_reward_functions_of_one_name_none_is_lost_in_silence(read: Any) -> None:
    twice = "[{name: regex_match, pattern: a}, exact_match, {name: regex_match, pattern: b, weight: 2}]"
    said = mistake(read, ONLINE, f"processors.score={twice}")
    assert "processors.score: regex_match is listed twice" in said
    assert "a function of your own, path/to/file.py:name" in said
    read(ONLINE, "processors.score=[{name: regex_match, pattern: a}, exact_match]")


def test_no_step_can_be_computed_at_temperature_zero(read: Any) -> None:
    assert "explorer.temperature: Input should be greater than or equal to 0.01" in mistake(
        read, ONLINE, "explorer.temperature=0"
    )


def test_a_key_that_stands_twice_is_refused_with_its_line(read: Any) -> None:
    said = mistake(read, ONLINE + "trainer: {batch_size: 4}\n")
    assert "the key 'trainer' appears twice" in said
    assert "line 6" in said
    assert "the key 'steps' appears twice" in mistake(read, ONLINE.replace("steps: 3", "steps: 3, steps: 4"))


def test_what_is_merged_may_be_changed(read: Any) -> None:
    config = read("explorer: {<<: {group_size: 2, concurrency: 3}, concurrency: 4}\n" + ONLINE)
    assert (config.explorer.group_size, config.explorer.concurrency) == (2, 4)


def test_a_file_becomes_typed_settings(read: Any) -> None:
    config = read(ONLINE)
    assert config.trainer.steps == 3
    assert config.algorithm == recipe("grpo")
    assert config.max_staleness == 1
    with pytest.raises(ValidationError):
        config.seed = 1


@pytest.mark.parametrize(
    ("addition", "key", "nearest"),
    [
        ("traner: {}", "traner", "trainer"),
        ("explorer: {grup_size: 2}", "explorer.grup_size", "group_size"),
        ("processors: {group: {min_sise: 1}}", "processors.group.min_sise", "min_size"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_right_one(
    read: Any, addition: str, key: str, nearest: str
) -> None:
    assert f"unknown key '{key}'; did you mean '{nearest}'?" in mistake(read, f"{ONLINE}{addition}\n")


def test_an_unknown_key_of_an_algorithm_is_compared_with_those_of_that_algorithm(read: Any) -> None:
    text = ONLINE.replace("{name: grpo}", "{name: grpo, clip_hihg: 0.3}")
    assert "did you mean 'clip_high'?" in mistake(read, text)
    text = OFFLINE.replace("sft", "{name: dpo, clip_high: 0.3}")
    assert "known keys: beta, loss, name, weight" in mistake(read, text)


def test_an_unknown_key_that_is_near_to_none_lists_those_there_are(read: Any) -> None:
    said = mistake(read, ONLINE + "explorer: {zzz: 1}\n")
    assert (
        "known keys: attempt_seconds, backlog, concurrency, engine, environment, group_size, max_new_tokens"
        in said
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ONLINE.replace("steps: 3", "steps: many"), "trainer.steps: Input should be a valid integer"),
        (ONLINE.replace("steps: 3", "steps: 0"), "trainer.steps: Input should be greater than or equal to 1"),
        (ONLINE.replace("name: first", "name: a/b"), "name: String should match pattern"),
        (ONLINE.replace("name: first\n", ""), "name: Field required"),
        (ONLINE.replace("{name: grpo}", "grop"), "algorithm: "),
        (
            ONLINE.replace("{scratch: {}}", "{}"),
            "model: give exactly one of path, run and scratch",
        ),
        (ONLINE.replace("taskset: tasks\n", ""), "name its tasks under taskset"),
        (ONLINE.replace("steps: 3", ""), "trains until trainer.steps: set it"),
        (OFFLINE.replace("data: [set]\n", ""), "name them under data"),
        (ONLINE.replace("{name: grpo}", "mix"), "in addition to rollout groups: name them under data"),
        (OFFLINE + "holdout: 1.0\n", "holdout: Input should be less than 1"),
        (OFFLINE.replace("[set]", "set"), "data: Input should be a valid list"),
        (OFFLINE + "1: 2\n", "1"),
        (OFFLINE + "trainer: 7\n", "trainer: "),
        ("", "must hold keys and values"),
        ("- name: first\n", "must hold keys and values"),
        ("name: [first\n", "is not YAML"),
        ("name: first\n\tseed: 1\n", "is not YAML"),
    ],
)
def test_a_mistake_is_told_in_one_line_that_names_the_file(read: Any, text: str, said: str) -> None:
    message = mistake(read, text)
    assert "run.yaml: " in message
    assert said in message


def test_a_rule_about_several_keys_is_told_in_its_own_words(read: Any) -> None:
    said = mistake(read, ONLINE.replace("taskset: tasks\n", ""))
    assert said.endswith(
        "run.yaml: algorithm grpo explores: name its tasks under taskset, or under data a run whose rollouts "
        "it learns from"
    )


def test_several_mistakes_are_told_together_but_not_all_of_them(read: Any) -> None:
    said = mistake(read, ONLINE + "aa: 1\nbb: 1\ncc: 1\ndd: 1\n")
    assert said.count("unknown key") == 3


def test_a_value_of_any_length_is_quoted_in_part(read: Any) -> None:
    assert len(mistake(read, ONLINE.replace("steps: 3", f"steps: {'x' * 10_000}"))) < 400


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "no such configuration file"),
        (lambda path: path.mkdir(), "cannot be read"),
        (lambda path: path.write_bytes(b"name: \xff\n"), "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, make: Any, said: str) -> None:
    path = tmp_path / "run.yaml"
    make(path)
    with pytest.raises(ConfigError, match=f"run.yaml: {said}"):
        base.load(RunConfig, path)


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("trainer.learning_rate=1e-5", "learning_rate", 1e-5),
        ("trainer.learning_rate=2.5E-3", "learning_rate", 2.5e-3),
        ("trainer.steps=7", "steps", 7),
        ("trainer.schedule=cosine", "schedule", "cosine"),
        ("trainer.max_length=null", "max_length", None),
        ("trainer.checkpoints=a=b", "checkpoints", Path("a=b")),
    ],
)
def test_an_override_takes_the_place_of_the_file_s_value(
    read: Any, override: str, key: str, value: object
) -> None:
    assert getattr(read(ONLINE, override).trainer, key) == value


def test_overrides_make_the_sections_they_need_and_the_last_one_counts(read: Any) -> None:
    config = read(ONLINE, "explorer.group_size=2", "explorer.group_size=4", "algorithm.clip_high=0.28")
    assert config.explorer.group_size == 4
    assert config.algorithm == recipe("grpo", clip_high=0.28)


@pytest.mark.parametrize("spelled", ["grpo", "{name: grpo}"])
def test_an_override_changes_an_option_of_what_is_given_by_its_name(read: Any, spelled: str) -> None:
    text = ONLINE.replace("{name: grpo}", spelled) + "sampler: prioritized\n"
    config = read(text, "algorithm.clip_high=0.28", "sampler.alpha=1")
    assert config.algorithm == recipe("grpo", clip_high=0.28)
    assert config.sampler == PrioritizedConfig(alpha=1.0)
    held = OFFLINE.replace("sft", "{name: dpo, loss: hinge}") + "trainer: {reference: synchronised}\n"
    config = read(held, "algorithm.loss.beta=0.5", "trainer.reference.mix=1")
    assert config.algorithm == recipe("dpo", loss={"name": "hinge", "beta": 0.5})
    assert config.trainer.reference == SynchronisedReference(mix=1.0)


def test_an_override_may_be_a_list_or_a_mapping(read: Any) -> None:
    assert read(OFFLINE, "data=[one, two]").data == ["one", "two"]
    assert read(ONLINE, "model={scratch: {layers: 3}}").model.scratch.layers == 3


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("trainer.steps", "write it as key.path=value"),
        ("=3", "write it as key.path=value"),
        ("name.first=3", "'name' is a value, not a section; set it by name=..."),
        ("trainer.steps.most=3", "set it by trainer.steps=..."),
        ("trainer.stps=3", "did you mean 'steps'?"),
        ("trainer.steps=[", "trainer.steps=["),
        ("seed=", "seed: "),
    ],
)
def test_a_wrong_override_is_told_like_a_mistake_in_the_file(read: Any, override: str, said: str) -> None:
    assert said in mistake(read, ONLINE, override)


def test_home_is_the_folder_named_by_the_environment_or_one_below_the_current(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRINITY_DB_HOME", raising=False)
    assert base.home() == tmp_path / ".trinity-db"
    monkeypatch.setenv("TRINITY_DB_HOME", "")
    assert base.home() == tmp_path / ".trinity-db"
    monkeypatch.setenv("TRINITY_DB_HOME", "elsewhere")
    assert base.home() == tmp_path / "elsewhere"


def test_a_configuration_stored_by_an_older_version_gets_the_defaults_of_newer_keys(read: Any) -> None:
    config = read(ONLINE)
    older = config.stored()
    del older["requires_reward"], older["explorer"]["workflow"]
    assert RunConfig.completed(older) == config.stored()


def test_a_stored_configuration_that_fits_no_more_is_left_as_it_is() -> None:
    assert RunConfig.completed({"a key": "of the past"}) == {"a key": "of the past"}


def test_every_setting_explains_itself() -> None:
    sections = below(RunConfig)
    assert len(sections) > 10
    unexplained = {
        f"{section.__name__}.{name}"
        for section in sections
        for name, field in section.model_fields.items()
        if not field.description and name != "name"
    }
    assert unexplained == set()
    assert all(issubclass(section, Settings) and section.__doc__ for section in sections)


def below(section: type[BaseModel]) -> set[type[BaseModel]]:
    """A section and all sections in it."""
    found = {section}
    pending = [field.annotation for field in section.model_fields.values()]
    while pending:
        annotation = pending.pop()
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            found |= below(annotation)
        pending.extend(get_args(annotation))
    return found
