"""Workers: leases live as long as their heartbeat, and no longer."""

import os
import socket
import subprocess
import sys
from contextlib import closing

import psycopg
import pytest

from tests.support.rows import WAIT_SECONDS, Scene, at_once, in_a_thread, wait_until_blocked
from tests.support.waiting import wait_until
from trinity_db.errors import DatabaseUnavailable, LeaseLost
from trinity_db.postgres.connection import Database, Transaction, connect
from trinity_db.schema.queries import query
from trinity_db.schema.states import WorkerRole
from trinity_db.store import processing, workers
from trinity_db.worker.service import LEASE_SECONDS


@pytest.fixture(scope="module")
def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def worker(scene: Scene, role: WorkerRole, pid: int, host: str | None = None) -> int:
    """A worker in another process, maybe of another host."""
    values = {"run_id": scene.run.id, "role": role, "host": host or socket.gethostname(), "pid": pid}
    values |= {"exclusive": False, "setting_id": scene.run.setting_id}
    with scene.database.transaction() as tx:
        row = tx.execute(query("register_worker"), values).fetchone()
    assert row is not None
    return int(row["id"])


def release(scene: Scene) -> workers.Released:
    with scene.database.transaction() as tx:
        return workers.release_leases(tx, scene.run.id, LEASE_SECONDS)


def fall_silent(scene: Scene, worker_id: int, seconds: float) -> None:
    with scene.database.transaction() as tx:
        tx.execute(
            "UPDATE trinity.worker SET heartbeat_at = clock_timestamp() - make_interval(secs => %s)"
            " WHERE id = %s",
            [seconds, worker_id],
        )


def take(scene: Scene, explorer: int, processor: int) -> None:
    """Let the explorer hold two groups and the processor three rows."""
    scene.explore(2)
    scene.claim(2, worker=explorer)
    with scene.database.transaction() as tx:
        assert len(processing.claim(tx, processing.CLEAN, scene.run.id, processor, 3)) == 3


def test_a_worker_is_entered_with_its_host_and_process(scene: Scene) -> None:
    entered = scene.rows("SELECT role, host, pid, stopped_at FROM trinity.worker ORDER BY id")
    assert entered == [(role, socket.gethostname(), os.getpid(), None) for role in WorkerRole]


def test_a_worker_of_this_host_whose_process_is_gone_is_released_at_once(scene: Scene, dead_pid: int) -> None:
    explorer, processor = (worker(scene, role, dead_pid) for role in (WorkerRole.EXPLORE, WorkerRole.PROCESS))
    take(scene, explorer, processor)
    assert release(scene) == workers.Released(0, 0)
    scene.new_worker(WorkerRole.PROCESS)
    assert release(scene) == workers.Released(experiences=3, groups=2)
    assert release(scene) == workers.Released(0, 0), "once"


def test_a_process_of_another_host_is_not_judged_by_its_number(scene: Scene, dead_pid: int) -> None:
    elsewhere = worker(scene, WorkerRole.EXPLORE, dead_pid, host="elsewhere")
    scene.claim(2, worker=elsewhere)
    scene.new_worker(WorkerRole.PROCESS)
    assert release(scene) == workers.Released(0, 0)
    fall_silent(scene, elsewhere, LEASE_SECONDS + 1)
    assert release(scene) == workers.Released(0, groups=2)


def test_a_process_that_lives_keeps_what_it_holds(scene: Scene) -> None:
    take(scene, scene.explorer, scene.processor)
    scene.new_worker(WorkerRole.PROCESS)
    assert release(scene) == workers.Released(0, 0)


def test_a_silent_worker_is_released_after_its_lease_and_not_before(scene: Scene) -> None:
    take(scene, scene.explorer, scene.processor)
    fall_silent(scene, scene.explorer, LEASE_SECONDS - 5)
    fall_silent(scene, scene.processor, LEASE_SECONDS + 1)
    assert release(scene) == workers.Released(experiences=3, groups=0)
    fall_silent(scene, scene.explorer, LEASE_SECONDS + 1)
    assert release(scene) == workers.Released(experiences=0, groups=2)


def test_a_clock_that_was_set_back_makes_no_dead_worker_alive(scene: Scene) -> None:
    """Then its last sign of life is in the future, by an hour here."""
    take(scene, scene.explorer, scene.processor)
    fall_silent(scene, scene.explorer, 5 - LEASE_SECONDS)
    fall_silent(scene, scene.processor, -3600)
    alive = "SELECT alive FROM trinity.lease_view WHERE worker = %s"
    assert [scene.value(alive, worker) for worker in (scene.explorer, scene.processor)] == [True, False]
    assert release(scene) == workers.Released(experiences=3, groups=0)


def test_a_heartbeat_keeps_a_lease_alive(scene: Scene) -> None:
    scene.claim(2)
    fall_silent(scene, scene.explorer, LEASE_SECONDS + 1)
    with scene.database.transaction() as tx:
        workers.beat(tx, scene.explorer, LEASE_SECONDS)
    assert release(scene) == workers.Released(0, 0)


def test_a_worker_that_stops_gives_back_what_it_holds(scene: Scene) -> None:
    take(scene, scene.explorer, scene.processor)
    assert scene.lose(scene.explorer) == workers.Released(0, groups=2)
    assert scene.lose(scene.processor) == workers.Released(experiences=3, groups=0)
    assert scene.lose(scene.processor) == workers.Released(0, 0), "stopping twice is harmless"
    assert scene.value("SELECT count(*) FROM trinity.experience WHERE worker_id IS NOT NULL") == 0
    assert scene.values("SELECT DISTINCT state FROM trinity.experience") == ["raw"]


def test_the_time_of_a_goodbye_is_that_of_the_first(scene: Scene) -> None:
    goodbyes = []
    for _ in range(2):
        scene.lose(scene.explorer)
        goodbyes += scene.values("SELECT stopped_at FROM trinity.worker WHERE id = %s", scene.explorer)
    assert goodbyes[0] == goodbyes[1]


def test_a_process_is_at_work_until_it_falls_silent_or_is_stopped(scene: Scene) -> None:
    def at_work(pid: int) -> bool:
        with scene.database.transaction() as tx:
            return workers.is_at_work(tx, scene.run.id, "beta", pid, LEASE_SECONDS)

    _, silent = (worker(scene, WorkerRole.PROCESS, pid, "beta") for pid in (1, 2))
    fall_silent(scene, silent, LEASE_SECONDS + 1)
    assert [at_work(pid) for pid in (1, 2, 3)] == [True, False, False]
    with scene.database.transaction() as tx:
        workers.stop_process(tx, scene.run.id, "beta", 1)
    assert not at_work(1)


def test_a_batch_is_given_back_by_the_next_trainer_and_by_no_other_worker(scene: Scene) -> None:
    scene.make_ready(1)
    scene.draw(step=1, size=1)
    assert scene.lose(scene.trainer) == workers.Released(0, 0)
    assert scene.values("SELECT DISTINCT state FROM trinity.experience") == ["leased"]
    assert scene.reopen(version=0, worker=scene.new_worker(WorkerRole.TRAIN)) == 1


def test_runs_release_their_own_workers_only(scene: Scene) -> None:
    scene.claim(2)
    other = Scene.open(scene.database, "other")
    fall_silent(scene, scene.explorer, LEASE_SECONDS + 1)
    assert release(other) == workers.Released(0, 0)
    assert release(scene) == workers.Released(0, groups=2)


def test_rescuers_that_come_together_give_back_once(scene: Scene) -> None:
    scene.claim(4)
    fall_silent(scene, scene.explorer, LEASE_SECONDS + 1)

    def rescue(tx: Transaction) -> int:
        return workers.release_leases(tx, scene.run.id, LEASE_SECONDS).groups

    assert sum(at_once(scene.database, [rescue] * 3)) == 4


def test_a_rescuer_that_is_at_work_keeps_no_other_from_it(scene: Scene) -> None:
    scene.claim(2)

    def other() -> workers.Released:
        fall_silent(scene, scene.explorer, LEASE_SECONDS + 1)
        return release(scene)

    with scene.database.transaction() as tx:
        assert workers.release_leases(tx, scene.run.id, LEASE_SECONDS) == workers.Released(0, 0)
        assert in_a_thread(scene.database, other).result(WAIT_SECONDS) == workers.Released(0, groups=2)
    assert release(scene) == workers.Released(0, 0)


def test_a_rescuer_waits_for_no_lock_and_the_next_finds_what_it_left(scene: Scene) -> None:
    busy, _ = scene.claim(2)
    fall_silent(scene, scene.explorer, LEASE_SECONDS + 1)
    with scene.database.transaction() as tx:
        tx.execute("SELECT FROM trinity.rollout_group WHERE id = %s FOR UPDATE", [busy.id])
        rescue = in_a_thread(scene.database, lambda: release(scene))
        assert rescue.result(WAIT_SECONDS) == workers.Released(0, groups=1)
    assert release(scene) == workers.Released(0, groups=1)


def copy_and_stop_midway(session: Transaction, worker_id: int, group_id: int) -> None:
    """What a process does that is frozen while it writes a rollout: no time-out of the server's ends it."""
    workers.sign(session, worker_id)
    session.commit()
    # One message: between two it would be idle, on a busy machine for longer than a millisecond.
    held = f"BEGIN; SELECT FROM trinity.rollout_group WHERE id = {group_id} FOR UPDATE"
    copy = f"SET idle_in_transaction_session_timeout = '1ms'; {held}; COPY trinity.metric (run_id) FROM STDIN"
    session.pgconn.send_query(copy.encode())
    session.pgconn.flush()


def is_copying(scene: Scene, session: Transaction) -> bool:
    state = "SELECT state || '/' || wait_event FROM pg_stat_activity WHERE pid = %s AND query LIKE '%%COPY%%'"
    return scene.values(state, session.info.backend_pid) == ["active/ClientRead"]


def test_a_worker_that_froze_in_the_middle_of_a_copy_gives_back_its_group(scene: Scene) -> None:
    (group,) = scene.claim(1)
    with closing(connect(scene.database.url)) as frozen:
        copy_and_stop_midway(frozen, scene.explorer, group.id)
        wait_until(lambda: is_copying(scene, frozen), "it copies")
        fall_silent(scene, scene.explorer, LEASE_SECONDS - 5)
        assert release(scene) == workers.Released(0, 0)
        assert is_copying(scene, frozen), "it is not silent for a lease yet"
        fall_silent(scene, scene.explorer, LEASE_SECONDS + 1)
        wait_until(lambda: release(scene) == workers.Released(0, groups=1), "it is given back")
        assert not is_copying(scene, frozen)


def test_a_silent_worker_s_session_that_holds_nothing_is_left_alone(scene: Scene) -> None:
    with closing(connect(scene.database.url)) as idle:
        workers.sign(idle, scene.explorer)
        idle.commit()
        fall_silent(scene, scene.explorer, LEASE_SECONDS + 1)
        release(scene)
        assert idle.execute("SELECT 1 AS one").fetchone() == {"one": 1}


def test_a_rescuer_leaves_another_account_s_session_alone(scene: Scene) -> None:
    """It may not end it, and must not fail."""
    (group,) = scene.claim(1)
    with closing(connect(scene.database.url)) as frozen, closing(connect(scene.database.url)) as rescuer:
        copy_and_stop_midway(frozen, scene.explorer, group.id)
        wait_until(lambda: is_copying(scene, frozen), "it copies")
        fall_silent(scene, scene.explorer, LEASE_SECONDS + 1)
        rescuer.execute("CREATE ROLE a_guest IN ROLE pg_read_all_data, pg_write_all_data, pg_monitor")
        rescuer.execute("SET LOCAL ROLE a_guest")
        assert workers.release_leases(rescuer, scene.run.id, LEASE_SECONDS) == workers.Released(0, 0)
        rescuer.rollback()
        assert is_copying(scene, frozen)


def test_a_worker_gives_back_its_own_in_the_order_in_which_others_lock_it(scene: Scene) -> None:
    held = [group.id for group in scene.claim(3)]
    with scene.database.transaction() as tx:  # so that the first lies behind the last
        tx.execute("UPDATE trinity.rollout_group SET worker_id = worker_id WHERE id = %s", [held[0]])

    def release_own() -> workers.Released:
        with scene.database.transaction() as tx:
            return workers.release_own(tx, scene.explorer)

    with scene.database.transaction() as tx, closing(connect(scene.database.url)) as other:
        tx.execute("SELECT FROM trinity.rollout_group WHERE id = %s FOR UPDATE", [held[0]])
        releasing = in_a_thread(scene.database, release_own)
        wait_until_blocked(scene.database, releasing)
        locked = other.execute(
            "SELECT id FROM trinity.rollout_group WHERE id = ANY(%s) ORDER BY id FOR UPDATE SKIP LOCKED",
            [held],
        ).fetchall()
        other.rollback()
    assert [row["id"] for row in locked] == held[1:], "it waits for the first before it locks another"
    assert releasing.result(WAIT_SECONDS) == workers.Released(0, groups=3)


def test_a_replaced_worker_hears_of_it_at_its_next_beat(scene: Scene) -> None:
    newer = scene.new_worker(WorkerRole.TRAIN)
    with scene.database.transaction() as tx:
        workers.replace_others(tx, newer)
    with pytest.raises(LeaseLost, match="another has its place"), scene.database.transaction() as tx:
        workers.beat(tx, scene.trainer, LEASE_SECONDS)
    with pytest.raises(LeaseLost, match="another has its place"), scene.database.transaction() as tx:
        workers.hold_place(tx, scene.trainer)
    for worker_id in (newer, scene.explorer, scene.processor):
        with scene.database.transaction() as tx:
            workers.beat(tx, worker_id, LEASE_SECONDS)
            workers.hold_place(tx, worker_id)


def test_the_first_living_workers_of_each_login_rescue(scene: Scene) -> None:
    first = [scene.explorer, scene.processor, scene.trainer]
    later = [scene.new_worker(WorkerRole.EXPLORE) for _ in range(5)]
    other = scene.beside("other")

    def rescuers(*fleet: int) -> list[int]:
        found = []
        for worker_id in fleet:
            with scene.database.transaction() as tx:
                if workers.beat(tx, worker_id, LEASE_SECONDS).is_rescuer:
                    found.append(worker_id)
        return found

    assert rescuers(*first, *later) == [*first, later[0]]
    assert rescuers(other.trainer) == [other.trainer], "workers of another run do not count"
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.worker SET login = 'apart' WHERE id = %s", [later[1]])
    assert rescuers(*later) == later[:2], "each login has its own"
    with scene.database.transaction() as tx:
        workers.stop(tx, scene.processor)
    assert rescuers(*later) == later[:3]
    fall_silent(scene, scene.trainer, LEASE_SECONDS + 1)
    assert rescuers(*later) == later[:4]


def test_no_worker_is_replaced_while_it_decides(scene: Scene) -> None:
    newer = scene.new_worker(WorkerRole.TRAIN)

    def replace() -> None:
        with scene.database.transaction() as tx:
            workers.replace_others(tx, newer)

    with scene.database.transaction() as tx:
        workers.hold_place(tx, scene.trainer)
        replaced = in_a_thread(scene.database, replace)
        wait_until_blocked(scene.database, replaced)
    replaced.result(WAIT_SECONDS)
    left = scene.values("SELECT id FROM trinity.worker WHERE role = 'train' AND stopped_at IS NULL")
    assert left == [newer]


def test_the_lease_view_shows_who_holds_what(scene: Scene) -> None:
    scene.make_ready(1)
    scene.draw(step=1, size=1)
    take(scene, scene.explorer, scene.processor)
    fall_silent(scene, scene.explorer, LEASE_SECONDS + 1)
    with scene.database.transaction() as tx:
        workers.stop(tx, scene.trainer)
    held = scene.rows(
        "SELECT role::text, pid, alive, groups, rows, batches, silent_seconds > 30"
        " FROM trinity.lease_view WHERE run = 'run' ORDER BY worker"
    )
    assert held == [
        ("explore", os.getpid(), False, 2, 0, 0, True),
        ("process", os.getpid(), True, 0, 3, 0, False),
        ("train", os.getpid(), False, 1, 2, 1, False),
    ]
    newer = scene.new_worker(WorkerRole.TRAIN)
    scene.reopen(version=0, worker=newer)
    release(scene)
    shown = scene.values("SELECT worker FROM trinity.lease_view ORDER BY 1")
    assert shown == [scene.explorer, scene.processor, newer]


@pytest.mark.parametrize(("seconds", "alive"), [(LEASE_SECONDS - 1, True), (LEASE_SECONDS + 1, False)])
def test_the_lease_view_s_lease_is_that_of_the_roles(scene: Scene, seconds: float, alive: bool) -> None:
    fall_silent(scene, scene.explorer, seconds)
    held = scene.values("SELECT alive FROM trinity.lease_view WHERE worker = %s", scene.explorer)
    assert held == [alive]


def lose_within_a_pipeline(database: Database) -> None:
    """What psycopg says when the server ends a session between two answers of a pipeline."""
    with database.transaction() as tx:
        tx.execute("SELECT 1")
        try:
            raise psycopg.errors.AdminShutdown("terminating connection due to administrator command")
        except psycopg.Error:
            raise psycopg.OperationalError("cannot exit pipeline mode while busy")  # noqa: B904


def test_a_pipeline_that_cannot_even_be_left_is_a_lost_connection(scene: Scene) -> None:
    with pytest.raises(DatabaseUnavailable, match="went away"):
        lose_within_a_pipeline(scene.database)
    assert scene.value("SELECT 1") == 1
