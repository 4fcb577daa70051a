"""Evidence of overlaps with tasks for evaluation: what the step and the command find and write."""

import json

import pytest

from tests.support.command_line import CommandLine
from tests.support.rows import Scene, rollout
from tests.support.steps import load, process
from trinity_db.config.shared import ModelConfig
from trinity_db.data.dataset import open_writer
from trinity_db.data.records.records import Demonstration, Task
from trinity_db.postgres.connection import Database
from trinity_db.processors.lists.lists import Steps
from trinity_db.processors.lists.step import Context

CLIPS = "Natalia sold clips to forty eight of her friends in April and half as many in May"
WENG = "Weng earns twelve dollars an hour for babysitting and yesterday she did fifty minutes of it"
EVIDENCE = (
    "SELECT experience_id, task_id, taskset, evaluated_taskset, measure, share, state"
    " FROM trinity.overlap_view ORDER BY experience_id"
)


def evaluated(scene: Scene) -> None:
    open_writer(scene.database, "tasks", "test")([Task({"prompt": CLIPS}), Task({"prompt": WENG})])


def note(scene: Scene) -> Steps:
    """As a processor that has just started prepares it."""
    [loaded] = load("clean", {"name": "note_overlap", "tasksets": ["test"]})
    context = Context(scene.database, ModelConfig.model_validate({"path": "none"}), 1.0)
    return {"clean": [loaded.prepared(context)]}


def test_rows_and_their_tasks_pass_and_what_they_have_of_others_is_noted_once(scene: Scene) -> None:
    evaluated(scene)
    [group] = scene.claim(1, group_size=3)
    task = scene.value("SELECT task_id FROM trinity.rollout_group")
    with scene.database.transaction() as tx:
        changed = json.dumps({"prompt": f"{WENG}. How much?", "answer": "10"})
        tx.execute("UPDATE trinity.task SET payload = %s WHERE id = %s", [changed, task])
    half = " ".join(CLIPS.split()[:15])
    scene.write([rollout(group, 0, "1"), rollout(group, 1, f"I know: {CLIPS}!"), rollout(group, 2, half)])
    for _ in range(2):  # the second time as after a crash
        process(scene, {"clean": [], "score": [], "group": {"min_size": 1}}, note(scene))
        states = scene.values("SELECT state::text FROM trinity.experience ORDER BY id")
        assert states == ["ready"] * 3
        with scene.database.transaction() as tx:
            tx.execute("UPDATE trinity.experience SET state = 'raw'")
            tx.execute(
                "UPDATE trinity.rollout_group SET state = 'complete', ready_at = NULL, ready_xact = NULL"
            )
    _, second, third = scene.values("SELECT id FROM trinity.experience ORDER BY id")
    assert scene.rows('SELECT * FROM trinity."drop"') == []
    runs = len(CLIPS.split()) - 12
    assert scene.rows(EVIDENCE) == [
        (second, task, "tasks", "test", "13 words", 1.0, "raw"),
        (third, task, "tasks", "test", "13 words", 3 / runs, "raw"),
        (None, task, "tasks", "test", "13 words", 1.0, None),
    ]


@pytest.fixture
def imported(scene: Scene, shared_database: Database, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setenv("TRINITY_DB_URL", shared_database.url)
    evaluated(scene)
    training = [
        Demonstration(Task({"prompt": f"{WENG} {number}"}), f"The answer is {number}. {CLIPS}", {})
        for number in range(2)
    ]
    open_writer(scene.database, "demonstrations", "shown")(training)
    return scene


def test_the_command_compares_the_tasks_and_rows_of_a_data_set(
    imported: Scene, command_line: CommandLine
) -> None:
    said = json.loads(command_line("overlap", "shown", "--with", "test", "--json").output)
    found = said.pop("overlaps")
    tasks = imported.value(
        "SELECT count(*) FROM trinity.task t JOIN trinity.taskset s ON s.id = t.taskset_id"
        " WHERE s.name = 'shown'"
    )
    assert said == {"tasks": tasks, "rows": 2, "new": tasks + 2, "evaluated_tasks": 2, "too_short": 0}
    assert [one["share"] for one in found] == [1.0] * (tasks + 2)
    again = json.loads(command_line("overlap", "shown", "--with", "test", "--json").output)
    assert (again["new"], len(again["overlaps"])) == (0, tasks + 2)
    table = command_line("overlap", "shown", "--with", "test", "--limit", "1").output
    assert "New evidence: 0; overlap_view lists all of it." in table
    other = json.loads(command_line("overlap", "shown", "--with", "test", "--words", "200", "--json").output)
    assert [one["measure"] for one in other["overlaps"]] == ["200 words"] * other["new"]


def test_what_is_not_there_is_named_in_one_line(imported: Scene, command_line: CommandLine) -> None:
    for arguments, message in (
        (("show", "--with", "test"), "There is no taskset, data set or run 'show'; did you mean 'shown'?"),
        (("shown", "--with", "tset"), "There is no taskset 'tset' with tasks"),
    ):
        assert command_line("overlap", *arguments).complaint.startswith(message)
