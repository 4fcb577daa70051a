"""A run whose server fails, and goes on with a replica that was behind: acknowledged commits are lost.

A real primary with a real asynchronous replica. The replica stops receiving, the run goes on for some steps,
the primary crashes, and the replica is promoted.
"""

import os
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from psycopg.rows import dict_row

from tests.acceptance.command import Ended, Store, reversals, reversing
from tests.support.postgres import cluster_18, discard, execute, start
from trinity_db.postgres import opening
from trinity_db.postgres.embedded import presence
from trinity_db.postgres.embedded.accounts import server_account
from trinity_db.postgres.embedded.cluster import Cluster
from trinity_db.postgres.embedded.home_paths import DATABASE, PORT, SUPERUSER

STEPS, BATCH_SIZE = 24, 4
RUN = reversing(STEPS, BATCH_SIZE, checkpoint_every=1, keep_checkpoints=STEPS)
VERSION = "SELECT count(*) > %(step)s FROM policy_version"
REACHED = "SELECT max(step) >= %(step)s FROM batch WHERE state = 'committed'"


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Cluster, Cluster]]:
    """A primary, and a replica that follows it."""
    primary, replica = cluster_18(), cluster_18()
    try:
        start(primary)
        opening.upgrade(primary.url())
        replica.data.mkdir(mode=0o700)
        if account := server_account(primary.data):
            os.chown(replica.data, account.uid, account.gid)
        copied = primary.binaries.run(
            *("pg_basebackup", "--pgdata", str(replica.data), "--write-recovery-conf"),
            *("--host", str(primary.socket), "--port", str(PORT), "--username", SUPERUSER),
            *("--checkpoint", "fast"),
            data=primary.data,
        )
        assert copied.returncode == 0, copied.stdout
        with presence.locked(replica):
            replica._start()
        yield primary, replica
    finally:
        for server in (primary, replica):
            discard(server)


@pytest.fixture(scope="module")
def store(servers: tuple[Cluster, Cluster], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    hosts = ",".join(str(server.socket) for server in servers)
    url = f"postgresql://{SUPERUSER}@/{DATABASE}?host={hosts}&port={PORT},{PORT}&target_session_attrs=read-write"
    store = Store(url, tmp_path_factory.mktemp("failover"))
    store.import_rows("reverse", "tasks", reversals(2))
    yield store
    store.clear_away()


def last_step(server: Cluster) -> int:
    """The last committed step that one server knows."""
    with closing(psycopg.connect(server.url(), row_factory=dict_row)) as connection:
        row = connection.execute(
            "SELECT max(step) AS step FROM trinity.batch WHERE state = 'committed'"
        ).fetchone()
    assert row is not None
    return int(row["step"])


@pytest.fixture(scope="module")
def failed_over(store: Store, servers: tuple[Cluster, Cluster]) -> tuple[int, int, Ended]:
    """The last steps that replica and primary knew, and how the run ended."""
    primary, replica = servers
    run = store.start("run", store.config("failover", **RUN))
    for step in (0, 1, 4):  # each in its own time: a busy machine takes a minute to begin
        store.wait_for(VERSION if step == 0 else REACHED, run, step=step)
    execute(replica.url("postgres"), "ALTER SYSTEM SET primary_conninfo = ''")
    execute(replica.url("postgres"), "SELECT pg_reload_conf()")
    store.wait_for(REACHED, run, step=9)
    behind, ahead = last_step(replica), last_step(primary)
    primary.binaries.run("pg_ctl", "stop", "-s", "-w", "-m", "immediate", data=primary.data)
    execute(replica.url("postgres"), "SELECT pg_promote()")
    return behind, ahead, run.wait(timeout=300)


def test_the_run_ends_well(store: Store, failed_over: tuple[int, int, Ended]) -> None:
    behind, ahead, ended = failed_over
    assert behind < ahead
    assert ended.code == 0, ended.stderr + store.log("failover", "train")
    assert store.value("SELECT state::text FROM run WHERE kind = 'train'") == "finished"


def test_what_was_lost_is_on_the_record(store: Store, failed_over: tuple[int, int, Ended]) -> None:
    behind, ahead, _ = failed_over
    [setback] = store.rows("SELECT * FROM setback")
    assert behind <= setback["known_step"] < ahead <= setback["last_step"]
    assert setback["num_rows"] >= (setback["last_step"] - setback["known_step"]) * BATCH_SIZE
    assert setback["first_version"] == setback["known_version"] + 1
    # A version's checkpoint is recorded after it, beside the next step: the server may have lost only that.
    assert setback["resumed_version"] in (setback["known_version"], setback["known_version"] - 1)
    shown = store.run("status", "failover").stdout
    assert f"steps {setback['known_step'] + 1} to {setback['last_step']}" in shown
    assert f"continued from version {setback['resumed_version']}" in shown
    doctor = store.run("doctor").stdout
    assert "the server had lost steps" in " ".join(doctor.split())


def test_the_history_has_each_step_once_and_each_use_counts_once(
    store: Store, failed_over: tuple[int, int, Ended]
) -> None:
    steps = store.rows("SELECT step FROM batch WHERE state = 'committed' ORDER BY step")
    assert [row["step"] for row in steps] == list(range(1, STEPS + 1))
    uses = """
        SELECT count(*) FROM experience e WHERE e.use_count <> (
            SELECT count(*) FROM batch_item i JOIN batch b ON b.id = i.batch_id
            WHERE i.experience_id = e.id AND b.state = 'committed') OR e.use_count > 1
    """
    assert store.value(uses) == 0
    assert store.value("SELECT count(*) FROM batch_item WHERE staleness NOT BETWEEN 0 AND 1") == 0


def test_no_number_of_a_lost_version_is_used_again(store: Store, failed_over: tuple[int, int, Ended]) -> None:
    [setback] = store.rows("SELECT * FROM setback")
    again = "SELECT count(*) FROM policy_version WHERE version BETWEEN %(first_version)s AND %(last_version)s"
    assert store.value(again, **setback) == 0
    folder = store.home / "checkpoints" / "failover"
    kept = {path.name for path in folder.glob("*.later")}
    versions = range(setback["first_version"], setback["last_version"] + 1)
    weights, checkpoints = (
        {f"{kind}-{version:06d}.later" for version in versions} for kind in ("version", "checkpoint")
    )
    assert weights <= kept <= weights | checkpoints
    assert kept & checkpoints, "what the trainer could go on from is there too"
