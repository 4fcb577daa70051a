"""`trinity-db rescore` as a process: killed in the middle while the run trains on."""

import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.command import Process, Store, new_store
from tests.support.rows import Scene, task
from tests.support.steps import process
from tests.support.waiting import wait_until
from trinity_db.data.dataset import open_writer
from trinity_db.postgres.connection import Database
from trinity_db.schema.states import WorkerRole
from trinity_db.store import runs, workers
from trinity_db.store.selection import TaskSelection

FUNCTION = """
import time

def judged(response, task):
    {pause}
    return float(response) + {more}
"""
GROUPS, SIZE = 120, 4
TASKS = 25
TURN_SECONDS = 0.05  # between turns of exploring and training, which leave the processes time on few cores
EVENTS = "SELECT count(*) FROM reward_event WHERE source = 'rescore'"
TWICE = (
    "SELECT count(*) FROM (SELECT FROM reward_event WHERE source = 'rescore'"
    " GROUP BY rollout_id, processor_version HAVING count(*) > 1) twice"
)
MIXED = """
SELECT count(*)
FROM (SELECT FROM batch_item i JOIN experience e ON e.id = i.experience_id
      GROUP BY i.batch_id, e.group_id
      HAVING bool_or(i.reward < 100) AND bool_or(i.reward >= 100)) mixed
"""
OLD = "SELECT * FROM reward_event WHERE id <= %(last)s ORDER BY id"


@pytest.fixture
def store(server: str, template: str, tmp_path: Path) -> Iterator[Store]:
    with new_store(server, template, tmp_path) as store:
        yield store


def write(store: Store, more: int, pause: str = "pass") -> str:
    (store.folder / "functions.py").write_text(FUNCTION.format(more=more, pause=pause))
    return f"{store.folder}/functions.py:judged"


def configure(store: Store, steps: Mapping[str, Any]) -> Path:
    config = store.config(
        "run",
        taskset="tasks",
        algorithm="grpo",
        max_staleness=None,
        trainer={"steps": 500},
        processors=steps,
    )
    assert store.run("process", config, "--drain").code == 0
    return config


def scene_of(database: Database) -> Scene:
    """The run, whose explorer and trainer are this process, and at first its processors."""
    with database.transaction() as tx:
        run = runs.find(tx, "run")
        selection = TaskSelection({runs.find_taskset(tx, "tasks"): 1.0}, seed=0, walk="sequential")
        scene = Scene(database, run, selection, *(workers.register(tx, run, of) for of in WorkerRole))
    scene.publish(0, step=0)
    return scene


def train_until(scene: Scene, step: int, *alive: Process, seen: int) -> int:
    """Explore and train on while the processes judge, until so many rows were judged again; the next step."""

    def turn() -> bool:
        nonlocal step
        scene.explore(1, rewards=(1.0, 0.0, 0.5, 0.25))
        if (batch := scene.draw(step, 1)) is not None:
            scene.commit(batch)
            step += 1
        for one in alive:
            assert one.running, f"ended meanwhile: {one.wait()}"
        return bool(scene.value(EVENTS.replace("reward_event", "trinity.reward_event")) >= seen)

    wait_until(turn, f"{seen} rows are judged again", TURN_SECONDS)
    return step


def test_a_rescore_that_is_killed_goes_on_and_the_run_trains_meanwhile(store: Store) -> None:
    steps = {"score": [write(store, 0)]}
    with closing(Database(store.url)) as database:
        open_writer(database, "tasks", "tasks")([task(number) for number in range(TASKS)])
        config = configure(store, steps)
        scene = scene_of(database)
        scene.explore(GROUPS, rewards=(1.0, 0.0, 0.5, 0.25))
        process(scene, steps)
        before = store.rows("SELECT * FROM reward_event ORDER BY id")
        write(store, 100, "time.sleep(0.002)")
        processors = store.start("process", config)
        first = store.start("rescore", "run", "--config", config)
        step = train_until(scene, 1, processors, first, seen=GROUPS * SIZE // 4)
        first.kill()
        both = [store.start("rescore", "run", "--json", "--config", config) for _ in range(2)]
        train_until(scene, step, processors, seen=GROUPS * SIZE)
        said = [json.loads(one.wait().stdout) for one in both]
    assert store.value("SELECT count(*) FROM batch WHERE state = 'committed'") > 10
    assert store.value(MIXED) == 0, "no batch compared the rewards of two versions"
    assert store.value(TWICE) == 0, "no row was judged twice"
    assert store.value(EVENTS) == GROUPS * SIZE, "and none was forgotten"
    assert store.rows(OLD, last=before[-1]["id"]) == before
    rewards = "SELECT count(*) FROM experience WHERE id <= %(last)s AND reward >= 100"
    assert store.value(rewards, last=GROUPS * SIZE) == GROUPS * SIZE
    assert store.value("SELECT count(*) FROM rescore") == 0
    assert not sum(one["failed"] for one in said)
    assert sum(one["rows"] for one in said) <= GROUPS * SIZE * 3 // 4
    processors.signal(signal.SIGTERM)
    assert processors.wait().code == 0
