"""Starting files: their keys and values are chosen here; their comments are the fields' docstrings."""

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trinity_db.config import keys
from trinity_db.config.base import RUN_NAME
from trinity_db.errors import ConfigError
from trinity_db.run.configuration import RunConfig

WIDTH = 100  # width of comment lines


@dataclass(frozen=True)
class Off:
    """A value that is written as a comment, as an alternative."""

    value: Any


MODEL = {"path": Off("models/my-model"), "scratch": {}}

CONTENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": (
        """A model learns from its own answers to tasks, which a function judges.
        Import the tasks first:
          trinity-db import tasks.jsonl --as tasks --name my-tasks
        Each line of tasks.jsonl is {"prompt": ..., "answer": ...}.""",
        {
            "model": MODEL,
            "taskset": "my-tasks",
            "algorithm": "grpo",
            "max_staleness": 1,
            "explorer": {"group_size": 8, "concurrency": 64, "max_new_tokens": 64},
            "processors": {"score": ["exact_match"]},
            "trainer": {"steps": 100, "batch_size": 8, "learning_rate": 0.0001, "keep_checkpoints": 3},
        },
    ),
    "dpo": (
        """A model learns from pairs of a better and a worse answer to the same prompt.
        Import the pairs first:
          trinity-db import pairs.jsonl --as preferences --name my-pairs
        Each line of pairs.jsonl is {"prompt": ..., "chosen": ..., "rejected": ...}.""",
        {
            "model": MODEL,
            "data": ["my-pairs"],
            "holdout": 0.1,
            "algorithm": {"name": "dpo", "beta": 0.1},
            "trainer": {
                "epochs": 1,
                "batch_size": 16,
                "learning_rate": 0.0001,
                "publish_every": 50,
                "eval_every": 25,
            },
        },
    ),
    "agent": (
        """A model learns to act in several steps, in a workflow that you write: the coroutine attempt in
        my_agent.py. The page docs/start/agent.md of the documents has a whole one.
        Import the tasks first:
          trinity-db import tasks.jsonl --as tasks --name my-tasks""",
        {
            "model": MODEL,
            "taskset": "my-tasks",
            "algorithm": "multi_step_grpo",
            "max_staleness": 1,
            "explorer": {
                "workflow": "my_agent.py:attempt",
                "group_size": 8,
                "concurrency": 64,
                "max_new_tokens": 64,
            },
            "processors": {"score": []},
            "trainer": {"steps": 100, "batch_size": 8, "learning_rate": 0.0001, "keep_checkpoints": 3},
        },
    ),
}
"""Introduction and content of a starting file, by purpose."""


END = """\
        Then: trinity-db run FILE
        Keys that are not here have defaults: trinity-db config explain KEY"""


def text(purpose: str, name: str, values: Mapping[str, Any] | None = None) -> str:
    """Return the text of a starting file.

    Args:
        values: values that replace those in CONTENTS, by dotted keys.

    Raises:
        ConfigError: if the name is invalid.
    """
    check_name(name)
    about, content = CONTENTS[purpose]
    head = textwrap.dedent(f"        {about}\n{END}").splitlines()
    content = _replaced(content, values or {})
    return "\n".join([*(f"# {line}" for line in head), "", *_lines({"name": name, **content})])


def check_name(name: object) -> str:
    """Check and return the name of a run.

    Raises:
        ConfigError: if the name is invalid.
    """
    if not isinstance(name, str) or not re.fullmatch(RUN_NAME, name):
        raise ConfigError(
            f"name {name!r:.120}: take up to 100 letters, digits, '.', '_' and '-'; "
            "the first is a letter or digit."
        )
    return name


def settings_of(purpose: str) -> dict[str, Any]:
    """Return the dotted keys and values of a starting file, except those of the model."""
    content = {key: value for key, value in CONTENTS[purpose][1].items() if key != "model"}
    return dict(_flat(content))


def write(text: str, path: Path) -> None:
    """Write a new file.

    Raises:
        ConfigError: if it exists, or cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise ConfigError(f"{path} exists, and is not written over; name another file.") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error


def _replaced(content: Mapping[str, Any], values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Replace values of the content, including commented ones."""
    return {
        key: values[f"{prefix}{key}"]
        if f"{prefix}{key}" in values
        else _replaced(value, values, f"{prefix}{key}.")
        if _is_section(value)
        else value
        for key, value in content.items()
    }


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if _is_section(value):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _is_section(value: Any) -> bool:
    """Whether a value is written as indented keys. A part selected by name is written in one line."""
    return isinstance(value, dict) and bool(value) and "name" not in value


def _lines(content: Mapping[str, Any], prefix: str = "", indent: str = "") -> Iterator[str]:
    for key, value in content.items():
        comment = f"{indent}# "
        meaning = keys.find(RunConfig, f"{prefix}{key}")[0]
        yield from textwrap.wrap(meaning.text, WIDTH, initial_indent=comment, subsequent_indent=comment)
        is_off = isinstance(value, Off)
        value = value.value if isinstance(value, Off) else value
        if _is_section(value):
            yield f"{indent}{key}:"
            yield from _lines(value, f"{prefix}{key}.", f"{indent}  ")
        else:
            yield f"{comment if is_off else indent}{key}: {_value(value)}"
        if not indent:
            yield ""


def _value(value: Any) -> str:
    """Format a value as YAML in one line."""
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6).partition("\n")[0]
