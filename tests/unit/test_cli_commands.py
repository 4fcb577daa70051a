import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.support.command_line import CommandLine
from trinity_db import cli
from trinity_db.cli import transfer
from trinity_db.data import exporter
from trinity_db.errors import TrinityError, WrongSelect
from trinity_db.postgres import opening
from trinity_db.run import joining
from trinity_db.worker.service import SUPERVISOR

RUN_SH = Path(__file__).parents[2] / "configs/gsm8k/run.sh"
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
    lines = example.removeprefix("\b\n").rstrip().split("\n")
    assert all(line.startswith("    ") and len(line) <= PASTED for line in lines)
    shown = CliRunner().invoke(
        cli.app, [*name.split(), "--help"], prog_name="trinity-db", env={"COLUMNS": "80"}
    )
    assert {f"  {line}" for line in lines} <= {*shown.output.split("\n")}


def test_the_help_answers_at_once() -> None:
    used = []  # processor time, since other things may keep the machine busy
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "trinity_db", "--help"], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(used) < 0.5


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

    monkeypatch.setattr(opening, "open_database", fail)
    monkeypatch.setattr(sys, "argv", ["trinity-db", "status"])
    cli.main()


def test_an_error_that_the_user_can_mend_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as exit:
        run(monkeypatch, TrinityError("The disk is\nfull."))
    # Python prints a text on stderr, and exits with 1.
    assert exit.value.code == "error: The disk is full."


@pytest.mark.parametrize(
    ("is_supervised", "code"), [(True, 78), (False, "error: sampler: the SELECT fails.")]
)
def test_a_role_tells_its_supervisor_that_its_select_is_wrong(
    monkeypatch: pytest.MonkeyPatch, is_supervised: bool, code: int | str
) -> None:
    monkeypatch.delenv(SUPERVISOR, raising=False)
    if is_supervised:
        monkeypatch.setenv(SUPERVISOR, str(os.getppid()))
    with pytest.raises(SystemExit) as exit:
        run(monkeypatch, WrongSelect("sampler: the SELECT fails."))
    assert exit.value.code == code


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        run(monkeypatch, ZeroDivisionError())
    assert not cli.app.pretty_exceptions_enable


def test_ctrl_c_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as exit:
        run(monkeypatch, KeyboardInterrupt())
    assert exit.value.code == 130


def test_an_export_says_as_json_what_it_wrote(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(opening, "open_database", StringIO)  # anything that can be closed
    monkeypatch.setattr(exporter, "export_rows", lambda *arguments: 3)
    transfer.export("set", "tasks", Path("rows.jsonl"), as_json=True)
    said = {"name": "set", "kind": "tasks", "rows": 3, "file": "rows.jsonl"}
    assert json.loads(capsys.readouterr().out) == said


@pytest.mark.parametrize("while_it_starts", [True, False])
@pytest.mark.parametrize(("options", "code"), [([], 0), (["--drain"], 130)])
def test_processors_that_are_stopped_exit_with_0_but_a_drain_was_not_finished(
    command_line: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    code: int,
    while_it_starts: bool,
) -> None:
    def stopped(config: object, drain: bool, change: bool) -> bool:
        if while_it_starts:
            raise KeyboardInterrupt
        return False

    monkeypatch.setattr(signal, "signal", lambda *arguments: None)
    monkeypatch.setattr(joining, "read", lambda *arguments: None)
    monkeypatch.setattr("trinity_db.run.process.run_processors", stopped)
    assert command_line("process", "run.yaml", *options).code == code


def test_a_drain_that_is_done_exits_with_0(
    command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *arguments: None)
    monkeypatch.setattr(joining, "read", lambda *arguments: None)
    monkeypatch.setattr("trinity_db.run.process.run_processors", lambda *arguments: True)
    assert command_line("process", "run.yaml", "--drain").code == 0


def test_the_gsm8k_example_takes_no_further_step_when_one_is_interrupted(tmp_path: Path) -> None:
    stub = tmp_path / "trinity-db"  # in place of the command; a trainer that is stopped ends with 0
    stub.write_text("#!/bin/sh\necho $1 >> calls\nif [ $1 = train ]; then kill -INT $PPID; fi\n")
    stub.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    ended = subprocess.run(["bash", RUN_SH, tmp_path], cwd=tmp_path, env=environment)
    assert ended.returncode == 130
    assert (tmp_path / "calls").read_text().split() == ["import", "process", "train"]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("llama-3.1-8b.jsonl", "llama-3.1-8b"),
        ("data/pairs.v2.JSON.gz", "pairs.v2"),
        ("gsm8k.parquet", "gsm8k"),
        ("saved-1.5", "saved-1.5"),
        ("saved/", "saved"),
        (".", Path.cwd().name),
    ],
)
def test_an_import_is_named_by_its_file_without_the_endings_of_its_type(path: str, name: str) -> None:
    assert transfer.name_of(Path(path)) == name


def test_a_link_names_its_import_itself(tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").symlink_to("blobs-3f2a")
    assert transfer.name_of(tmp_path / "pairs.jsonl") == "pairs"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            ["reasoning-gym:chain_sum"],
            "No module named 'reasoning_gym': pip install reasoning-gym, or name an",
        ),
        (["reasoning-gym:chain_sum", "--python", "none/python"], "cannot start none/python: [Errno 2]"),
    ],
)
def test_a_package_that_makes_tasks_and_is_not_there_is_named(
    command_line: CommandLine, words: list[str], complaint: str
) -> None:
    assert complaint in command_line("import", *words, "--as", "tasks").complaint


def test_options_of_a_package_that_makes_tasks_go_with_no_file(command_line: CommandLine) -> None:
    wrong = command_line("import", "tasks.jsonl", "--as", "tasks", "--size", "3")
    assert wrong.code == 2
    assert "--size, --seed and --python need reasoning-gym:NAME" in wrong.stderr


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
