"""`run`, `doctor` and `config check` show a task as the model of the run reads it."""

import json
import logging
import signal
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import CommandLine
from tests.support.postgres import by_login
from tests.support.rows import Scene, import_records, preference
from tests.support.waiting import wait_until
from trinity_db.data.dataset import open_writer
from trinity_db.data.records.records import Task
from trinity_db.models.chat.prompts import PLAIN_PROMPT_WARNING
from trinity_db.run import first_task, joining
from trinity_db.run.configuration import RunConfig
from trinity_db.schema.states import WorkerRole
from trinity_db.store import workers

CONFIG = """
name: shown
model: {scratch: {}, prompt_template: "Q: {prompt}", chat_template: chat.jinja}
taskset: sums
algorithm: grpo
processors: {score: [number_match]}
trainer: {steps: 3}
"""


@pytest.fixture(autouse=True)
def files(scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRINITY_DB_URL", scene.database.url)
    monkeypatch.setenv("TRINITY_DB_READ_URL", by_login(scene.database.url))
    Path("run.yaml").write_text(CONFIG)
    Path("chat.jinja").write_text("{{ messages[0].content }}<|endoftext|>")
    open_writer(scene.database, "tasks", "sums")(
        [Task({"prompt": f"What is {number} plus 5?", "answer": "0"}) for number in (7, 8)]
    )


def test_a_run_logs_its_first_task_while_it_works(caplog: pytest.LogCaptureFixture) -> None:
    config = joining.read(Path("run.yaml"), ())
    database, run = joining.open_run(config)
    caplog.set_level(logging.INFO)
    with closing(database), first_task.logged(database, run, config):
        wait_until(lambda: PLAIN_PROMPT_WARNING in caplog.text, "the task and the warning are logged")
    assert [record.message for record in caplog.records if record.name == first_task.__name__] == [
        "shown: first task as the model reads it (20 tokens):",
        "shown:     Q: What is 7 plus 5?",
        "shown: a response ends with <|endoftext|>",
        f"shown: {PLAIN_PROMPT_WARNING}",
    ]


def test_the_process_that_renders_ends_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    config = joining.read(Path("run.yaml"), ())
    database, run = joining.open_run(config)
    started: list[subprocess.Popen[str]] = []
    popen = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> "subprocess.Popen[str]":
        started.append(popen(*arguments, **options))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", start)
    with closing(database), first_task.logged(database, run, config):
        pass
    assert started[0].returncode == -signal.SIGTERM


def test_the_doctor_shows_the_first_task_of_a_run_at_work(command_line: CommandLine) -> None:
    database, run = joining.open_run(
        joining.read(Path("run.yaml"), ("model.prompt_template=null", "model.chat_template=null"))
    )
    with closing(database), database.transaction() as tx:
        workers.register(tx, run, WorkerRole.EXPLORE)
    findings = {
        finding["found"]: finding["level"]
        for finding in json.loads(command_line("doctor", "--json").stdout)
        if finding["what"] == "prompt first"
    }
    shown = "What is 7 plus 5?; a response ends with <|endoftext|>"
    assert findings[f"run 'shown': first task as the model reads it (17 tokens): {shown}"] == "ok"
    (other,) = [text for text in findings if text.startswith("run 'run'")]
    assert "the first task is not shown" in other, "its configuration is invalid; the doctor continues"


def test_the_doctor_reads_no_file_that_only_the_store_names(
    command_line: CommandLine,
) -> None:
    database, run = joining.open_run(joining.read(Path("run.yaml"), ()))
    with closing(database), database.transaction() as tx:
        workers.register(tx, run, WorkerRole.EXPLORE)
    shown = command_line("doctor", "--json").stdout
    assert "run 'shown': the first task is not shown: no version of the run" in shown


def test_the_first_row_of_an_offline_run_is_shown_as_it_is_trained_on(scene: Scene) -> None:
    import_records(scene.database, "pairs", [preference(1)])
    config = RunConfig.model_validate(
        {"name": "offline", "model": {"scratch": {}}, "algorithm": "dpo", "data": ["pairs"]}
    )
    database, run = joining.open_run(config)
    with closing(database), database.transaction() as tx:
        first = first_task.of_run(tx, run.id, config, joining.recorded_places(config))
    assert first is not None
    assert (first.title, first.is_imported) == ("first imported row", True)
    assert first_task.render(first).prompt == preference(1).task.payload["prompt"]


def test_the_check_of_a_configuration_shows_a_sample_question(command_line: CommandLine) -> None:
    shown = command_line("config", "check", "run.yaml")
    assert shown.stdout.splitlines() == [
        "sample question as the model reads it (20 tokens):",
        "    Q: What is 7 plus 5?",
        "a response ends with <|endoftext|>",
        "run.yaml: no mistakes found",
    ]
    assert shown.stderr == f"warning: {PLAIN_PROMPT_WARNING}\n"
    other = command_line("config", "check", "run.yaml", "--set", "model={run: run}")
    assert other.stdout.startswith("sample question is not shown: the tokenizer belongs to another run")
