"""A run whose store is damaged by a wrong statement, and is restored as it was before: it goes on to its end.

The server is a PostgreSQL 15 with pgBackRest. The base backup is taken while the run works.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
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
from tests.support.postgres import cluster_15, discard
from trinity_db.postgres.embedded.accounts import as_account, server_account
from trinity_db.postgres.embedded.cluster import Cluster
from trinity_db.postgres.embedded.home_paths import SUPERUSER

pytestmark = pytest.mark.slow

__all__ = [
    "test_groups_and_their_members_agree",
    "test_no_row_has_more_committed_uses_than_allowed",
    "test_nothing_is_leased_at_rest",
    "test_rewards_are_those_of_their_events_once",
    "test_statistics_of_trained_groups_are_those_of_their_members",
    "test_the_lineage_of_the_last_version_is_every_committed_use_once",
    "test_use_counts_are_those_of_the_committed_batches",
]

PGBACKREST = shutil.which("pgbackrest") or ""
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
    run: Ended
    max_uses: int = 1

    @property
    def twice(self) -> list[int]:
        return [row["id"] for row in self.store.rows(USES) if row["uses"] > self.max_uses]


class Backups:
    """pgBackRest as docs/guides/operating.md shows it, with the backups of one server."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._config = cluster.home / "pgbackrest.conf"
        places = {name: cluster.home / name for name in ("repo1", "log", "lock", "spool")}
        paths = "".join(f"{name}-path={path}\n" for name, path in places.items())
        self._config.write_text(
            f"[global]\n{paths}start-fast=y\n[store]\npg1-path={cluster.data}\n"
            f"pg1-socket-path={cluster.socket}\npg1-port={cluster.port}\npg1-user={SUPERUSER}\n"
        )
        for path in places.values():
            path.mkdir()
            path.chmod(0o777)

    @property
    def archive_command(self) -> str:
        return f"{PGBACKREST} --config={self._config} --stanza=store archive-push %p"

    def do(self, *arguments: str) -> None:
        """Run a command of it by the server's user."""
        done = subprocess.run(
            [PGBACKREST, f"--config={self._config}", "--stanza=store", *arguments],
            cwd="/",
            capture_output=True,
            text=True,
            **as_account(server_account(self._cluster.data)),
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def restore(self, moment: datetime) -> None:
        """Put the data back as they were at a time, beside the damaged ones, and start the server."""
        self._cluster.stop()
        damaged = self._cluster.data.rename(self._cluster.home / "damaged")
        self._cluster.data.mkdir(mode=0o700)
        os.chown(self._cluster.data, damaged.stat().st_uid, damaged.stat().st_gid)
        self.do("restore", "--type=time", f"--target={moment.isoformat(' ')}", "--target-action=promote")
        self._cluster.ensure_running()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A server of its own that is not the embedded one."""
    cluster = cluster_15()
    if cluster is None or not PGBACKREST:
        pytest.skip("it needs PostgreSQL 15 and pgBackRest")
    yield cluster
    discard(cluster)


@pytest.fixture(scope="module")
def after(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsed]:
    backups = Backups(cluster)
    settings = ("archive_mode=on", f"archive_command={backups.archive_command}")
    cluster = replace(cluster, settings=settings)
    cluster.ensure_running()
    store = Store(cluster.url(), tmp_path_factory.mktemp("rehearsed"))
    try:
        yield _rehearse(store, backups)
    finally:
        store.clear_away()
        cluster.stop()


def _rehearse(store: Store, backups: Backups) -> Rehearsed:
    assert store.run("db", "init").code == 0
    # The trainer goes back to a checkpoint that the restored store knows, so it must not be deleted by then.
    content = reversing(STEPS, BATCH_SIZE, checkpoint_every=1, keep_checkpoints=STEPS)
    config = store.config("rehearsed", **content)
    store.import_rows("reverse", "tasks", reversals(2))
    backups.do("stanza-create")
    run = store.start("run", config)
    store.wait_for(COMMITTED, run, steps=2)
    backups.do("backup")
    store.wait_for(COMMITTED, run, steps=4)
    acknowledged, step = store.rows(STORED), store.value(LAST_STEP)
    moment: datetime = store.value("SELECT clock_timestamp()")
    store.wait_for(COMMITTED, run, steps=step + 3)
    deleted = store.run("sql", "--write", "DELETE FROM payload")  # a forgotten WHERE
    assert deleted.code == 0, deleted.stderr
    published = store.value(LAST_PUBLISHED)
    run.signal(signal.SIGTERM)
    run.wait()
    backups.restore(moment)
    store.wait_for("SELECT NOT pg_is_in_recovery()")
    ended = store.run("run", config, "--change", "--set", f"trainer.steps={step + MORE_STEPS}")
    return Rehearsed(store, acknowledged, step, published, ended)


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


def test_the_store_is_the_original(after: Rehearsed) -> None:
    assert after.store.value("SELECT copy_of FROM store_instance") is None
