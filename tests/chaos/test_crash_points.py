"""A trainer is killed once at each statement, each COMMIT and each change to a file, life after life.

Each life starts on what the one before left behind, and is killed at the first point at which none was killed
before; the last one ends by itself. Then the run must be as one that was not disturbed. The points are met
and not listed, so that a new statement is a new point: see crash_at.py.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.acceptance.command import Store, new_store, reversals
from tests.chaos import crash_at
from trinity_db.models import folder_digest
from trinity_db.weights import cache, packed

# The fixture takes as long as there are points, about a second for each, and bounds itself.
pytestmark = pytest.mark.timeout(300, func_only=True)

LIVES_SECONDS = 1200.0
ROWS, EPOCHS, BATCH_SIZE, PUBLISH_EVERY = 24, 6, 4, 2
STEPS = EPOCHS * ROWS // BATCH_SIZE  # with a checkpoint for each point that comes after its record
RUN: dict[str, Any] = {
    "data": ["rows"],
    "algorithm": "sft",
    "trainer": {
        "epochs": EPOCHS,
        "batch_size": BATCH_SIZE,
        "publish_every": PUBLISH_EVERY,
        "checkpoint_every": 2 * PUBLISH_EVERY,  # so every second version has none
        "keep_checkpoints": 2,
        "publish_dtype": "bfloat16",  # so older versions become deltas
        "learning_rate": 1e-4,
        "schedule": "cosine",
    },
}
HISTORY = """
SELECT b.step, b.epoch, i.ordinal, e.source_id
FROM batch b JOIN batch_item i ON i.batch_id = b.id JOIN experience e ON e.id = i.experience_id
WHERE b.state = 'committed' ORDER BY b.step, i.ordinal
"""


class Lives(NamedTuple):
    """A run from its first life to its last, alone in its store."""

    store: Store
    codes: list[int]
    points: list[list[str]]
    """Those that a life passed; where it was killed, that is the last one."""


@pytest.fixture(scope="module")
def imports(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of a database with the rows."""
    with new_store(server, template, tmp_path_factory.mktemp("imports")) as store:
        rows = [{"prompt": row["prompt"], "completion": row["answer"]} for row in reversals(2)[:ROWS]]
        store.import_rows("rows", "demonstrations", rows)
        yield urlsplit(store.url).path.strip("/")


@pytest.fixture(scope="module")
def undisturbed(server: str, imports: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    with new_store(server, imports, tmp_path_factory.mktemp("undisturbed")) as store:
        yield live(store, "--undisturbed")


@pytest.fixture(scope="module")
def killed(
    server: str,
    imports: str,
    tmp_path_factory: pytest.TempPathFactory,
    summaries: list[dict[str, Any]],
) -> Iterator[Lives]:
    with new_store(server, imports, tmp_path_factory.mktemp("killed")) as store:
        started = time.monotonic()
        lives = live(store)
        summaries.append(
            {
                "server": "PostgreSQL 18, crash points of the trainer",
                "points": len(lives.points) - 1,
                "seconds": round(time.monotonic() - started),
            }
        )
        yield lives


def live(store: Store, *options: str) -> Lives:
    """Live until a life ends by itself."""
    config = store.config("run", **RUN)
    ended = subprocess.run(
        [sys.executable, crash_at.__file__, *options, "train", config],
        stdout=subprocess.PIPE,
        env=store.environment | {"PYTHONPATH": os.getcwd()},
        text=True,
        timeout=LIVES_SECONDS,
        cwd=store.folder,
    )
    lives = [json.loads(line) for line in ended.stdout.splitlines()]
    return Lives(store, [life["code"] for life in lives], [life["points"] for life in lives])


def test_each_life_is_killed_at_a_point_of_its_own_and_the_last_ends_by_itself(killed: Lives) -> None:
    *codes, last = killed.codes
    assert set(codes) == {-9}
    assert last == 0
    died_at = [points[-1] for points in killed.points[:-1]]
    assert len(set(died_at)) == len(died_at)
    assert set(killed.points[-1]) <= set(died_at)


def test_every_point_of_an_undisturbed_run_was_survived(killed: Lives, undisturbed: Lives) -> None:
    assert undisturbed.codes == [0]
    died_at = {points[-1] for points in killed.points[:-1]}
    assert set(undisturbed.points[0]) <= died_at
    # Among them what the promises rest on, and what only a run that was killed comes to.
    for point in (
        "draw_batch: lease_experiences",
        "Trainer._work: record_metrics, before COMMIT",
        "Trainer._work: record_metrics, after COMMIT",
        "publish: fsync model.safetensors",
        "publish: os.rename",
        "checkpoint: os.mkdir",
        "checkpoint: open tensors.safetensors",
        "checkpoint: fsync trainer_state.pt",
        "Saving.finish: os.rename",
        "Publisher._record_checkpoint: record_checkpoint",
        "Publisher._record_checkpoint: prune_checkpoints, after COMMIT",
        "publish: include_batches",
        "publish: prune_checkpoints, after COMMIT",
        "_go_on_from: reopen_experiences",
        "_delete_weights: shutil.rmtree",
        "clear_leftovers: shutil.rmtree",
        "OlderVersions._convert: open delta.json",
        "OlderVersions._convert: os.rename",
        "OlderVersions._remove_whole: os.rename",
        "OlderVersions._remove_whole: may_pack, before COMMIT",
        "OlderVersions._remove_whole: may_pack, after COMMIT",
        "OlderVersions._remove_whole: shutil.rmtree",
    ):
        assert point in died_at


def test_each_row_was_used_once_an_epoch(killed: Lives) -> None:
    uses = killed.store.rows(
        """
        SELECT e.state::text, e.use_count, count(*) AS uses, count(DISTINCT b.epoch) AS epochs
        FROM experience e
        JOIN batch_item i ON i.experience_id = e.id
        JOIN batch b ON b.id = i.batch_id AND b.state = 'committed'
        WHERE e.source_id IS NOT NULL GROUP BY e.id
        """
    )
    assert uses == [{"state": "trained", "use_count": EPOCHS, "uses": EPOCHS, "epochs": EPOCHS}] * ROWS


def test_each_step_was_committed_once_and_is_in_the_version_that_says_so(killed: Lives) -> None:
    batches = killed.store.rows(
        """
        SELECT b.step, (SELECT min(p.version) FROM policy_version p
                        WHERE p.step >= b.step AND p.run_id = b.run_id AND p.withdrawn_at IS NULL)
                       = b.included_version AS included
        FROM batch b WHERE b.state = 'committed' ORDER BY b.step
        """
    )
    assert batches == [{"step": step, "included": True} for step in range(1, STEPS + 1)]


def test_no_worker_holds_anything(killed: Lives) -> None:
    held = """
        SELECT (SELECT count(*) FROM experience WHERE state = 'leased' OR worker_id IS NOT NULL)
             + (SELECT count(*) FROM batch WHERE state = 'leased')
    """
    assert killed.store.value(held) == 0
    assert killed.store.value("SELECT state::text FROM run WHERE kind = 'train'") == "finished"
    assert killed.store.value("SELECT count(*) FROM metric WHERE name = 'refused/batches'") == 0


def test_the_same_rows_were_drawn_in_the_same_order(killed: Lives, undisturbed: Lives) -> None:
    history = killed.store.rows(HISTORY)
    assert history == undisturbed.store.rows(HISTORY)
    assert len(history) == ROWS * EPOCHS


def test_weights_and_optimizer_are_equal_to_the_bit(killed: Lives, undisturbed: Lives) -> None:
    last = "SELECT step, checkpoint_hash, resume_hash FROM policy_version ORDER BY version DESC LIMIT 1"
    assert killed.store.rows(last) == undisturbed.store.rows(last)
    assert killed.store.rows(last)[0]["step"] == STEPS
    assert killed.store.rows(last)[0]["resume_hash"] is not None


def test_only_the_checkpoints_of_versions_are_left(killed: Lives) -> None:
    named = killed.store.rows(
        "SELECT checkpoint AS place FROM policy_version WHERE checkpoint IS NOT NULL"
        " UNION ALL SELECT resume_from FROM policy_version WHERE resume_from IS NOT NULL"
    )
    folders = [path for path in (killed.store.home / "checkpoints" / "run").iterdir() if path.is_dir()]
    places = [str(folder).removesuffix(packed.SUFFIX) for folder in folders]
    assert sorted(places) == sorted(row["place"] for row in named)
    kinds = sorted(path.name.partition("-")[0] for path in folders if path.suffix != packed.SUFFIX)
    assert kinds[:2] == 2 * ["checkpoint"]
    assert set(kinds[2:]) == {"version"}
    assert any(path.suffix == packed.SUFFIX for path in folders)


def test_every_version_of_the_runs_line_can_be_loaded(
    killed: Lives, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path))
    rows = killed.store.rows(
        "SELECT version, checkpoint, checkpoint_hash FROM policy_version WHERE withdrawn_at IS NULL"
    )
    assert len(rows) == 1 + STEPS // PUBLISH_EVERY
    for row in rows:
        folder = cache.whole(Path(row["checkpoint"]), row["version"], row["checkpoint_hash"])
        assert folder_digest.verify(folder, row["checkpoint_hash"])
