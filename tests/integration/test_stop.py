"""`trinity-db stop`: who hears it, who works on, and what the command waits for."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from tests.support.rows import Scene, in_a_thread
from tests.support.waiting import wait_until
from trinity_db.cli.supervise import Supervisor
from trinity_db.insight import status
from trinity_db.postgres.connection import Database
from trinity_db.schema.states import WorkerRole
from trinity_db.store import runs, stopping, workers
from trinity_db.worker import service
from trinity_db.worker.process import Process
from trinity_db.worker.service import LEASE_SECONDS, Service

ASKED = "SELECT stop_asked_at IS NOT NULL FROM trinity.run WHERE name = 'run'"
ROLE = """
import pathlib, signal, sys, time
starts = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
with starts.open("a") as out:
    out.write("x")
while True:
    time.sleep(0.05)
"""


class Interrupted(Service):
    """A role that gets a signal after the run was asked to stop, and has work in hand then."""

    role = WorkerRole.PROCESS
    is_released = False

    def work(self) -> bool:
        ask(self.database, self.run)
        wait_until(lambda: self.stopping, "it hears that the run was asked to stop")
        os.kill(os.getpid(), signal.SIGTERM)
        return True

    def release(self) -> None:
        self.is_released = True


def ask(database: Database, run: runs.Run) -> stopping.StopRequest:
    with database.transaction() as tx:
        return stopping.ask(tx, run, LEASE_SECONDS)


def is_to_stop(scene: Scene, worker_id: int) -> bool:
    with scene.database.transaction() as tx:
        return workers.beat(tx, worker_id, LEASE_SECONDS).is_to_stop


def end(scene: Scene, *worker_ids: int) -> None:
    for worker_id in worker_ids:
        scene.lose(worker_id)


@pytest.fixture
def _signals() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _of_the_scene(scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRINITY_DB_URL", scene.database.url)
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path))


def test_workers_that_started_before_hear_it_and_later_ones_work_on(scene: Scene) -> None:
    assert not is_to_stop(scene, scene.explorer)
    asked = ask(scene.database, scene.run)
    assert [worker.id for worker in asked.workers] == [scene.explorer, scene.processor, scene.trainer]
    later = scene.new_worker(WorkerRole.EXPLORE)
    assert [is_to_stop(scene, worker) for worker in (scene.explorer, scene.trainer, later)] == [
        *(True, True, False)
    ]
    other = scene.beside("other")
    assert not is_to_stop(other, other.explorer)


@pytest.mark.usefixtures("_signals")
def test_a_signal_after_it_is_the_first_and_lets_the_work_in_hand_end(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "HEARTBEAT_SECONDS", 0.1)
    role = Interrupted(scene.database, scene.run)
    role.serve()
    assert role.is_released


def test_the_command_waits_for_those_that_were_asked_and_for_no_others(
    scene: Scene, command_line: CommandLine
) -> None:
    def end_in_turn() -> None:
        wait_until(lambda: scene.value(ASKED), "the run is asked to stop")
        scene.new_worker(WorkerRole.EXPLORE)
        end(scene, scene.explorer, scene.processor, scene.trainer)

    ending = in_a_thread(scene.database, end_in_turn)
    done = command_line("stop", "run", "--json")
    ending.result()
    assert done.code == 0
    assert '"role": "explore"' in done.stdout
    assert done.stderr.startswith("Waiting for explore on ")
    assert scene.value("SELECT count(*) FROM trinity.worker WHERE stopped_at IS NULL") == 1


def test_a_worker_that_falls_silent_is_not_waited_for(scene: Scene, command_line: CommandLine) -> None:
    asked = ask(scene.database, scene.run)
    with scene.database.transaction() as tx:
        assert len(stopping.at_work(tx, scene.run, asked.at, LEASE_SECONDS)) == 3
        tx.execute("UPDATE trinity.worker SET heartbeat_at = now() - interval '1 min'")
        assert stopping.at_work(tx, scene.run, asked.at, LEASE_SECONDS) == []


def test_what_cannot_be_stopped_is_said_in_one_line(scene: Scene, command_line: CommandLine) -> None:
    assert "did you mean 'run'" in command_line("stop", "rum").complaint
    end(scene, scene.explorer, scene.processor, scene.trainer)
    assert command_line("stop", "run").complaint.startswith("No worker of run 'run' is alive.")
    with scene.database.transaction() as tx:
        runs.finish(tx, scene.run.id)
    assert command_line("stop", "run").complaint == "Run 'run' is finished, and no worker of it is alive."
    assert scene.value(ASKED) is False


def test_status_says_that_a_run_is_stopping(scene: Scene) -> None:
    def state() -> str:
        (found,) = status.overview(scene.database, scene.run.id)
        return str(found["state"])

    assert state() == "active"
    ask(scene.database, scene.run)
    assert state() == "stopping"
    end(scene, scene.explorer, scene.processor, scene.trainer)
    scene.new_worker(WorkerRole.TRAIN)
    assert state() == "active"


def test_a_supervisor_stops_its_roles_and_starts_none_again(scene: Scene, tmp_path: Path) -> None:
    ask(scene.database, scene.run)  # before its command: this is of no concern to it
    with scene.database.transaction() as tx:
        before = stopping.asked_at(tx, scene.run.id)
    starts = tmp_path / "starts"
    starts.touch()
    child = Process("train", ["-S", "-c", ROLE, str(starts)], tmp_path / "train.log")
    supervisor = Supervisor(scene.database, scene.run, [child], before)

    def stop_once_it_works() -> None:
        if starts.read_text() == "x":
            ask(scene.database, scene.run)

    with pytest.raises(KeyboardInterrupt):
        supervisor.supervise(stop_once_it_works)
    assert (starts.read_text(), child.code) == ("x", 0)


def test_a_supervisor_hears_what_came_before_its_roles(scene: Scene, tmp_path: Path) -> None:
    """As while the command processed imported rows."""
    starts = tmp_path / "starts"
    starts.touch()
    child = Process("train", ["-S", "-c", ROLE, str(starts)], tmp_path / "train.log")
    supervisor = Supervisor(scene.database, scene.run, [child], None)
    ask(scene.database, scene.run)
    with pytest.raises(KeyboardInterrupt):
        supervisor.supervise(lambda: None)
    assert child.code is not None
