"""The life all roles share: start, heartbeat, claim, work, finish or release, stop.

A Service owns the process's signals and its worker row; its pulse, a thread with a connection
of its own, keeps the leases alive, gives back those of dead workers, and wakes the loop when
somebody announces news. A role adds `work`: one piece of work, and whether there was any.
"""

import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from types import FrameType
from typing import ClassVar, TypeVar

import psycopg

from trinity_db.database import RETRY_SECONDS, Database, Transaction, in_our_words, is_pooled
from trinity_db.errors import ConfigError, DatabaseUnavailable, LeaseLost, TrinityError
from trinity_db.schema.states import WorkerRole
from trinity_db.store import runs, workers

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

LEASE_SECONDS = 30.0  # longer than a disk stalls, short enough to wait for
HEARTBEAT_SECONDS = LEASE_SECONDS / 6  # so that several may be missed
LISTEN_SECONDS = (
    0.5  # at a time: how long a stop waits, how soon a lost supervisor or, behind a pooler, news is noticed
)
POLL_SECONDS = 2.0  # news usually wakes sooner; polling is the truth
WATCH_SECONDS = 1.5 * HEARTBEAT_SECONDS  # a worker that is alive gives a sign of it meanwhile
LOOK_SECONDS = 0.2  # between two looks at a worker that is in the way
RELEASE_SECONDS = 5.0  # for a database that is away when a role stops; then its work is done again
SUPERVISOR = "TRINITY_DB_SUPERVISOR"  # process id of the parent that a role shall end with


class Service:
    """One process in a role. Subclasses set `role` and implement `work`."""

    role: ClassVar[WorkerRole]
    exclusive: ClassVar[bool] = False
    """Whether a run has only one worker of this role."""

    def __init__(self, database: Database, run: runs.Run) -> None:
        self.database = database
        self.run = run
        self.worker_id = 0
        self._stopping = False
        self._news = threading.Event()
        self._unclear_until = -math.inf
        """Until when a claim of a lost connection may still be committed."""

    def start(self) -> None:
        """Prepare, as a registered worker; may be called again after a lost connection. For subclasses."""

    def work(self) -> bool:
        """Do one piece of work; False when there is nothing to do right now. For subclasses."""
        raise NotImplementedError(type(self).__name__)

    def release(self) -> None:
        """Give back or finish what is in hand; may be called again, as `start` may. For subclasses."""

    def is_done(self) -> bool:
        """Whether there will never be more work. Asked when there is none right now."""
        with self.database.transaction() as tx:
            return runs.is_finished(tx, self.run.id)

    @property
    def stopping(self) -> bool:
        """Whether a long piece of work should end early."""
        return self._stopping

    def stop(self) -> None:
        """Take no more work. Harmless when repeated."""
        self._stopping = True
        self._news.set()

    def hear_news(self) -> None:
        """Look for work now rather than at the next poll."""
        self._news.set()

    def serve(self) -> None:
        """Work until there is no more or a signal comes. A database that is away is waited for, whenever.

        Raises:
            ConfigError: the role is exclusive, and the run has a worker that is alive.
            LeaseLost: this worker was silent for too long, and another has its place.
            NotFound: the store has lost the run.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        try:
            self.worker_id = self._enter()
        except DatabaseUnavailable as error:
            if not self.stopping:
                raise
            logger.warning("%s; nothing was begun", error)
        if not self.worker_id:
            return
        pulse = Pulse(self)
        try:
            self._serve(pulse)
        except DatabaseUnavailable as error:
            if not self.stopping:
                raise
            logger.warning("%s; what was in hand will be done again", error)
        except (LeaseLost, psycopg.errors.ForeignKeyViolation):
            self._check_that_the_run_is_there()
            raise
        finally:
            pulse.stop()
            self._goodbye()
        if pulse.failure is not None:
            if isinstance(pulse.failure, LeaseLost):
                self._check_that_the_run_is_there()
            raise pulse.failure

    def look_after_supervisor(self) -> None:
        """Stop when the parent that this process shall end with is gone."""
        if is_orphan() and not self.stopping:
            logger.warning("the supervisor is gone: stopping")
            self.stop()

    def _serve(self, pulse: "Pulse") -> None:
        pulse.start()
        logger.info("%s worker %d serves run '%s'", self.role, self.worker_id, self.run.name)
        self._insist(self.start)
        while not self.stopping and not self._insist(self._step):
            pass
        deadline = time.monotonic() + RELEASE_SECONDS
        self.database.retry(self.release, lambda: self.stopping and time.monotonic() > deadline)

    def _check_that_the_run_is_there(self) -> None:
        """Where the server forgot the run, it forgot this worker too, which looks as if it were replaced.

        Raises:
            NotFound: the store has lost the run.
        """
        with self.database.transaction() as tx:
            runs.is_finished(tx, self.run.id)

    def _insist(self, decide: Callable[[], Result]) -> Result:
        """Try until the database answers, or until this process shall stop."""

        def give_up() -> bool:
            self.look_after_supervisor()
            return self.stopping

        return self.database.retry(decide, give_up)

    def _enter(self) -> int:
        """Register; returns the worker's id, or 0 where this process shall stop before.

        Where an exclusive role has another worker, this one watches it, by its own clock: one that gives a
        sign of life stays. One whose lease has ended by the server's clock is given the time of a beat, as
        that clock may have been moved; any other the time of a lease.

        Raises:
            ConfigError: the other is alive. Nothing is left behind.
        """
        watched: workers.Rival | None = None
        since = time.monotonic()
        while not self.stopping:
            seconds = time.monotonic() - since
            is_gone = watched and seconds > (WATCH_SECONDS if watched.is_silent else LEASE_SECONDS)
            found = self._insist(partial(self._register, watched if is_gone else None))
            if isinstance(found, int):
                return found
            if watched is not None and found is not None and found != watched:
                raise ConfigError(
                    f"Run '{self.run.name}' has a {self.role} worker already; stop that one first."
                )
            if watched is None:
                since = time.monotonic()
            watched = found
            self._news.wait(LOOK_SECONDS)
        return 0

    def _register(self, gone: workers.Rival | None) -> int | workers.Rival | None:
        """This process's worker, or the one that has its place; None where that has just left."""
        with self.database.transaction() as tx:
            if not self.exclusive:
                worker_id: int | None = workers.register(tx, self.run, self.role)
            else:
                if gone is not None:
                    workers.stop_rival(tx, self.run.id, gone, LEASE_SECONDS)
                worker_id = workers.register_only(tx, self.run, self.role)
            if worker_id is None:
                return workers.rival(tx, self.run.id, self.role, LEASE_SECONDS)
            self.database.session_name = workers.sign(tx, worker_id)
            return worker_id

    def _step(self) -> bool:
        """One piece of work, or a wait for news; True when there will never be more work."""
        self._news.clear()
        if time.monotonic() < self._unclear_until:
            # Nothing is in hand between two steps, so that all that is held was claimed by the lost session.
            with self.database.transaction() as tx:
                workers.release_own(tx, self.worker_id)
            self._unclear_until = min(self._unclear_until, time.monotonic() + LEASE_SECONDS)
        try:
            if self.work():
                return False
        except DatabaseUnavailable:
            # A claim may have been committed without our hearing of it, or be committed yet.
            self._unclear_until = math.inf
            raise
        if self.is_done():
            return True
        self._news.wait(POLL_SECONDS)
        return False

    def _goodbye(self) -> None:
        if not self.worker_id:
            return
        self.database.close()  # the connection may be lost without anybody having noticed
        deadline = time.monotonic() + RELEASE_SECONDS
        try:
            self.database.retry(self._leave, lambda: time.monotonic() > deadline)
        except TrinityError as error:
            logger.warning("%s; the leases of worker %d run out by themselves", error, self.worker_id)

    def _leave(self) -> None:
        with self.database.transaction() as tx:
            workers.release_own(tx, self.worker_id)
            workers.stop(tx, self.worker_id)
            runs.announce(tx, self.run.id)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.stopping:
            os._exit(128 + number)  # the second time: leave at once, the leases run out by themselves
        logger.info("%s: finishing what is in hand; once more to leave at once", signal.Signals(number).name)
        # No more: whom this interrupts may hold the lock of an event. The pulse wakes it.
        self._stopping = True


class Pulse(threading.Thread):
    """Heartbeat, rescue and news, on a connection of its own that comes back when the server does."""

    def __init__(self, service: Service) -> None:
        super().__init__(name="pulse", daemon=True)
        self.failure: Exception | None = None
        self._service = service
        self._ended = threading.Event()
        self._beaten_at = -math.inf
        self._server_time: datetime | None = None
        """When the last beat was, by the server's clock."""
        self._connection: Transaction | None = None
        self._told = False
        """Whether the log says that there are no notifications."""

    def run(self) -> None:
        """Beat and listen until stopped."""
        pause, longest = RETRY_SECONDS
        while not self._ended.is_set():
            self._service.look_after_supervisor()
            if self._service.stopping:
                self._service.hear_news()
            try:
                connection = self._connected()
                self._beat(connection)
                self._hear(connection)
                pause = RETRY_SECONDS[0]
            except DatabaseUnavailable:
                self._ended.wait(pause)
                pause = min(2 * pause, longest)
            except Exception as error:  # whatever it is, nobody may work without a heartbeat
                self.failure = error
                self._ended.set()
                self._service.stop()
        # Here and not in stop(): a connection must not be closed while another thread waits on it.
        if self._connection is not None:
            self._connection.close()

    def stop(self) -> None:
        """End the thread and its connection."""
        self._ended.set()
        if self.is_alive():
            self.join(HEARTBEAT_SECONDS)

    def _beat(self, connection: Transaction) -> None:
        """Now and then a sign of life, and a look after the others.

        If by the server's clock a lease has passed since the last beat, forward or back, that clock was set,
        or this process stood still, or the server was away: then others may be alive and seem silent too, and
        are left alone until they had the time of a beat.

        Raises:
            LeaseLost: somebody looked after us.
        """
        if time.monotonic() - self._beaten_at < HEARTBEAT_SECONDS:
            return
        service = self._service
        with service.database.transaction_on(connection) as tx:
            if self._beaten_at == -math.inf:
                workers.keep_session(tx, service.worker_id)
            now = workers.beat(tx, service.worker_id)
            is_steady = abs((now - (self._server_time or now)).total_seconds()) <= LEASE_SECONDS
            released = is_steady and workers.release_leases(tx, service.run.id, LEASE_SECONDS)
        self._beaten_at, self._server_time = time.monotonic(), now
        if released:
            logger.warning(
                "gave back %d rows and %d groups of workers that are gone",
                released.experiences,
                released.groups,
            )
            service.hear_news()

    def _hear(self, connection: Transaction) -> None:
        """Wake the role when there is news; behind a pooler, where none arrives, let it look now and then."""
        if is_pooled(connection):
            self._ended.wait(LISTEN_SECONDS)
            self._service.hear_news()
            return
        with in_our_words(connection):
            for _ in connection.notifies(timeout=LISTEN_SECONDS):
                self._service.hear_news()

    def _connected(self) -> Transaction:
        """The connection, made again where it was lost.

        Raises:
            DatabaseUnavailable: not yet.
        """
        connection = self._connection
        if connection is None or connection.closed or connection.broken:
            if connection is not None:
                connection.close()
                self._service.hear_news()
            channel = runs.channel(self._service.run.id)
            self._connection = connection = self._service.database.listen(channel)
            self._beaten_at = -math.inf
            if is_pooled(connection) and not self._told:
                self._told = True
                logger.info("a pooler is before the database: looking for news every %g s", LISTEN_SECONDS)
        return connection


def is_supervised() -> bool:
    """Whether a supervisor started this process, which has seen the database."""
    return SUPERVISOR in os.environ


def is_orphan() -> bool:
    """Whether the supervisor of this process is gone."""
    return is_supervised() and int(os.environ[SUPERVISOR]) != os.getppid()
