"""Processors as processes, with reward functions that are slow or deadly."""

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.command import Store, new_store, reversals
from tests.support.rows import Scene
from tests.support.waiting import wait_until
from trinity_db.postgres.connection import Database
from trinity_db.schema.states import WorkerRole
from trinity_db.store import runs, workers
from trinity_db.store.selection import TaskSelection

# `slow` judges until the gate opens; `deadly` ends the process as a segfault would.
FUNCTIONS = """
import os, time

FOLDER = os.path.dirname(__file__)

def slow(response, task):
    open(os.path.join(FOLDER, "judging"), "w").close()
    while not os.path.exists(os.path.join(FOLDER, "gate")):
        time.sleep(0.01)
    return float(response)

def deadly(response, task):
    if response == "666.0":
        os._exit(139)
    return float(response)
"""
STATES = "SELECT state::text, count(*) FROM experience WHERE worker_id IS NULL GROUP BY 1 ORDER BY 1"


@pytest.fixture
def store(server: str, template: str, tmp_path: Path) -> Iterator[Store]:
    with new_store(server, template, tmp_path) as store:
        store.import_rows("tasks", "tasks", reversals(2))
        (store.folder / "functions.py").write_text(FUNCTIONS)
        yield store


def configure(store: Store, function: str, **content: Any) -> Path:
    """The configuration of a run whose rewards come from one of the functions; the run exists then."""
    config = store.config(
        "run",
        taskset="tasks",
        algorithm="grpo",
        trainer={"steps": 3},
        processors={"score": [f"{store.folder}/functions.py:{function}"]},
        **content,
    )
    ended = store.run("process", config, "--drain")
    assert ended.code == 0, ended.stderr
    return config


def explore(store: Store, *rewards: float) -> None:
    """A group of raw rows."""
    with closing(Database(store.url)) as database:
        with database.transaction() as tx:
            run = runs.find(tx, "run")
            selection = TaskSelection({runs.find_taskset(tx, "tasks"): 1.0}, seed=0, walk="sequential")
            scene = Scene(database, run, selection, *(workers.register(tx, run, of) for of in WorkerRole))
        scene.explore(1, rewards=rewards)


def counts(store: Store) -> dict[str, int]:
    return {row["state"]: row["count"] for row in store.rows(STATES)}


def test_a_stop_keeps_what_is_judged_and_gives_the_rest_back(store: Store) -> None:
    config = configure(store, "slow")
    explore(store, 1.0, 2.0, 3.0)
    processors = store.start("process", config)
    wait_until((store.folder / "judging").exists, "the first row is being judged")
    processors.signal(signal.SIGTERM)
    wait_until(lambda: "finishing current work" in processors.errors, "it hears the signal")
    (store.folder / "gate").touch()
    assert processors.wait().code == 0
    assert counts(store) == {"clean": 2, "scored": 1}
    assert store.run("process", config, "--drain").code == 0
    assert counts(store) == {"ready": 3}


def test_a_processor_that_is_killed_between_its_lists_leaves_its_rows_to_the_next(store: Store) -> None:
    config = configure(store, "slow")
    explore(store, 1.0, 2.0, 3.0)
    processors = store.start("process", config)
    wait_until((store.folder / "judging").exists, "the first row is being judged")
    processors.signal(signal.SIGKILL)
    processors.wait()
    assert store.rows("SELECT state::text, count(*) FROM experience GROUP BY 1") == [
        {"state": "raw", "count": 3}
    ]
    (store.folder / "gate").touch()
    assert store.run("process", config, "--drain").code == 0
    assert counts(store) == {"ready": 3}
    assert store.rows(
        "SELECT processor, attempt, outcome::text, count(*) FROM processing GROUP BY 1, 2, 3 ORDER BY 1"
    ) == [
        {"processor": "clean", "attempt": 2, "outcome": "passed", "count": 3},
        {"processor": "score", "attempt": 3, "outcome": "passed", "count": 3},
    ]


def test_a_row_that_kills_its_processor_is_dropped_and_the_others_go_on(store: Store) -> None:
    config = configure(store, "deadly")
    explore(store, 1.0, 666.0, 0.0)
    explore(store, 1.0, 0.0)
    codes: list[int] = []
    while not codes or codes[-1]:
        codes.append(store.run("process", config, "--drain").code)
        assert len(codes) < 10, "it is never given up"
    # Once by both lists. Then by score steps: twice with neighbours, once alone; a neighbour in front of it
    # had its turn alone in between.
    assert codes == [139, 139, 139, 139, 0]
    assert counts(store) == {"dropped": 1, "ready": 4}
    assert store.rows('SELECT stage, reason, detail FROM "drop"') == [
        {
            "stage": "score",
            "reason": "score_crashed",
            "detail": {"error": "3 times in a row the score processor ended before its verdict"},
        }
    ]


def test_a_group_waits_for_a_person_across_processes(store: Store) -> None:
    config = configure(store, "deadly", requires_reward="human")
    explore(store, 1.0, 0.0)
    assert store.run("process", config, "--drain").code == 0
    assert counts(store) == {"scored": 2}, "a drain waits for no reward"
    processors = store.start("process", config)
    ids = [row["id"] for row in store.rows("SELECT id FROM experience ORDER BY id")]
    assert store.run("reward", str(ids[0]), "0.5").code == 0
    file = store.folder / "said.jsonl"
    file.write_text(f'{{"experience": {ids[1]}, "value": -0.5}}\n')
    assert counts(store) == {"scored": 2}
    assert store.run("reward", "--from", file).code == 0
    store.wait_for("SELECT count(*) = 2 FROM experience WHERE state = 'ready'", processors)
    assert store.value("SELECT reward_mean FROM rollout_group") == 0.5


def test_a_drain_archives_what_a_run_has_done_with(store: Store) -> None:
    config = configure(store, "deadly")
    explore(store, 1.0, 0.0)
    explore(store, 1.0)  # too small: dropped
    assert store.run("process", config, "--drain").code == 0
    [dropped] = store.rows("SELECT id FROM experience WHERE state = 'dropped'")
    before = store.run("show", str(dropped["id"]), "--json").stdout
    drain = ("process", config, "--drain", "--set", "processors.archive={}")
    assert store.run(*drain).code == 0
    away = "SELECT e.state::text FROM experience e JOIN payload p ON experience_id = e.id WHERE data IS NULL"
    assert store.rows(away) == [{"state": "dropped"}]
    assert store.run("show", str(dropped["id"]), "--json").stdout == before
    (store.home / "lance").rename(store.home / "elsewhere")
    gone = store.run("show", str(dropped["id"]))
    assert gone.code == 1
    assert "TRINITY_DB_LANCE_URI" in gone.stderr
    store.rows("UPDATE run SET state = 'finished', finished_at = now() WHERE kind = 'train' RETURNING id")
    refused = store.run(*drain)
    assert refused.code == 1
    assert "TRINITY_DB_LANCE_URI" in refused.error_lines[-1]
    found = store.run(*drain, TRINITY_DB_LANCE_URI=str(store.home / "elsewhere"))
    assert found.code == 0, found.stderr
    assert store.value("SELECT count(*) FROM payload WHERE data IS NOT NULL") == 0
