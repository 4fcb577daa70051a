"""A run whose store is damaged by a wrong statement, and is restored as it was before: it goes on to its end.

The embedded server has a continuous backup. The base backup is taken while the run works.
"""

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.command import Ended, Store, reversals, reversing
from tests.chaos.aftermath import STORED, USES
from tests.chaos.promises import (
    test_groups_and_their_members_agree,
    test_no_row_has_more_committed_uses_than_allowed,
    test_nothing_is_leased_at_rest,
    test_rewards_are_those_of_their_events_once,
    test_statistics_of_trained_groups_are_those_of_their_members,
    test_the_lineage_of_the_last_version_is_every_committed_use_once,
    test_use_counts_are_those_of_the_committed_batches,
)
from tests.postgres import discard, new_home
from trinity_db import embedded

__all__ = [
    "test_groups_and_their_members_agree",
    "test_no_row_has_more_committed_uses_than_allowed",
    "test_nothing_is_leased_at_rest",
    "test_rewards_are_those_of_their_events_once",
    "test_statistics_of_trained_groups_are_those_of_their_members",
    "test_the_lineage_of_the_last_version_is_every_committed_use_once",
    "test_use_counts_are_those_of_the_committed_batches",
]

STEPS, MORE_STEPS, BATCH_SIZE = 1000, 8, 4
COMMITTED = "SELECT count(*) >= %(steps)s FROM batch WHERE state = 'committed'"
LAST_STEP = "SELECT max(step) FROM batch WHERE state = 'committed'"
LAST_PUBLISHED = "SELECT max(step) FROM policy_version"  # the folder has a note of it


@dataclass(frozen=True)
class Rehearsed:
    """The store after all of it, and what it had before."""

    store: Store
    acknowledged: list[dict[str, Any]]
    """The rollouts that the store had at the time."""
    step: int
    """The last step that it had at the time."""
    published: int
    """The last step that was in a published version when it was damaged."""
    restore: Ended
    run: Ended
    log: set[Path]
    """The files of the log that the original handed over."""
    max_uses: int = 1

    @property
    def twice(self) -> list[int]:
        return [row["id"] for row in self.store.rows(USES) if row["uses"] > self.max_uses]


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    """An embedded store: its commands are told a home, and no URL."""
    folder = new_home()
    cluster = embedded.cluster(folder / "home")
    store = Store(cluster.url(), folder)
    del store.environment["TRINITY_DB_URL"]
    try:
        yield store
    finally:
        store.clear_away()
        cluster.stop()
        discard(embedded.cluster(folder))


@pytest.fixture(scope="module")
def after(store: Store) -> Rehearsed:
    def do(*command: str | Path) -> None:
        ended = store.run(*command)
        assert ended.code == 0, ended.stderr

    backup = store.folder / "backup"
    # The trainer goes back to a checkpoint that the restored store knows, so it must not be deleted by then.
    content = reversing(STEPS, BATCH_SIZE, checkpoint_every=1, keep_checkpoints=STEPS)
    config = store.config("rehearsed", **content)
    store.import_rows("reverse", "tasks", reversals(2))
    do("db", "stop")
    do("db", "backup", "--continuous", backup)
    run = store.start("run", config)
    store.wait_for(COMMITTED, run, steps=2)
    do("db", "backup", backup)
    store.wait_for(COMMITTED, run, steps=4)
    acknowledged, step = store.rows(STORED), store.value(LAST_STEP)
    moment: datetime = store.value("SELECT clock_timestamp()")
    store.wait_for(COMMITTED, run, steps=step + 3)
    do("sql", "--write", "DELETE FROM payload")  # a forgotten WHERE
    published = store.value(LAST_PUBLISHED)
    run.signal(signal.SIGTERM)
    run.wait()

    do("db", "stop", "--yes")
    log = set((backup / "log").iterdir())
    (store.home / "postgres").rename(store.home / "postgres.damaged")
    restore = store.run("db", "restore", backup, "--at", moment.isoformat())
    assert restore.code == 0, restore.stderr
    ended = store.run("run", config, "--change", "--set", f"trainer.steps={step + MORE_STEPS}")
    return Rehearsed(store, acknowledged, step, published, restore, ended, log)


def test_what_was_acknowledged_before_the_time_is_there(after: Rehearsed) -> None:
    assert len(after.acknowledged) >= 4 * 4 * BATCH_SIZE
    stored = after.store.rows(STORED)
    assert [row for row in after.acknowledged if row not in stored] == []
    assert (
        after.store.value(
            "SELECT count(*) FROM experience WHERE id NOT IN (SELECT experience_id FROM payload)"
        )
        == 0
    )


def test_the_run_goes_on_to_its_end_with_each_step_once(after: Rehearsed) -> None:
    assert after.run.code == 0, after.run.stderr + after.store.log("rehearsed", "train")
    steps = after.store.rows("SELECT step FROM batch WHERE state = 'committed' ORDER BY step")
    assert [row["step"] for row in steps] == list(range(1, after.step + MORE_STEPS + 1))


def test_the_steps_after_the_time_are_a_loss_that_is_on_the_record(after: Rehearsed) -> None:
    [setback] = after.store.rows("SELECT * FROM setback")
    assert after.step <= setback["known_step"] < after.published <= setback["last_step"]
    folder = after.store.home / "checkpoints" / "rehearsed"
    kept = {path.name for path in folder.glob("version-*.later")}
    assert f"version-{setback['last_version']:06d}.later" in kept


def test_the_store_is_the_original_and_keeps_no_log(after: Rehearsed) -> None:
    assert after.store.value("SELECT copy_of FROM store_instance") is None
    assert after.store.value("SHOW archive_mode") == "off"
    assert set((after.store.folder / "backup" / "log").iterdir()) == after.log
