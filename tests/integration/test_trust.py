"""Nothing that only data names is run, opened or called: configurations in the store, copies, tasks."""

import json
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import CommandLine
from tests.support.explorers import publish
from tests.support.postgres import by_login
from tests.support.replays import drawn
from tests.support.rows import Scene
from tests.unit.test_reward_model import build as build_reward_model
from trinity_db.config.shared import ScratchConfig
from trinity_db.data.copies.exporter import export_run
from trinity_db.explorer.environments.adapters.verifiers_task import VerifiersTask
from trinity_db.models import build_scratch
from trinity_db.postgres.connection import Database
from trinity_db.run.configuration import RunConfig
from trinity_db.trainer.config import SqlConfig
from trinity_db.trainer.loop.sampling import sampler_of

SCRATCH = {"scratch": {"alphabet": "01", "hidden_size": 16, "layers": 1, "heads": 2, "context": 16}}
TRAP = """
from pathlib import Path

Path({marker!r}).touch()

def trap(response):
    return 1.0
"""


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A Python file that leaves a marker when it is loaded."""
    path = tmp_path / "trap.py"
    path.write_text(TRAP.format(marker=str(tmp_path / "marker")))
    return path


@pytest.fixture(autouse=True)
def store(shared_database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRINITY_DB_URL", shared_database.url)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def content_of(function: str) -> dict[str, Any]:
    """A configuration that names a function wherever one may stand."""
    return {
        "name": "run",
        "model": SCRATCH,
        "taskset": "tasks",
        "algorithm": {"name": "grpo", "loss": function, "advantage": function},
        "sampler": {"name": "sql", "query": "SELECT id, 1 AS weight FROM drawable"},
        "trainer": {"steps": 1, "optimizer": {"name": "own", "function": function}},
        "explorer": {"workflow": function, "engine": {"name": function}},
        "processors": {name: [{"name": function}] for name in ("clean", "score", "priority", "synthesis")},
    }


@pytest.fixture
def copied(scene: Scene, trap: Path, command_line: CommandLine, tmp_path: Path) -> Path:
    """The run `copy`, imported from a folder whose configuration is a trap; that configuration as a file."""
    content = content_of(f"{trap}:trap")
    stored = RunConfig.model_validate(content).stored()
    stored["explorer"]["engine"] = {"name": f"{trap}:trap"}  # no honest run stores it
    hostile = scene.beside("hostile", stored)
    hostile.publish(0, step=0)
    hostile.explore(2)
    export_run(scene.database, "hostile", tmp_path / "folder", False, lambda name, rows: None)
    done = command_line("import", str(tmp_path / "folder"), "--as", "run", "--name", "copy", "--json")
    assert done.code == 0, done
    assert not (tmp_path / "marker").exists()
    file = tmp_path / "copy.yaml"
    file.write_text(json.dumps(content | {"name": "copy"}))
    return file


COMMANDS = (
    ("rescore", "copy"),
    ("rescore", "copy", "--dry-run"),
    ("rescore", "copy", "--dry-run", "--steps", "{trap}:trap"),
    ("evaluate", "copy", "--taskset", "tasks"),
    ("evaluate", "copy", "--taskset", "tasks", "--json", "--samples", "1"),
    ("label", "copy", "--ask", "true"),
    ("status", "copy"),
    ("batches", "copy"),
    ("show", "{experience}"),
    ("config", "show", "copy"),
    ("doctor",),
    ("search", "{experience}", "--run", "copy"),
    ("failed", "copy"),
    ("parked", "copy"),
    ("overlap", "copy", "--with", "tasks"),
    ("prune", "copy", "--yes"),
    ("metrics", "copy"),
    ("export", "copy", "{folder}/again", "--as", "run"),
    ("export", "copy", "{folder}/rows.jsonl", "--as", "trajectories"),
    ("export", "copy", "{folder}/model", "--as", "model"),
    ("stop", "copy"),
    ("delete", "copy", "--yes"),
)


def test_a_copy_that_lays_a_trap_is_never_run(
    scene: Scene, copied: Path, trap: Path, command_line: CommandLine, tmp_path: Path
) -> None:
    experience = scene.value("SELECT max(id) FROM trinity.experience")
    named: Mapping[str, Any] = {"trap": trap, "experience": experience, "folder": tmp_path}
    for command in COMMANDS:
        done = command_line(*(word.format(**named) for word in command))
        assert not (tmp_path / "marker").exists(), command
        if command[0] in ("rescore", "evaluate"):
            assert "pass the run's file with --config FILE" in done.complaint, command


def test_a_file_of_the_caller_names_the_code_that_is_run(
    copied: Path, command_line: CommandLine, tmp_path: Path
) -> None:
    assert command_line("rescore", "copy", "--dry-run", "--config", str(copied)).code == 0
    assert (tmp_path / "marker").exists()


def test_steps_of_the_project_need_no_file(scene: Scene, command_line: CommandLine) -> None:
    content = content_of("x") | {"algorithm": "grpo", "sampler": "fifo", "trainer": {"steps": 1}}
    content |= {"explorer": {}, "processors": {"score": ["exact_match", "position_match"]}}
    scene.beside("plain", RunConfig.model_validate(content).stored())
    assert command_line("rescore", "plain", "--dry-run").code == 0


@pytest.mark.parametrize(
    ("score", "key"),
    [
        (
            {"name": "model_judge", "rubric": "r.yaml", "url": "http://thief/v1", "model": "m"},
            "processors.score.url 'http://thief/v1'",
        ),
        ({"name": "reward_model", "path": "/home/someone/model"}, "processors.score.path"),
    ],
)
def test_a_stored_step_names_no_file_address_or_variable(
    scene: Scene, command_line: CommandLine, score: dict[str, Any], key: str
) -> None:
    content = content_of("x") | {"algorithm": "grpo", "sampler": "fifo", "trainer": {"steps": 1}}
    content |= {"explorer": {}, "processors": {"score": [score]}}
    scene.beside("judge", RunConfig.model_validate(content).stored())
    for command in (("rescore", "judge", "--dry-run"), ("evaluate", "judge", "--taskset", "tasks")):
        assert key in command_line(*command).complaint


def test_a_stored_model_is_no_reason_to_load_a_reward_model(
    scene: Scene, command_line: CommandLine, tmp_path: Path
) -> None:
    folder = build_reward_model(tmp_path / "private", seed=0)
    publish(scene.beside("taste"), 0, folder)
    content = content_of("x") | {"algorithm": "grpo", "sampler": "fifo", "trainer": {"steps": 1}}
    content |= {"explorer": {}, "processors": {"score": [{"name": "reward_model", "run": "taste"}]}}
    content["model"] = {"path": str(folder)}
    scene.beside("lured", RunConfig.model_validate(content).stored())
    done = command_line("rescore", "lured", "--dry-run")
    assert f"names {folder} as the folder of version 0" in done.complaint


def test_a_stored_chat_template_is_not_read(scene: Scene, command_line: CommandLine, tmp_path: Path) -> None:
    private = tmp_path / "credentials"
    private.write_text("secret")
    content = content_of("x") | {"algorithm": "grpo", "sampler": "fifo", "trainer": {"steps": 1}}
    content |= {"explorer": {}, "processors": {"score": ["exact_match"]}}
    content["model"] = SCRATCH | {"chat_template": str(private)}
    scene.beside("templated", RunConfig.model_validate(content).stored())
    done = command_line("evaluate", "templated", "--taskset", "tasks")
    assert "names model.chat_template" in done.complaint


def test_evaluate_loads_no_folder_that_only_the_store_names(
    scene: Scene, command_line: CommandLine, tmp_path: Path
) -> None:
    folder = tmp_path / "elsewhere"
    build_scratch(ScratchConfig.model_validate(SCRATCH["scratch"]), 0, folder)
    content = content_of("x") | {"algorithm": "grpo", "sampler": "fifo", "trainer": {"steps": 1}}
    content |= {"explorer": {"max_new_tokens": 2}, "processors": {"score": ["exact_match"]}}
    content |= {"name": "away", "model": {"path": str(folder)}}
    away = scene.beside("away", RunConfig.model_validate(content).stored())
    publish(away, 0, folder)
    command = ("evaluate", "away", "--taskset", "tasks", "--samples", "1")
    assert f"names {folder} as the folder of version 0" in command_line(*command).complaint
    assert scene.value("SELECT count(*) FROM trinity.evaluation") == 0
    file = tmp_path / "away.yaml"
    file.write_text(json.dumps(content))
    assert command_line(*command, "--config", str(file)).code == 0


def test_a_recorded_select_is_run_only_by_a_login_that_may_only_read(
    scene: Scene, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.make_ready(1)
    query = "select id, 1 as weight from drawable where set_config('trinity.ran', 'yes', false) = 'yes'"
    sampler = sampler_of(SqlConfig(query=query))
    batch = drawn(scene.draw(1, size=1, sampler=sampler)).id
    refused = command_line("replay", str(batch), "--check")
    assert "the recorded SELECT of the batch" in refused.complaint
    assert "TRINITY_DB_READ_URL" in refused.complaint
    monkeypatch.setenv("TRINITY_DB_READ_URL", by_login(scene.database.url))
    assert command_line("replay", str(batch), "--check").code == 0


def test_a_task_chooses_among_the_modules_that_the_configuration_names() -> None:
    environment = VerifiersTask.__new__(VerifiersTask)  # without the package
    environment._tasksets = ["sums"]
    assert [environment._named(column) for column in (None, "sums")] == ["sums", "sums"]
    with pytest.raises(ValueError, match="does not list"):
        environment._named("os")
    environment._tasksets = ["sums", "words"]
    assert environment._named("words") == "words"
    with pytest.raises(ValueError, match="does not list"):
        environment._named(None)
