"""The archiver is killed once at all it does, and often in the midst of what Lance does, life after life.

Each life starts on what the one before left behind; the last one ends by itself. After each, every payload is
read as a trainer would.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.command import Store, new_store, reversals
from tests.chaos import archive_lives
from tests.support.rows import Scene
from trinity_db.arrays import archive
from trinity_db.postgres.connection import Database
from trinity_db.schema.states import WorkerRole
from trinity_db.store import runs, workers
from trinity_db.store.selection import TaskSelection

# The fixture takes as long as there are lives, about two seconds for each, and bounds itself.
pytestmark = pytest.mark.timeout(300, func_only=True)

LIVES_SECONDS = 1200.0
GROUPS = 16  # of two rows: eight appends, and more than two merges
LIVES_WITHIN = 12
GROUPS_WITHIN = 80  # so that some are left for each life
ARCHIVE_ROWS = "SELECT archive_row, experience_id FROM payload ORDER BY 1"

Life = dict[str, Any]


@pytest.fixture(scope="module", params=["at each point", "in the midst"])
def lives(
    request: pytest.FixtureRequest,
    server: str,
    template: str,
    tmp_path_factory: pytest.TempPathFactory,
    summaries: list[dict[str, Any]],
) -> Iterator[tuple[Store, list[Life]]]:
    """A finished run, archived in many lives."""
    within = request.param == "in the midst"
    options = ["--within", str(LIVES_WITHIN)] if within else []
    with new_store(server, template, tmp_path_factory.mktemp("archive")) as store:
        config = trained(store, GROUPS_WITHIN if within else GROUPS)
        started = time.monotonic()
        found = live(store, config, *options)
        summaries.append(
            {
                "server": f"PostgreSQL 18, archiver killed {request.param}",
                "points": sum(life["code"] == -9 for life in found),
                "seconds": round(time.monotonic() - started),
            }
        )
        yield store, found


def trained(store: Store, num_groups: int) -> Path:
    """The configuration of a run all of whose rows are trained."""
    store.import_rows("tasks", "tasks", reversals(2))
    content = {"taskset": "tasks", "algorithm": "grpo", "trainer": {"steps": 1}}
    config = store.config("run", **content, processors={"archive": {}})
    assert store.run("process", config, "--drain").code == 0  # it creates the run
    with closing(Database(store.url)) as database:
        with database.transaction() as tx:
            run = runs.find(tx, "run")
            selection = TaskSelection({runs.find_taskset(tx, "tasks"): 1.0}, seed=0, walk="sequential")
            scene = Scene(database, run, selection, *(workers.register(tx, run, role) for role in WorkerRole))
        scene.publish(0, step=0)
        for _ in range(0, num_groups, 16):  # one of each task at most at a time
            scene.make_ready(16)
        scene.train(1, num_groups)
        with database.transaction() as tx:
            runs.finish(tx, run.id)
            for worker in (scene.explorer, scene.processor, scene.trainer):
                workers.stop(tx, worker)
    return config


def live(store: Store, config: Path, *options: str) -> list[Life]:
    """Live until a life ends by itself."""
    ended = subprocess.run(
        [sys.executable, archive_lives.__file__, *options, "process", config, "--drain"],
        stdout=subprocess.PIPE,
        env=store.environment | {"PYTHONPATH": os.getcwd()},
        text=True,
        timeout=LIVES_SECONDS,
        cwd=store.folder,
    )
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_lives_are_killed_until_one_ends_by_itself(lives: tuple[Store, list[Life]]) -> None:
    *codes, last = [life["code"] for life in lives[1]]
    assert last == 0
    assert codes.count(-9) >= 8
    assert set(codes) <= {-9, 0}


def test_every_payload_is_read_after_each_life(lives: tuple[Store, list[Life]]) -> None:
    assert {life["payloads"] for life in lives[1]} == {lives[0].value("SELECT count(*) FROM experience")}
    assert len({life["digest"] for life in lives[1]}) == 1


def test_at_the_end_everything_is_in_the_archive_and_once(
    lives: tuple[Store, list[Life]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = lives
    assert store.value("SELECT count(*) FROM payload WHERE data IS NOT NULL") == 0
    monkeypatch.setenv("TRINITY_DB_LANCE_URI", str(store.home / "lance"))
    writer = archive.Writer(store.value("SELECT name FROM archive"), must_exist=True)
    in_lance = sorted(row for part in writer.archive_rows() for row in part)
    assert in_lance == [(row["archive_row"], row["experience_id"]) for row in store.rows(ARCHIVE_ROWS)]
    assert store.value("SELECT num_rows FROM archive") == len(in_lance) > 0


def test_it_was_killed_at_what_the_promise_rests_on(lives: tuple[Store, list[Life]]) -> None:
    points = {point for life in lives[1] for point in life["points"]}
    if not points:
        pytest.skip("these lives were killed by the clock")
    for point in (
        "Archiver._take_lease: before Lance's create_table",
        "Archiver._take_lease: claim_archive, after COMMIT",
        "Archiver._move: after Lance's add",
        "Archiver._move: fsync #.lance",
        "Archiver._move: archive_payloads",
        "Archiver._move: count_archived, before COMMIT",
        "Archiver._move: count_archived, after COMMIT",
        "Archiver._tend: after Lance's optimize",
        "Archiver._sweep: before Lance's delete",
        "Archiver._sweep: after Lance's delete",
    ):
        assert point in points
