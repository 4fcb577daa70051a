"""`trinity-db config` and the store: starting files open runs, and a run shows its stored configuration."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from tests.support.postgres import by_login
from tests.support.rows import Scene, demonstration, import_records, labelled, preference, task
from trinity_db.config import base
from trinity_db.data.dataset import open_writer
from trinity_db.errors import ConfigError
from trinity_db.run import changes, checks, joining, starting_file
from trinity_db.run.configuration import RunConfig
from trinity_db.store import adoption, runs
from trinity_db.trainer.recipes.recipes import RECIPES, LabelsConfig

AGENT = "async def attempt(task, policy):\n    await policy.complete(task['prompt'])\n"


@pytest.fixture(autouse=True)
def place(scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder of its own, and the store of the scene."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRINITY_DB_URL", scene.database.url)
    monkeypatch.setenv("TRINITY_DB_READ_URL", by_login(scene.database.url))


def learning_by(algorithm: str, run: str | None = None) -> RunConfig:
    """A run that learns by this algorithm, from tasks, from the imported rows of `set`, or from both."""
    recipe = RECIPES[algorithm]
    is_online = recipe.draws == "groups"
    content = {"name": run or f"by-{algorithm}", "model": {"scratch": {}}, "algorithm": algorithm}
    content |= {"taskset": "tasks", "trainer": {"steps": 3}} if is_online else {}
    content |= {"data": ["set"]} if not is_online or hasattr(recipe, "expert_rows") else {}
    return RunConfig.model_validate(content)


@pytest.mark.parametrize("purpose", starting_file.CONTENTS)
def test_a_starting_file_opens_a_run_over_what_it_says_to_import(scene: Scene, purpose: str) -> None:
    open_writer(scene.database, "tasks", "my-tasks")([task(1)])
    import_records(scene.database, "my-pairs", [preference(1)])
    Path("my_agent.py").write_text(AGENT)
    Path("run.yaml").write_text(starting_file.text(purpose, f"begun-{purpose}"))
    config = base.load(RunConfig, Path("run.yaml"))
    checks.check_fits(config)
    database, run = joining.open_run(config)
    database.close()
    assert run.name == f"begun-{purpose}"


def test_a_role_refuses_a_wrong_step_before_it_creates_or_changes_the_run(scene: Scene) -> None:
    Path("run.yaml").write_text(
        "{name: live, model: {scratch: {}}, taskset: tasks, algorithm: grpo, trainer: {steps: 3}}"
    )
    file, stored = Path("run.yaml"), "SELECT config #>> '{processors,score,0,name}' FROM trinity.run"
    stored += " WHERE name = 'live'"
    right = joining.read(file, (), joins=True)
    wrong = joining.read(file, ("processors.score=[exact_mach]",), joins=True)
    said = "processors.score: There is no score step 'exact_mach'; did you mean 'exact_match'?"
    with pytest.raises(ConfigError, match=re.escape(said)):
        joining.open_run(wrong)
    assert scene.values(stored) == []
    database, _ = joining.open_run(right)
    database.close()
    with pytest.raises(ConfigError, match=re.escape(said)):
        joining.open_run(wrong, change=True)
    assert scene.values(stored) == ["exact_match"]


@pytest.mark.parametrize("name", ["grpo", "chord", "raft", "sft", "dpo", "kto"])
def test_a_run_stores_what_its_algorithm_draws(scene: Scene, name: str) -> None:
    import_records(scene.database, "set", [preference(1)])
    database, run = joining.open_run(learning_by(name))
    database.close()
    stored = scene.value("SELECT draws FROM trinity.run WHERE id = %s", run.id)
    assert stored == RECIPES[name].draws


def test_a_label_algorithm_of_any_name_learns_from_good_and_bad_rows(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_records(scene.database, "set", [labelled(0, True), labelled(1, False), demonstration(2)])
    monkeypatch.setitem(RECIPES, "both_sides", LabelsConfig(name="both_sides", desirable_weight=2.0))
    for name, placed in (("both_sides", [True, True, False]), ("sft", [True, False, True])):
        database, run = joining.open_run(learning_by(name))
        database.close()
        opened = replace(scene, run=run)
        opened.encode()
        rows = "SELECT place IS NOT NULL FROM trinity.experience WHERE run_id = %s ORDER BY id"
        assert opened.values(rows, run.id) == placed, name


def test_a_run_that_begins_again_stores_what_its_new_algorithm_draws(scene: Scene) -> None:
    import_records(scene.database, "set", [preference(1)])
    for name, draws in (("sft", "rows"), ("kto", "labels")):
        database, run = joining.open_run(learning_by(name, run="again"))
        database.close()
        assert scene.value("SELECT draws FROM trinity.run WHERE id = %s", run.id) == draws


def test_a_run_shows_its_configuration_with_what_was_changed(scene: Scene, command_line: CommandLine) -> None:
    content = {"name": "live", "model": {"scratch": {}}, "taskset": "tasks", "algorithm": "grpo"}
    for steps in (3, 9):
        run = RunConfig.model_validate(content | {"trainer": {"steps": steps}})
        with scene.database.transaction() as tx:
            runs.open_run(
                tx,
                run.name,
                run.stored(),
                run.algorithm.draws,
                adoption.Sources(run.data, run.holdout),
                RunConfig.completed,
                lambda tx, open, differences, run=run: changes.change(  # type: ignore[misc]
                    tx, open, run, differences, asked_for=True
                ),
            )
    shown = json.loads(command_line("config", "show", "live", "--json").output)
    assert shown["trainer.steps"]["value"] == 9
    assert shown["trainer.steps"]["from"].startswith("changed 20")
    assert shown["taskset"] == {"value": "tasks", "from": "start of the run"}


def test_a_key_that_is_newer_than_the_run_shows_its_default(scene: Scene, command_line: CommandLine) -> None:
    content = {"name": "old", "model": {"scratch": {}}, "taskset": "tasks", "algorithm": "grpo"}
    stored = RunConfig.model_validate(content | {"trainer": {"steps": 3}}).stored()
    del stored["max_uses"]
    with scene.database.transaction() as tx:
        runs.open_run(tx, "old", stored, "groups")
    shown = json.loads(command_line("config", "show", "old", "--json").output)
    assert shown["max_uses"] == {"value": 1, "from": "default"}


def test_what_is_neither_file_nor_run_is_an_error(command_line: CommandLine) -> None:
    said = command_line("config", "show", "nothing").complaint
    assert said.startswith("There is no file and no run 'nothing'")
    assert command_line("config", "show", "no.yaml").complaint == "no.yaml: no such configuration file."
