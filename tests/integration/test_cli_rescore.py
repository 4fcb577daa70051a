"""`trinity-db rescore`: which steps it asks with which weight, what it prints, and what it refuses."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine, Done
from tests.support.rows import Scene, demonstration, import_records
from tests.support.steps import process
from tests.unit.test_reward_model import build as build_reward_model
from trinity_db.models.folder_digest import digest
from trinity_db.postgres.connection import Database
from trinity_db.run.configuration import RunConfig

MODEL = {"scratch": {"alphabet": "01", "hidden_size": 16, "layers": 1, "heads": 2, "context": 16}}
REWARDS = "SELECT reward FROM trinity.experience ORDER BY id"

Command = Callable[..., Done]


@pytest.fixture
def own(tmp_path: Path) -> str:
    """The run's step, as a configuration names it; it gives the response."""
    (tmp_path / "own.py").write_text("def judged(response):\n    return float(response)\n")
    return f"{tmp_path}/own.py:judged"


@pytest.fixture
def judged(scene: Scene, own: str, tmp_path: Path) -> Scene:
    """A run with two groups of judged rows, whose step has changed since: it gives ten more."""
    content = {
        "name": "judged",
        "model": MODEL,
        "taskset": "tasks",
        "algorithm": "grpo",
        "trainer": {"steps": 1},
        "processors": {"score": [{"name": own, "weight": 2.0}]},
    }
    config = RunConfig.model_validate(content)
    (tmp_path / "judged.yaml").write_text(json.dumps(content))
    judged = scene.beside("judged", config.stored())
    judged.publish(0, step=0)
    judged.explore(2)
    process(judged, {"score": [{"name": own, "weight": 2.0}]})
    (tmp_path / "own.py").write_text("def judged(response):\n    return float(response) + 10\n")
    return judged


@pytest.fixture
def command(
    judged: Scene,
    shared_database: Database,
    command_line: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[Command]:
    """Runs the command on the run, with its file."""
    config = ("--config", tmp_path / "judged.yaml")
    monkeypatch.setenv("TRINITY_DB_URL", shared_database.url)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield lambda *arguments: command_line("rescore", judged.run.name, *map(str, (*config, *arguments)))
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_the_steps_of_the_run_have_the_weights_that_they_have_there(
    judged: Scene, own: str, command: Command
) -> None:
    counted = json.loads(command("--dry-run", "--json").output)
    assert counted == {"run": "judged", "steps": {own: 2.0}, "groups": 2, "rows": 4}
    assert judged.values(REWARDS) == [2.0, 0.0] * 2, "a dry run changes nothing"
    assert judged.value("SELECT count(*) FROM trinity.step_list WHERE processor = 'score'") == 1
    done = json.loads(command("--json").output)
    assert done.pop("seconds") >= 0
    facts = {"list_version": 2, "rows": 4, "groups": 2, "changed": 4, "kept": 0, "failed": 0}
    assert done == {"run": "judged", "steps": {own: 2.0}, **facts}
    assert judged.values(REWARDS) == [22.0, 20.0] * 2
    running = "SELECT id FROM trinity.worker WHERE id > %s AND stopped_at IS NULL"
    assert judged.values(running, judged.trainer) == []


def test_another_step_stands_beside_the_reward_unless_a_file_weighs_it(
    judged: Scene, own: str, command: Command, tmp_path: Path
) -> None:
    printed = command("--steps", "position_match", "--where", "reward = 0").output
    assert "position_match, weight 0 (not part of the reward)" in printed
    assert judged.values(REWARDS) == [2.0, 0.0] * 2
    file = tmp_path / "steps.yaml"
    file.write_text(f"processors: {{score: [{{name: '{own}', weight: 3}}, {{name: exact_match}}]}}")
    done = command("--steps", file, "--rate", 1000, "--version", 0, "--json")
    assert json.loads(done.output)["steps"] == {own: 3.0, "exact_match": 0.0}
    assert judged.values(REWARDS) == [33.0, 30.0] * 2


def test_a_reward_model_that_was_trained_further_judges_again(
    judged: Scene, command: Command, tmp_path: Path
) -> None:
    taste = judged.beside("taste")

    def publish(version: int) -> None:
        folder = build_reward_model(tmp_path / f"v{version}", seed=version)
        with judged.database.transaction() as tx:
            tx.execute(
                "INSERT INTO trinity.policy_version"
                " (run_id, version, step, checkpoint, checkpoint_hash, skipped)"
                " VALUES (%s, %s, %s, %s, %s, 0)",
                [taste.run.id, version, version, str(folder), digest(folder)],
            )

    file = tmp_path / "steps.yaml"
    file.write_text("score: [{name: reward_model, run: taste, weight: 1}]")
    publish(0)
    assert "as the folder of version 0" in command("--steps", file).complaint, "no trainer marked it"
    (tmp_path / "run.json").write_text(json.dumps({"store": "s", **taste.run.identity}))
    weights = tmp_path / "v0" / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert "differ from what run taste published" in command("--steps", file).complaint
    weights.write_bytes(content)
    assert json.loads(command("--steps", file, "--json").output)["changed"] == 4
    assert json.loads(command("--steps", file, "--dry-run", "--json").output)["rows"] == 0
    publish(1)
    before = judged.values(REWARDS)
    assert json.loads(command("--steps", file, "--dry-run", "--json").output)["rows"] == 4
    assert json.loads(command("--steps", file, "--json").output)["changed"] == 4
    assert judged.values(REWARDS) != before
    assert json.loads(command("--steps", file, "--dry-run", "--json").output)["rows"] == 0


def test_rows_that_fail_end_it_with_exit_code_1(judged: Scene, command: Command, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def judged(response):\n    return 1 / float(response)\n")
    done = command()
    assert done.code == 1
    assert "Groups with failed rows keep their rewards" in done.stderr
    assert judged.values(REWARDS) == [2.0, 0.0] * 2
    assert json.loads(command("--where", "false", "--json").output)["rows"] == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--where", "rewrd > 1"), '--where rewrd > 1: column "rewrd" does not exist'),
        (("--taskset", "others"), "There is no taskset 'others'"),
        (("--steps", "exact_mach"), "did you mean 'exact_match'?"),
        (("--steps", "no.yaml"), "no.yaml: no such configuration file."),
        (("--steps", "exact_match", "--steps", "exact_match"), "is listed twice"),
    ],
)
def test_a_mistake_is_one_line(command: Command, arguments: tuple[str, ...], complaint: str) -> None:
    assert complaint in command(*arguments).complaint


def test_a_teacher_gives_no_reward_and_a_data_set_was_not_judged(
    command_line: CommandLine, shared_database: Database, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "steps.yaml").write_text("score: [{name: teacher, path: somewhere}]")
    said = command("--steps", tmp_path / "steps.yaml").complaint
    assert said == "--steps names no step that gives a reward."
    import_records(shared_database, "data", [demonstration(1)])
    said = command_line("rescore", "data").complaint
    assert said == "'data' is an imported data set, whose rows no step has judged."
