"""Every number that a command takes: it works with what is given, or says in one line why not."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
import typer

from tests.support.command_line import CommandLine
from tests.support.postgres import by_login
from tests.support.rows import Scene
from trinity_db import cli
from trinity_db.postgres.connection import Database

EXTREMES = (
    *("0", "-1", "0.5", "1e308", "nan", "inf", "-inf", "", "one"),
    *(str(2**31), str(2**63), str(10**30), str(-(10**30)), "9" * 5000),
)
LONGEST_LINE = 6000  # characters: a value is quoted as it was given


class Number(NamedTuple):
    """A number that a command takes, by its option or by its place."""

    command: str
    name: str
    option: str | None


def numbers(group: Any, path: tuple[str, ...] = ()) -> Iterator[Number]:
    """Those of every command below a group."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from numbers(command, (*path, name))
            continue
        for parameter in command.params:
            annotation = parameter.type_descriptor.annotation
            if {annotation, *get_args(annotation)} & {int, float}:
                option = parameter.opts[0] if parameter.opts[0].startswith("-") else None
                yield Number(" ".join((*path, name)), parameter.name, option)


ALL = list(numbers(typer.main.get_command(cli.app)))

OTHERS: dict[str, list[str]] = {
    "run": ["{config}"],
    "train": ["{config}"],
    "explore": ["{config}"],
    "serve": ["{config}"],
    "try": ["{config}"],
    "evaluate": ["none", "--taskset", "none"],
    "import": ["reasoning-gym:none", "--as", "tasks", "--python", "{config}"],
    "sql": ["SELECT 1 AS one"],
    "show": ["{experience}"],
    "batches": ["run"],
    "search": ["none"],
    "overlap": ["run", "--with", "none"],
    "label": ["run", "--ask", "true"],
    "replay": ["--check"],
    "reward": ["{experience}", "0.5"],
    "prune": ["run", "--yes"],
    "parked": ["run"],
    "failed": ["run"],
    "rescore": ["run", "--dry-run"],
    "export": ["run", "{folder}", "--as", "model"],
    "wake": [],
    "page": [],
    "db start": [],
}
"""What else each command needs: the words before its number, or before its option."""
PLACES = {("show", "experience_id"): 0, ("reward", "experience"): 0, ("reward", "value"): 1}
"""Where a number stands among these words, if it is one of them."""


def interrupted(*arguments: Any, **named: Any) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def say(
    scene: Scene,
    shared_database: Database,
    command_line: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Callable[[Number, str], tuple[int, list[str]]]:
    """Runs a command with a number on a store with two rows; its exit code and what it wrote to stderr."""
    scene.make_ready(1, rewards=(1.0, 0.0))
    experience, *_ = scene.values("SELECT id FROM trinity.experience ORDER BY id")
    monkeypatch.setenv("TRINITY_DB_URL", shared_database.url)
    monkeypatch.setenv("TRINITY_DB_READ_URL", by_login(shared_database.url))
    monkeypatch.setattr("uvicorn.Server.run", interrupted)  # a page is served until Ctrl-C
    given = {"config": tmp_path / "none.yaml", "experience": experience, "folder": tmp_path / "model"}

    def say(number: Number, value: str) -> tuple[int, list[str]]:
        words = [word.format(**given) for word in OTHERS[number.command]]
        place = PLACES.get((number.command, number.name))
        if number.option is not None:
            words += [number.option, value]
        elif place is None:
            words.append(value)
        else:
            words[place] = value
        done = command_line(*number.command.split(), *words)
        said = done.stderr.splitlines()
        return (1, [*said, done.code]) if isinstance(done.code, str) else (done.code or 0, said)

    return say


@pytest.mark.parametrize("number", ALL, ids=lambda number: f"{number.command}-{number.name}")
def test_a_number_is_taken_or_refused_in_one_line(
    number: Number, say: Callable[[Number, str], tuple[int, list[str]]]
) -> None:
    for value in EXTREMES:
        code, said = say(number, value)
        what = f"{number.command} {number.name} {value[:40]}"
        if code == 0:
            assert said == [], what
            continue
        assert code in (1, 2), what
        assert said[-1].lower().startswith("error: "), f"{what}: {said}"
        assert sum(line.lower().startswith("error: ") for line in said) == 1, f"{what}: {said}"
        assert len(said[-1]) < LONGEST_LINE, what
        assert "psycopg" not in said[-1], f"{what}: {said}"


def test_numbers_are_found_in_every_kind_of_command() -> None:
    assert {number.command for number in ALL} == set(OTHERS)
    assert {Number("sql", "timeout", "--timeout"), Number("reward", "value", None)} < set(ALL)
