"""Whatever stands in a configuration: it can be stored and read again, or one line says what is wrong."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from trinity_db.config.base import load, sections_below, validate
from trinity_db.errors import ConfigError
from trinity_db.run.configuration import RunConfig

ONLINE: dict[str, Any] = {
    "name": "a",
    "taskset": "t",
    "algorithm": "grpo",
    "model": {"scratch": {}},
    "trainer": {"steps": 1},
}
EXTREMES: tuple[Any, ...] = (
    *(0, -1, 2**31 - 1, 2**31, 2**62, 2**63, 10**9, -(10**9), 10**30),
    *(math.inf, -math.inf, math.nan, 1e300, -1e300, 1e-300, 1e30, 0.5),
    *("", "a\x00b", "\ud800", ".", "..", "a.", "a" * 10_000, "a" * 200_000, "é", "on"),
    *(None, True, [], {}, [0], {"name": "x"}, {"a": math.nan}, [["a\x00"]]),
)


def keys(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key that a configuration may have, of all sections."""
    for name in model.model_fields:
        yield (*above, name)
        for section in sections_below(model, name):
            yield from keys(section, (*above, name))


KEYS = sorted(set(keys(RunConfig)))


def with_value(key: tuple[str, ...], value: Any) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(json.dumps(ONLINE))
    section = content
    for name in key[:-1]:
        below = section.setdefault(name, {})
        section[name] = below if isinstance(below, dict) else {"name": below}
        section = section[name]
    section[key[-1]] = value
    return content


SHARES = 3  # each key is given every third extreme, its neighbours the others: a third of the time


@pytest.mark.parametrize("key", KEYS, ids=".".join)
def test_every_key_takes_what_can_be_stored_and_refuses_the_rest(key: tuple[str, ...]) -> None:
    for value in EXTREMES[KEYS.index(key) % SHARES :: SHARES]:
        config = taken(with_value(key, value))
        if isinstance(config, str):
            assert len(config.splitlines()) == 1
            assert len(config) < 2000
            continue
        stored = json.dumps(config.model_dump(mode="json"), allow_nan=False)
        assert "\\u0000" not in stored
        assert "\\ud800" not in stored
        assert taken(json.loads(stored)) == config


def taken(content: dict[str, Any]) -> RunConfig | str:
    """The configuration, or what is wrong with it."""
    try:
        return validate(RunConfig, content, "run.yaml")
    except ConfigError as error:
        return str(error)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("explorer.group_size", 10**9),
        ("max_staleness", 2**31),
        ("trainer.batch_size", 10**9),
        ("trainer.steps", 2**31),
        ("trainer.learning_rate", math.inf),
        ("trainer.learning_rate", math.nan),
        ("trainer.learning_rate", 1e300),
        ("name", ".."),
        ("name", "a."),
        ("name", "a" * 10_000),
        ("taskset", "a\x00b"),
    ],
)
def test_a_value_beyond_what_can_work_is_an_error_that_names_its_key(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key.rpartition(".")[2]):
        validate(RunConfig, with_value(tuple(key.split(".")), value), "run.yaml")


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LAUGHS, "more than 20,000 values"),
        ("a: &a {}\nb: &b {<<: [*a, *a]}\nc: &c [*c]\n", "nested more than 30 deep|more than 20,000"),
        ("[" * 100_000, "nested more than 30 deep"),
        ("name: " + "{a: " * 40 + "1" + "}" * 40, "nested more than 30 deep"),
        ("name: " + "9" * 5000, "is not YAML: Exceeds the limit"),
        ("# " + "x" * 300_000, "longer than 256 KiB"),
        ("name: !!binary aGk=", "could not determine a constructor"),
        ("name: !!set {a, b}", "could not determine a constructor"),
        ("name: !!python/object:os.system x", "could not determine a constructor"),
        ("1: 2\n[a]: 3", "unhashable|unknown key|valid string"),
        ("name: a\nname: b", "appears twice"),
        (json.dumps({**ONLINE, "x" * 1000: 1}), "unknown key 'x{100}'"),
        ("name: .nan", "name: Input should be a valid string"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_in_one_short_line(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        load(RunConfig, path)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("name", ["on", "yes", "no", "off", "y", "2020-01-01", "12:30:45", "0b1", "09"])
def test_a_name_that_yaml_1_1_reads_as_something_else_is_a_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        f"name: {name.replace(':', '-')}\ntaskset: {name}\nalgorithm: grpo\nmodel: {{scratch: {{}}}}\n"
        "trainer: {steps: 1_000, learning_rate: 1e-5, gradient_checkpointing: yes}\n"
    )
    config = load(RunConfig, path)
    assert (config.name, config.taskset) == (name.replace(":", "-"), name)
    assert (config.trainer.steps, config.trainer.learning_rate) == (1000, 1e-5)
    assert config.trainer.gradient_checkpointing is True
