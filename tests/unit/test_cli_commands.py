import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import typer

from trinity_db import cli, database
from trinity_db.errors import TrinityError

PASTED = 74  # characters: a longer example line would be broken in an 80 column help


def commands(group: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, object]]:
    """Every command below a group, with its whole name."""
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


ALL = dict(commands(typer.main.get_command(cli.app)))


@pytest.mark.parametrize("name", ALL)
def test_a_command_says_what_it_does_and_gives_an_example_to_paste(name: str) -> None:
    text = ALL[name].help  # type: ignore[attr-defined]
    sentence, *_, label, example = text.split("\n\n")
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert label == "Example:"
    assert f"trinity-db {name}" in example
    assert all(line.startswith("    ") and len(line) <= PASTED for line in example.rstrip().split("\n"))


def test_the_help_answers_at_once() -> None:
    times = []
    for _ in range(3):  # the fastest of three, for a machine that does other things too
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-m", "trinity_db", "--help"], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - begun)
    assert min(times) < 0.5


def test_the_command_line_loads_nothing_heavy() -> None:
    heavy = "torch transformers pyarrow datasets sqlalchemy alembic psycopg pydantic numpy rich matplotlib"
    shown = f"import sys, trinity_db.cli; print(*(set('{heavy}'.split()) & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", shown], check=True, capture_output=True, text=True)
    assert loaded.stdout == "\n"


def test_the_version_is_printed() -> None:
    shown = subprocess.run([sys.executable, "-m", "trinity_db", "--version"], capture_output=True, text=True)
    assert shown.stdout == "trinity-db 0.1.0\n"


def run(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """The command line, with a command that raises an error."""

    def fail() -> None:
        raise error

    monkeypatch.setattr(database, "open_database", fail)
    monkeypatch.setattr(sys, "argv", ["trinity-db", "status"])
    cli.main()


def test_an_error_that_the_user_can_mend_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as exit:
        run(monkeypatch, TrinityError("The disk is\nfull."))
    # Python prints a text on stderr, and exits with 1.
    assert exit.value.code == "error: The disk is full."


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        run(monkeypatch, ZeroDivisionError())
    assert not cli.app.pretty_exceptions_enable


def test_ctrl_c_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as exit:
        run(monkeypatch, KeyboardInterrupt())
    assert exit.value.code == 130


def test_a_wrong_option_exits_with_2() -> None:
    wrong = subprocess.run(
        [sys.executable, "-m", "trinity_db", "status", "--nope"], capture_output=True, text=True
    )
    assert wrong.returncode == 2
    assert "No such option: --nope" in wrong.stderr


def test_a_reader_that_goes_away_is_no_error_to_speak_of() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as stdout:
        shown = subprocess.run(
            [sys.executable, "-m", "trinity_db", "--help"], stdout=stdout, stderr=subprocess.PIPE, check=False
        )
    assert shown.returncode == 1
    assert shown.stderr == b""
