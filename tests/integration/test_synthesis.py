"""Tasks and responses that steps make: where they go, where they come from, what becomes of a bad answer."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.judge_server import WriterServer, writer_server
from tests.support.postgres import by_login, execute
from tests.support.rows import Scene, rollout, task
from tests.support.steps import processors
from trinity_db.data.dataset import open_writer
from trinity_db.data.records.records import Task
from trinity_db.errors import ConfigError
from trinity_db.postgres.connection import Database, connect
from trinity_db.postgres.logins import make_login, open_to_roles
from trinity_db.processors.config import ProcessorsConfig
from trinity_db.processors.lists import lists
from trinity_db.processors.lists.step import Context, Response
from trinity_db.processors.service import Processors
from trinity_db.schema.states import WorkerRole
from trinity_db.store import failures, workers

MADE = "SELECT t.payload FROM trinity.origin o JOIN trinity.task t ON t.id = o.task_id ORDER BY o.id"
REFUSED = "SELECT refused FROM trinity.synthesis WHERE refused IS NOT NULL ORDER BY id"
FAILED = "SELECT error FROM trinity.failure_view WHERE stage = 'synthesis'"
LIMITS = {"seconds": 20, "retries": 1, "in_flight": 4}


@pytest.fixture
def writer() -> Iterator[WriterServer]:
    with writer_server() as server:
        yield server


def explore(scene: Scene, response: str) -> None:
    """A group of the next task in which all answer the same."""
    [group] = scene.claim(1)
    scene.write([rollout(group, member, response) for member in group.members])


def role(scene: Scene, *steps: Any, worker: int | None = None, **more: Any) -> Processors:
    """A processor that makes things, ready."""
    config = {"score": ["exact_match"], "synthesis": list(steps), **more}
    settings = ProcessorsConfig.model_validate(config)
    context = Context(scene.database, None, 1.0)  # type: ignore[arg-type]
    made = processors(scene, config, drain=True, steps=lists.prepare(lists.load(settings), context))
    made.worker_id = worker or scene.processor
    return made


def run(scene: Scene, *steps: Any, **more: Any) -> None:
    """Make all that there is to make."""
    made = role(scene, *steps, **more)
    while made.work() or not made.is_done():
        made._news.wait(0.05)
    made.release()


def asking(writer: WriterServer, name: str, **options: Any) -> dict[str, Any]:
    return {"name": name, "url": writer.url, "model": "big", "limits": LIMITS, **options}


def own(folder: Path, code: str) -> str:
    file = folder / "maker.py"
    file.write_text("from trinity_db.processors.lists.step import Response\n" + code)
    return f"{file}:make"


def test_a_made_task_is_attempted_and_leads_back_to_its_source(scene: Scene, tmp_path: Path) -> None:
    explore(scene, "0")
    run(scene, own(tmp_path, "def make(task):\n    return task['prompt'] + ', again'\n"))
    [payload] = scene.values(MADE)
    assert payload == {"prompt": "task 0, again", "answer": "0"}
    claimed = scene.claim(8)  # seven of the first pass, then the made one
    assert [group.task["prompt"] for group in claimed][-1] == "task 0, again"
    last = claimed[-1]
    scene.write([rollout(last, member, str(member)) for member in last.members])
    scene.process()
    scene.train(step=1, size=2)
    scene.publish(1, step=1)
    found = scene.rows(
        "SELECT DISTINCT o.source_group_id, o.source_run, t.payload ->> 'prompt' FROM trinity.lineage(1) l"
        " JOIN trinity.experience e ON e.id = l.experience_id"
        " JOIN trinity.rollout_group g ON g.id = e.group_id"
        " JOIN trinity.origin_view o ON o.task_id = g.task_id"
        " JOIN trinity.task t ON t.id = o.source_task_id"
    )
    assert found == [(scene.value("SELECT min(id) FROM trinity.rollout_group"), "run", "task 0")]


def test_a_rewritten_task_keeps_its_answer_and_says_who_wrote_it(scene: Scene, writer: WriterServer) -> None:
    writer.says = {"task 0": [(503, {}, "busy"), "<think>hm</think>\nthe first task"]}
    scene.explore(1)
    run(scene, asking(writer, "rewrite"), made={"taskset": "others"})
    assert scene.values(MADE) == [{"prompt": "the first task", "answer": "0"}]
    [detail] = scene.values("SELECT detail FROM trinity.origin_view")
    assert {"model": "judge-7b", "prompt_tokens": 120, "completion_tokens": 30}.items() <= detail.items()
    assert "busy" in detail["failed_tries"][0]
    names = (
        "SELECT s.name FROM trinity.task t JOIN trinity.taskset s ON s.id = t.taskset_id ORDER BY t.id DESC"
    )
    assert scene.values(names)[0] == "others"


def test_only_solved_tasks_get_harder(scene: Scene, writer: WriterServer) -> None:
    answer = json.dumps({"prompt": "a harder one", "answer": 12})
    writer.says = {"task 0\n\nIts answer: 0": ["I shall not!", f"```json\n{answer}\n```"]}
    explore(scene, "0")
    explore(scene, "7")
    run(scene, asking(writer, "harder"))
    assert scene.values(MADE) == [{"prompt": "a harder one", "answer": "12"}]
    assert len(writer.asked) == 2, "a lie about JSON is asked for again, an unsolved task not at all"


@pytest.mark.parametrize(
    ("says", "error"),
    [
        (["{}"], "no JSON object with prompt and answer"),
        (['{"prompt": "x"'], "no JSON object with prompt and answer"),
        (['{"prompt": "Task  0", "answer": "0"}'], "the row's own task"),
        ([""], "it answers nothing"),
        ([["{}", {"finish_reason": "length"}]], "cut off"),
        ([(400, {}, "no such model")], "no such model"),
        (["die"], "http://"),
        (["hang"], "more than 0.3 s"),
    ],
)
def test_a_bad_answer_makes_nothing_and_is_listed(
    scene: Scene, writer: WriterServer, says: list[Any], error: str
) -> None:
    key = "task 0\n\nIts answer: 0"
    writer.says = {key: list(says)}
    explore(scene, "0")
    patient = {**LIMITS, "retries": 0}
    hurried = {**patient, "seconds": 0.3} if says == ["hang"] else patient
    run(scene, asking(writer, "harder", limits=hurried), max_attempts=2)
    assert scene.values(MADE) == []
    [said] = scene.values(FAILED)
    assert error in said
    assert scene.values("SELECT attempt FROM trinity.synthesis") == [2], "as often as max_attempts says"
    if says != ["hang"]:  # there the time may be over before the server has the request
        assert len(writer.asked) == 2
    writer.says = {key: ['{"prompt": "better", "answer": 1}']}
    assert failures.retry(scene.database, scene.run).rows == 1
    run(scene, asking(writer, "harder", limits=patient))
    assert scene.values(MADE) == [{"prompt": "better", "answer": "1"}]
    assert scene.values(FAILED) == []


def test_a_teachers_half_of_a_surrogate_pair_fails_its_group(scene: Scene, writer: WriterServer) -> None:
    writer.says = {"task 0": ["It is \ud83d 0."]}
    explore(scene, "7")
    run(scene, asking(writer, "distilled"), max_attempts=1)
    [said] = scene.values(FAILED)
    assert "half of a surrogate pair" in said


NO_TASKS = ["", " ", 3, {"answer": "1"}, {"messages": []}, "TASK\n5", "\ud800", Response("\ud800")]


def test_what_is_no_new_task_is_a_failure(scene: Scene, tmp_path: Path) -> None:
    for number in range(len(NO_TASKS)):
        explore(scene, str(number))
    made = own(tmp_path, f"RESULTS = {NO_TASKS}\ndef make(response):\n    return RESULTS[int(response)]\n")
    run(scene, made, max_attempts=1)
    assert scene.values("SELECT count(*) FROM trinity.task") == [8]
    errors = scene.values(FAILED)
    assert len(errors) == len(NO_TASKS)
    assert all("returned" in error for error in errors)


def test_the_same_is_made_once_and_caps_hold(scene: Scene, tmp_path: Path) -> None:
    made = own(
        tmp_path, "def make(id):\n    return [{'prompt': p} for p in ('A new one', 'a NEW  one', 'task 7')]\n"
    )
    scene.explore(2)
    run(scene, made, made={"per_source": 5})
    assert scene.values(MADE) == [{"prompt": "A new one"}]
    assert scene.values(REFUSED) == [{"duplicate": 2}, {"duplicate": 3}]


KNOWN = """
def make(id):
    said = [{"role": "user", "content": "wie VIELE äpfel?"}]
    return ["ÄPFEL  zählen", {"messages": said}, "birnen zählen"]
"""


def test_a_prompt_that_is_there_is_known_however_it_was_written(scene: Scene, tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "Wie viele Äpfel?"}]
    there = [Task({"prompt": "Äpfel zählen"}), Task({"messages": asked}), *map(task, range(20, 25))]
    open_writer(scene.database, "tasks", "others")(there)
    scene.explore(1)
    run(scene, own(tmp_path, KNOWN), made={"taskset": "others", "per_source": 9})
    assert [payload["prompt"] for payload in scene.values(MADE)] == ["birnen zählen"]
    assert scene.values(REFUSED) == [{"duplicate": 2}]


def test_a_loop_cannot_grow_without_end(scene: Scene, tmp_path: Path) -> None:
    made = own(tmp_path, "def make(id):\n    return [{'prompt': f'made {id} {n}'} for n in range(3)]\n")
    for _ in range(4):
        scene.explore(6)
        run(scene, made, made={"per_source": 2, "total": 7})
    assert len(scene.values(MADE)) == 7
    most = scene.value(
        "SELECT max(n) FROM (SELECT count(*) AS n FROM trinity.origin GROUP BY source_task_id) c"
    )
    assert most == 2


def test_a_teachers_answer_becomes_a_row_that_another_run_learns_from(
    scene: Scene, writer: WriterServer
) -> None:
    writer.says = {"task 0": ["It is 0."]}
    explore(scene, "7")
    run(scene, asking(writer, "distilled"), made={"data": "answers"})
    other = Scene.open(scene.database, "other", data=["answers"])
    found = other.rows(
        "SELECT x.prompt, x.response, o.step, o.source_run FROM trinity.experience e"
        " JOIN trinity.origin_view o ON o.experience_id = e.source_id"
        " JOIN trinity.experience_text x ON x.experience_id = o.experience_id WHERE e.run_id = %s",
        other.run.id,
    )
    assert found == [("task 0", "It is 0.", "distilled", "run")]


def test_an_answer_of_a_processor_that_lost_its_group_is_refused(
    scene: Scene, writer: WriterServer, caplog: pytest.LogCaptureFixture
) -> None:
    writer.says = {"task 0": ["first", "second"]}
    scene.explore(1)
    slow = role(scene, asking(writer, "rewrite"))
    while not scene.value("SELECT count(*) FROM trinity.synthesis WHERE worker_id IS NOT NULL"):
        slow.work()
    with scene.database.transaction() as tx:
        workers.stop(tx, scene.processor)
    run(scene, asking(writer, "rewrite"), worker=scene.new_worker(WorkerRole.PROCESS))
    before = scene.values(MADE)
    assert len(before) == 1
    while "synthesis: 1 groups were taken over by another worker" not in caplog.text:
        slow.work()
    slow.release()
    assert scene.values(MADE) == before


KILLED = """
import os, sys
from pathlib import Path
from tests.integration import test_synthesis as t
from tests.support.postgres import by_login, execute
from tests.support.rows import Scene, rollout
from trinity_db.postgres.connection import Database
from trinity_db.store import runs, synthesis
from trinity_db.schema.states import WorkerRole

written = synthesis.finish
def die(*arguments):
    written(*arguments)
    if arguments[2]:
        os.kill(os.getpid(), 9)  # the task is written, and not committed
synthesis.finish = die
database = Database(sys.argv[1])
with database.transaction() as tx:
    run = runs.find(tx, "run")
scene = Scene(database, run, None, 0, int(sys.argv[2]), 0)
t.run(scene, {"name": "rewrite", "url": sys.argv[3], "model": "big"})
"""


def test_a_processor_that_is_killed_between_answer_and_commit_makes_no_second_task(
    scene: Scene, writer: WriterServer
) -> None:
    writer.says = {"task 0": ["one", "another"]}
    scene.explore(1)
    database = scene.database
    command = [sys.executable, "-c", KILLED, database.url, str(scene.processor), writer.url]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2]
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert scene.values(MADE) == []
    with database.transaction() as tx:
        workers.stop(tx, scene.processor)
    run(scene, asking(writer, "rewrite"), worker=scene.new_worker(WorkerRole.PROCESS))
    assert scene.values(MADE) == [{"prompt": "another", "answer": "0"}]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"synthesis": ["rewrit"]}, "rewrite"),
        ({"synthesis": ["rewrite"]}, "url"),
        ({"synthesis": [{"name": "rewrite", "url": "nowhere", "model": "x"}]}, "has the form"),
        ({"made": {"total": 0}}, "greater than or equal to 1"),
    ],
)
def test_a_wrong_list_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ProcessorsConfig.model_validate(config)


def test_a_name_of_another_kind_is_refused_before_a_step_is_asked(scene: Scene, writer: WriterServer) -> None:
    scene.explore(1)
    with pytest.raises(ConfigError, match="'run' is a training run"):
        role(scene, asking(writer, "distilled"), made={"data": "run"})
    Scene.open(scene.database, "run-made")
    with pytest.raises(ConfigError, match="'run-made' is a training run"):
        role(scene, asking(writer, "distilled"))


def test_a_login_of_a_processor_may_make_what_it_makes(scene: Scene, tmp_path: Path) -> None:
    login, url = f"maker_{os.getpid()}", scene.database.url
    with closing(connect(url)) as owner:
        open_to_roles(owner)
        make_login(owner, login, "trinity_processor")
    made = own(tmp_path, "def make(task):\n    return [{'prompt': 'another'}, Response('an answer')]\n")
    open_writer(scene.database, "tasks", "new")([task(50)])
    with scene.database.transaction() as tx:
        computed = '{"priority": [{"name": "novelty"}]}'
        tx.execute("UPDATE trinity.run SET config = jsonb_set(config, '{processors}', %s)", [computed])
    explore(scene, "0")
    try:
        with closing(Database(by_login(url, login))) as bound:
            theirs = replace(scene, database=bound)
            worker = theirs.new_worker(WorkerRole.PROCESS)
            run(theirs, made, worker=worker, made={"per_source": 2, "taskset": "new"}, priority=["novelty"])
    finally:
        execute(url, "DROP ROLE {}", login)
    assert scene.values(MADE) == [{"prompt": "another"}]
    written = (
        "SELECT x.response FROM trinity.origin_view o JOIN trinity.experience_text x USING (experience_id)"
    )
    assert scene.values(written) == ["an answer"]
    assert scene.values("SELECT DISTINCT priority FROM trinity.group_priority") == [1.0]
