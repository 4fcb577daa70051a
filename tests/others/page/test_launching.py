"""Which files the page writes, what it starts, and which visitors it refuses; without a browser."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.waiting import wait_until
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.page import launching, manager, start
from trinity_db.page.launching import Launcher, Started
from trinity_db.page.manager import Manager
from trinity_db.page.threads import Threads
from trinity_db.postgres.connection import Database
from trinity_db.run.configuration import RunConfig
from trinity_db.schema.states import RunKind, RunState
from trinity_db.store.runs import Run

SLEEPS = "import time; time.sleep(600)"


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launcher:
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    return Launcher(tmp_path / "work")


def starts(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Let Python run a program in place of trinity-db."""
    monkeypatch.setattr(launching, "_program", lambda arguments: [sys.executable, "-c", program])


def ended(started: Started) -> Started:
    wait_until(lambda: started.code is not None, "it ends")
    return started


@pytest.mark.parametrize(
    "name", ["../out", "a/b", "", ".hidden", "..", "3", "[a]", '"a\\nb"', '"a\\0"', "~", "a" * 101]
)
def test_a_name_that_no_run_can_have_becomes_no_file(launcher: Launcher, name: str) -> None:
    for verb in (launcher.file_of, launcher.check, lambda text: launcher.start(text, False)):
        with pytest.raises(ConfigError, match="take up to 100 letters"):
            verb(f"name: {name}")
    assert [*launcher.folder.iterdir()] == []


@pytest.mark.parametrize("text", ["a: [", "- 1", "text", "", "x: &x [*x]\ny: [", "#" * 300_000])
def test_what_is_no_configuration_is_said_in_one_line(launcher: Launcher, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        launcher.start(text, False)
    assert "\n" not in str(error.value)


def test_no_file_is_written_over(launcher: Launcher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    starts(monkeypatch, "pass")
    (launcher.folder / "mine.yaml").write_text("name: mine  # of a person")
    (launcher.folder / "mine-2.yaml").symlink_to(tmp_path / "elsewhere")
    for text, file in (("name: mine", "mine-3.yaml"), ("name: mine\nseed: 1", "mine-4.yaml")):
        for _ in range(2):
            started = ended(launcher.start(text, True))
            assert (started.command, started.code) == (f"trinity-db run {file} --change", 0)
    assert (launcher.folder / "mine.yaml").read_text() == "name: mine  # of a person"
    assert not (tmp_path / "elsewhere").exists()
    assert launcher.files_of("mine")[0].name == "mine-4.yaml"


def test_a_start_that_failed_leaves_no_file(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    def files() -> list[str]:
        return sorted(path.name for path in launcher.folder.iterdir())

    asked: list[bool] = []

    def no() -> bool:
        asked.append(False)
        return False

    def yes() -> bool:
        asked.append(True)
        return True

    starts(monkeypatch, "raise SystemExit(1)")
    launcher.start("name: gone", False, no)
    wait_until(lambda: files() == [], "its file is removed")
    launcher.start("name: began", False, yes)
    wait_until(lambda: len(asked) == 2, "it is asked whether the run began")
    (launcher.folder / "mine.yaml").write_text("name: mine")  # of a person
    ended(launcher.start("name: mine", False, no))
    starts(monkeypatch, "import time; time.sleep(0.5); raise SystemExit(1)")
    launcher.start("name: changed", False, no)
    (launcher.folder / "changed.yaml").write_text("name: changed  # by a person")
    wait_until(lambda: len(asked) == 3, "the last one is asked about")
    starts(monkeypatch, "pass")
    ended(launcher.start("name: done", False, no))
    assert files() == ["began.yaml", "changed.yaml", "done.yaml", "mine.yaml"]
    assert len(asked) == 3


def test_the_last_words_are_those_of_this_start(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in ("first\x1b[2J", "second"):
        starts(monkeypatch, f"print({words!r}); raise SystemExit(3)")
        started = ended(launcher.start("name: mine", False))
        assert (started.code, started.last_words()) == (3, words.replace("\x1b", "\\x1b"))
    assert started.log.read_text() == "first\x1b[2J\nsecond\n"


def test_a_run_that_is_there_is_not_started_twice(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts(monkeypatch, SLEEPS)
    started = launcher.start("name: mine", False)
    try:
        with pytest.raises(ConfigError, match="is running: stop it first"):
            launcher.start("name: mine", False)
    finally:
        started.process.kill()
        started.process.wait()


def test_a_check_says_what_config_check_says(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = "modle: {}\nmodel: {scratch: {}}\ntaskset: t\nalgorithm: grpo\ntrainer: {steps: 1}"
    assert launcher.check(f"name: mine\n{wrong}\nprocessors: {{score: [exact_match]}}") == [
        "error: mine.yaml: unknown key 'modle'; did you mean 'model'?"
    ]
    starts(monkeypatch, SLEEPS)
    monkeypatch.setattr(launching, "CHECK_SECONDS", 0.2)
    with pytest.raises(TrinityError, match="took longer"):
        launcher.check("name: mine")
    assert [*launcher.folder.iterdir()] == []


@pytest.mark.parametrize(
    "verb",
    [
        lambda one: one.start("name: mine", False),
        lambda one: one.check("name: mine"),
        lambda one: one.stop("mine"),
    ],
)
def test_the_server_refuses_visitors_who_may_not_manage(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, verb: Callable[[Manager], Coroutine[Any, Any, Any]]
) -> None:
    monkeypatch.setattr(manager, "may", lambda right: False)
    monkeypatch.setattr(subprocess, "Popen", lambda *given, **named: pytest.fail("it is started"))
    refused = verb(Manager(Threads(Database("postgresql://127.0.0.1:1/none")), launcher))
    # In a thread: that of the tests may have an event loop, of the browser.
    with ThreadPoolExecutor(1) as thread:
        error = thread.submit(asyncio.run, refused).exception()
    assert isinstance(error, TrinityError)
    assert str(error) == manager.REFUSED
    assert [*launcher.folder.iterdir()] == []


STORED = RunConfig.model_validate(
    {
        "name": "mine",
        "model": {"scratch": {}},
        "taskset": "t",
        "algorithm": "grpo",
        "processors": {"score": ["exact_match"]},
        "trainer": {"steps": 5, "learning_rate": 0.5},
    }
).stored()


def stored_run(config: dict[str, Any]) -> Run:
    return Run(1, "mine", RunKind.TRAIN, RunState.FINISHED, config, 0, datetime.now(UTC), 1)


def test_a_run_without_a_file_is_shown_as_the_store_keeps_it() -> None:
    text = start._file_of(stored_run(STORED), [])
    assert "explorer.engine" in text, "what the store does not keep is named"
    assert RunConfig.model_validate(yaml.safe_load(text)).stored() == STORED
    with pytest.raises(ConfigError, match="The stored configuration"):
        start._file_of(stored_run({"name": "mine"}), [])


def test_the_file_of_a_run_is_shown_as_it_is(tmp_path: Path) -> None:
    content = RunConfig.written(STORED)
    text = f"# by a person\n{yaml.safe_dump(content | {'explorers': 3})}"
    (tmp_path / "mine.yaml").write_text(text)
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(content | {"explorers": 4, "seed": 1}))
    files = [tmp_path / name for name in ("gone.yaml", "other.yaml", "mine.yaml")]
    assert start._file_of(stored_run(STORED), files) == text
