"""Workers: leases live as long as their heartbeat, and no longer."""

import os
import socket
import subprocess
import sys

import pytest

from tests.rows import WAIT_SECONDS, Scene, at_once, in_a_thread, wait_until_blocked
from trinity_db.database import Transaction
from trinity_db.errors import LeaseLost
from trinity_db.schema.queries import query
from trinity_db.schema.states import WorkerRole
from trinity_db.store import rows, workers

LEASE_SECONDS = 30.0


@pytest.fixture(scope="module")
def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def worker(scene: Scene, role: WorkerRole, pid: int, host: str | None = None) -> int:
    """A worker in another process, maybe of another host."""
    values = {"run_id": scene.run.id, "role": role, "host": host or socket.gethostname(), "pid": pid}
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
        assert len(rows.claim(tx, rows.CLEAN, scene.run.id, processor, 3)) == 3


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


def test_a_heartbeat_keeps_a_lease_alive(scene: Scene) -> None:
    scene.claim(2)
    fall_silent(scene, scene.explorer, LEASE_SECONDS + 1)
    with scene.database.transaction() as tx:
        tx.execute(query("heartbeat"), {"worker_id": scene.explorer})
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


def test_a_batch_is_given_back_by_the_next_trainer_and_by_nobody_else(scene: Scene) -> None:
    scene.make_ready(1)
    scene.draw(step=1, size=1)
    assert scene.lose(scene.trainer) == workers.Released(0, 0)
    assert scene.values("SELECT DISTINCT state FROM trinity.experience") == ["leased"]
    assert scene.reopen(version=0) == 1


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


def test_a_rescuer_leaves_the_run_to_one_that_is_at_work(scene: Scene) -> None:
    scene.claim(2)

    def other() -> workers.Released:
        fall_silent(scene, scene.explorer, LEASE_SECONDS + 1)
        return release(scene)

    with scene.database.transaction() as tx:
        assert workers.release_leases(tx, scene.run.id, LEASE_SECONDS) == workers.Released(0, 0)
        assert in_a_thread(scene.database, other).result(WAIT_SECONDS) == workers.Released(0, 0)
    assert release(scene) == workers.Released(0, groups=2)


def test_a_rescuer_waits_for_nobody_and_the_next_finds_what_it_left(scene: Scene) -> None:
    busy, _ = scene.claim(2)
    fall_silent(scene, scene.explorer, LEASE_SECONDS + 1)
    with scene.database.transaction() as tx:
        tx.execute("SELECT FROM trinity.rollout_group WHERE id = %s FOR UPDATE", [busy.id])
        rescue = in_a_thread(scene.database, lambda: release(scene))
        assert rescue.result(WAIT_SECONDS) == workers.Released(0, groups=1)
    assert release(scene) == workers.Released(0, groups=1)


def test_a_replaced_worker_hears_of_it_at_its_next_beat(scene: Scene) -> None:
    newer = scene.new_worker(WorkerRole.TRAIN)
    with scene.database.transaction() as tx:
        workers.replace_others(tx, newer)
    for verb in (workers.beat, workers.hold_place):
        with pytest.raises(LeaseLost, match="another has its place"), scene.database.transaction() as tx:
            verb(tx, scene.trainer)
    for worker_id in (newer, scene.explorer, scene.processor):
        with scene.database.transaction() as tx:
            workers.beat(tx, worker_id)
            workers.hold_place(tx, worker_id)


def test_nobody_is_replaced_while_it_decides(scene: Scene) -> None:
    newer = scene.new_worker(WorkerRole.TRAIN)

    def replace() -> None:
        with scene.database.transaction() as tx:
            workers.replace_others(tx, newer)

    with scene.database.transaction() as tx:
        workers.hold_place(tx, scene.trainer)
        replaced = in_a_thread(scene.database, replace)
        wait_until_blocked(scene.database, replaced)
    replaced.result(WAIT_SECONDS)


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
    scene.reopen(version=0)
    release(scene)
    assert scene.values("SELECT role::text FROM trinity.lease_view ORDER BY 1") == ["explore", "process"]
