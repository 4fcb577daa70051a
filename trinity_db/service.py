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
from types import FrameType
from typing import ClassVar, TypeVar

from trinity_db.database import RETRY_SECONDS, Database, in_our_words
from trinity_db.errors import ConfigError, DatabaseUnavailable, TrinityError
from trinity_db.schema.states import WorkerRole
from trinity_db.store import runs, workers

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

LEASE_SECONDS = 30.0  # longer than a disk stalls, short enough to wait for
HEARTBEAT_SECONDS = LEASE_SECONDS / 6  # so that several may be missed
LISTEN_SECONDS = 0.5  # at a time: how long a stop waits, and how soon a lost supervisor is noticed
POLL_SECONDS = 2.0  # news usually wakes sooner; polling is the truth
LOCK_SECONDS = 5.0  # a server notices in milliseconds that a killed worker's connection is gone
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
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        try:
            # First, so that an exclusive role that is refused leaves no worker behind.
            pulse = self._insist(lambda: Pulse(self))
        except DatabaseUnavailable as error:
            if not self.stopping:
                raise
            logger.warning("%s; nothing was begun", error)
            return
        try:
            self._serve(pulse)
        except DatabaseUnavailable as error:
            if not self.stopping:
                raise
            logger.warning("%s; what was in hand will be done again", error)
        finally:
            pulse.stop()
            self._goodbye()
        if pulse.failure is not None:
            raise pulse.failure

    def look_after_supervisor(self) -> None:
        """Stop when the parent that this process shall end with is gone."""
        if is_orphan() and not self.stopping:
            logger.warning("the supervisor is gone: stopping")
            self.stop()

    def _serve(self, pulse: "Pulse") -> None:
        self.worker_id = self._insist(self._register)
        pulse.start()
        logger.info("%s worker %d serves run '%s'", self.role, self.worker_id, self.run.name)
        self._insist(self.start)
        while not self.stopping and not self._insist(self._step):
            pass
        deadline = time.monotonic() + RELEASE_SECONDS
        self.database.retry(self.release, lambda: self.stopping and time.monotonic() > deadline)

    def _insist(self, decide: Callable[[], Result]) -> Result:
        """Try until the database answers, or until this process shall stop."""

        def give_up() -> bool:
            self.look_after_supervisor()
            return self.stopping

        return self.database.retry(decide, give_up)

    def _register(self) -> int:
        with self.database.transaction() as tx:
            worker_id = workers.register(tx, self.run, self.role)
            if self.exclusive:
                workers.replace_others(tx, worker_id)
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
        self._channel = runs.channel(service.run.id)
        self._connection = service.database.listen(self._channel)
        try:
            if not self._take_place():
                raise ConfigError(
                    f"Run '{service.run.name}' has a {service.role} worker already; stop that one first."
                )
        except BaseException:
            self._connection.close()
            raise

    def run(self) -> None:
        """Beat and listen until stopped."""
        pause, longest = RETRY_SECONDS
        while not self._ended.is_set():
            self._service.look_after_supervisor()
            if self._service.stopping:
                self._service.hear_news()
            try:
                self._reconnect()
                with in_our_words(self._connection):
                    self._beat()
                    for _ in self._connection.notifies(timeout=LISTEN_SECONDS):
                        self._service.hear_news()
                pause = RETRY_SECONDS[0]
            except DatabaseUnavailable:
                self._ended.wait(pause)
                pause = min(2 * pause, longest)
            except Exception as error:  # whatever it is, nobody may work without a heartbeat
                self.failure = error
                self._ended.set()
                self._service.stop()
        # Here and not in stop(): a connection must not be closed while another thread waits on it.
        self._connection.close()

    def stop(self) -> None:
        """End the thread and its connection, and with it the lock of an exclusive role."""
        self._ended.set()
        if self.is_alive():
            self.join(HEARTBEAT_SECONDS)
        elif self.ident is None:  # it was never started
            self._connection.close()

    def _beat(self) -> None:
        """Now and then a sign of life, and a look after the others.

        Raises:
            LeaseLost: somebody looked after us.
        """
        if time.monotonic() - self._beaten_at < HEARTBEAT_SECONDS:
            return
        service = self._service
        with self._connection.transaction():
            if self._beaten_at == -math.inf:
                workers.sign(self._connection, service.worker_id)
            workers.beat(self._connection, service.worker_id)
            released = workers.release_leases(self._connection, service.run.id, LEASE_SECONDS)
        self._beaten_at = time.monotonic()
        if released:
            logger.warning(
                "gave back %d rows and %d groups of workers that are gone",
                released.experiences,
                released.groups,
            )
            service.hear_news()

    def _reconnect(self) -> None:
        """Beat and listen again where the connection was lost.

        Raises:
            DatabaseUnavailable: not yet.
            LeaseLost: another has our place.
        """
        if not (self._connection.closed or self._connection.broken):
            return
        self._connection.close()
        self._connection = self._service.database.listen(self._channel)
        self._beaten_at = -math.inf
        with in_our_words(self._connection):
            self._beat()
        if not self._take_place():
            self._connection.close()
            raise DatabaseUnavailable("The server has not noticed yet that our last session is lost.")
        self._service.hear_news()

    def _take_place(self) -> bool:
        """Whether this is, or has become, the run's one worker of an exclusive role."""
        if not self._service.exclusive:
            return True
        with in_our_words(self._connection):
            return workers.become_trainer(self._connection, self._service.run.id, LOCK_SECONDS, LEASE_SECONDS)


def is_supervised() -> bool:
    """Whether a supervisor started this process, which has seen the database."""
    return SUPERVISOR in os.environ


def is_orphan() -> bool:
    """Whether the supervisor of this process is gone."""
    return is_supervised() and int(os.environ[SUPERVISOR]) != os.getppid()
