"""The life all roles share, against a real server whose connections are cut."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from tests.support.waiting import wait_until
from trinity_db.errors import ConfigError, DatabaseUnavailable, NotFound
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.schema.states import WorkerRole
from trinity_db.store import runs, workers
from trinity_db.store.metrics import record_metrics
from trinity_db.worker import service
from trinity_db.worker.service import Service

ROUNDS = 3
MANY = 100  # news


class Probe(Service):
    """A role whose work is to cut all connections once, its own among them, and to go on."""

    role = WorkerRole.PROCESS

    def __init__(self, database: Database, run: runs.Run) -> None:
        super().__init__(database, run)
        self.rounds = 0
        self.cut = False

    def work(self) -> bool:
        if not self.cut:
            self.cut = True
            with psycopg.connect(self.database.url, autocommit=True) as other:
                other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
        with self.database.transaction() as tx:
            runs.announce(tx, self.run.id)
        self.rounds += 1
        if self.rounds == ROUNDS:
            self.stop()
        return True


class OnlyOne(Probe):
    """A role that has one worker in a run."""

    role = WorkerRole.TRAIN
    exclusive = True

    def work(self) -> bool:
        with (
            closing(Database(self.database.url)) as database,
            pytest.raises(ConfigError, match="worker already"),
        ):
            OnlyOne(database, self.run).serve()
        self.stop()
        return True


class Interrupted(Probe):
    """A role that is asked to end in the middle of its work."""

    def work(self) -> bool:
        os.kill(os.getpid(), signal.SIGTERM)
        assert self.stopping
        self.rounds += 1
        return True


def hold_a_group(tx: Transaction, role: Service) -> None:
    tx.execute(
        "INSERT INTO trinity.rollout_group (run_id, task_id, expected, worker_id)"
        " SELECT %s, id, 1, %s FROM trinity.task",
        [role.run.id, role.worker_id],
    )


class Forgetful(Probe):
    """A role whose claim is committed while its answer is lost."""

    def work(self) -> bool:
        with self.database.transaction() as tx:
            held = tx.execute("SELECT id FROM trinity.rollout_group WHERE worker_id IS NOT NULL").fetchall()
            if not held and not self.cut:
                hold_a_group(tx, self)
        if not self.cut:
            self.cut = True
            raise DatabaseUnavailable("the answer was lost")
        assert held == []
        self.stop()
        return True


class Late(Probe):
    """A role whose lost session commits a claim when it works again already."""

    def work(self) -> bool:
        self.rounds += 1
        if self.rounds == 1:
            raise DatabaseUnavailable("the answer was lost")
        with self.database.transaction() as tx:
            if self.rounds == 2:
                hold_a_group(tx, self)
                return True
            held = tx.execute("SELECT id FROM trinity.rollout_group WHERE worker_id IS NOT NULL").fetchall()
        assert held == []
        self.stop()
        return True


class Signed(Probe):
    """A role that sees the server know its sessions, before and after they were cut."""

    def work(self) -> bool:
        wait_until(lambda: self.names() == [f"trinity-db worker {self.worker_id}"] * 2, "both are known")
        if self.cut:
            self.stop()
            return True
        return super().work()

    def names(self) -> list[str]:
        with self.database.transaction() as tx:
            sessions = (
                "SELECT application_name AS name FROM pg_stat_activity WHERE datname = current_database()"
            )
            return [row["name"] for row in tx.execute(sessions)]


class Waiting(Probe):
    """A role that is asked to end just before it waits for news."""

    def work(self) -> bool:
        return False

    def is_done(self) -> bool:
        os.kill(os.getpid(), signal.SIGTERM)
        self.rounds += 1
        return False


class Waking(Probe):
    """A role that is asked to end while it holds the lock within its event."""

    def work(self) -> bool:
        with self._news._cond:  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGTERM)
            self.rounds += 1
        return True


class HardOfHearing(Probe):
    """A role that many workers have, so that news of all of them come together."""

    notify_debounce_seconds = 1.0

    def __init__(self, database: Database, run: runs.Run) -> None:
        super().__init__(database, run)
        self.woken = 0

    def wake(self) -> None:
        super().wake()
        self.woken += not self.stopping

    def work(self) -> bool:
        wait_until(lambda: self.announced() and self.woken > 0, "it hears")
        for _ in range(MANY):
            self.announced()
        heard = self.woken
        wait_until(lambda: self.woken > heard, "it hears of the last ones too")
        self.stop()
        return True

    def announced(self) -> bool:
        with self.database.transaction() as tx:
            runs.announce(tx, self.run.id)
        return True


class Patient(Probe):
    """A role that works until it is told to end."""

    def work(self) -> bool:
        wait_until(lambda: self.stopping, "it is told to end")
        return True


@pytest.fixture
def run(database_url: str) -> Iterator[tuple[Database, runs.Run]]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with closing(Database(database_url)) as database:
        with database.transaction() as tx:
            opened = runs.open_run(tx, "probe", {}, "groups")
        yield database, opened
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_a_role_goes_on_when_its_connections_are_cut(run: tuple[Database, runs.Run]) -> None:
    probe = Probe(*run)
    probe.serve()
    assert probe.rounds == ROUNDS
    assert _goodbyes(run[0]) == [True]


def test_a_second_worker_of_an_exclusive_role_is_refused(
    run: tuple[Database, runs.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trinity_db.worker.service.HEARTBEAT_SECONDS", 0.5)
    OnlyOne(*run).serve()
    assert all(_goodbyes(run[0]))


def test_a_role_whose_supervisor_is_gone_before_it_has_a_place_takes_none(
    run: tuple[Database, runs.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(service.SUPERVISOR, str(os.getpid()))  # which is not this process's parent
    role = Probe(*run)
    role.serve()
    assert role.rounds == 0
    assert _goodbyes(run[0]) == []


def test_a_signal_lets_the_work_in_hand_end_and_no_more_begin(run: tuple[Database, runs.Run]) -> None:
    role = Interrupted(*run)
    role.serve()
    assert role.rounds == 1
    assert _goodbyes(run[0]) == [True]


def test_a_signal_just_before_a_wait_ends_it(
    run: tuple[Database, runs.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trinity_db.worker.service.POLL_SECONDS", 60.0)
    started = time.monotonic()
    role = Waiting(*run)
    role.serve()
    assert role.rounds == 1
    assert time.monotonic() - started < 60


def test_a_signal_is_heard_while_the_role_holds_the_lock_of_its_news(run: tuple[Database, runs.Run]) -> None:
    role = Waking(*run)
    role.serve()
    assert role.rounds == 1
    assert _goodbyes(run[0]) == [True]


def test_the_server_knows_whose_the_sessions_of_a_role_are(run: tuple[Database, runs.Run]) -> None:
    role = Signed(*run)
    role.serve()
    assert role.cut


def test_news_that_come_together_wake_a_role_of_many_workers_once(run: tuple[Database, runs.Run]) -> None:
    role = HardOfHearing(*run)
    role.serve()
    assert 2 <= role.woken < MANY / 2


def test_a_role_ends_when_its_pulse_does(
    run: tuple[Database, runs.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*values: object) -> None:
        raise KeyError("as in an accident")

    monkeypatch.setattr(workers, "release_leases", fail)
    with pytest.raises(KeyError, match="accident"):
        Patient(*run).serve()
    assert _goodbyes(run[0]) == [True]


@pytest.mark.parametrize("kind", [Forgetful, Late])
def test_a_worker_gives_back_what_it_claimed_without_hearing_of_it(
    run: tuple[Database, runs.Run], kind: type[Probe]
) -> None:
    database, _ = run
    with database.transaction() as tx:
        tx.execute("INSERT INTO trinity.taskset (name) VALUES ('tasks')")
        tx.execute(
            "INSERT INTO trinity.task (taskset_id, key, ordinal, prompt_digest, payload)"
            " SELECT id, 'a', 0, '', '{\"prompt\": \"1\"}' FROM trinity.taskset"
        )
    kind(*run).serve()
    with database.transaction() as tx:
        assert tx.execute("SELECT worker_id FROM trinity.rollout_group").fetchall() == [{"worker_id": None}]


def test_a_role_ends_when_its_run_is_finished(run: tuple[Database, runs.Run]) -> None:
    database, finished = run

    class Idle(Probe):
        def work(self) -> bool:
            with database.transaction() as tx:
                runs.finish(tx, finished.id)
            return False

    Idle(*run).serve()
    assert _goodbyes(database) == [True]


@pytest.mark.parametrize("notices", ["when it asks", "by a refused row", "by its pulse"])
def test_a_role_whose_run_the_server_forgot_ends_with_an_error(
    run: tuple[Database, runs.Run], monkeypatch: pytest.MonkeyPatch, notices: str
) -> None:
    database, lost = run
    monkeypatch.setattr(service, "HEARTBEAT_SECONDS", 0.1)

    class Forgotten(Probe):
        def work(self) -> bool:
            with database.transaction() as tx:
                tx.execute("DELETE FROM trinity.run WHERE id = %s", [lost.id])
            if notices == "by a refused row":
                with database.transaction() as tx:
                    record_metrics(tx, lost.id, self.role, 1, {"loss": 1.0})
            if notices == "by its pulse":
                wait_until(lambda: self.stopping, "the pulse tells it to stop")
            return False

    with pytest.raises(NotFound, match=f"has lost run {lost.id}.*Start the same command again"):
        Forgotten(*run).serve()


def _goodbyes(database: Database) -> list[bool]:
    with database.transaction() as tx:
        rows = tx.execute("SELECT stopped_at IS NOT NULL AS gone FROM trinity.worker ORDER BY id")
        return [row["gone"] for row in rows]
