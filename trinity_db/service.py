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
from types import FrameType
from typing import ClassVar

import psycopg
from psycopg.rows import DictRow

from trinity_db.database import RETRY_SECONDS, Database
from trinity_db.errors import ConfigError, DatabaseUnavailable, LeaseLost
from trinity_db.schema.queries import query
from trinity_db.schema.states import WorkerRole
from trinity_db.store import runs, workers

logger = logging.getLogger(__name__)

LEASE_SECONDS = 30.0  # longer than a disk stalls, short enough to wait for
HEARTBEAT_SECONDS = LEASE_SECONDS / 6  # so that several may be missed
LISTEN_SECONDS = 0.5  # at a time: how long a stop waits, and how soon a lost supervisor is noticed
POLL_SECONDS = 2.0  # news usually wakes sooner; polling is the truth
LOCK_SECONDS = 5  # a server notices in milliseconds that a killed worker's connection is gone
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
        self._stop = threading.Event()
        self._news = threading.Event()
        self._lost_track = False

    def start(self) -> None:
        """Prepare, as a registered worker; may be called again after a lost connection. For subclasses."""

    def work(self) -> bool:
        """Do one piece of work; False when there is nothing to do right now. For subclasses."""
        raise NotImplementedError(type(self).__name__)

    def release(self) -> None:
        """Give back or finish what is in hand. For subclasses; leases end by themselves."""

    def is_done(self) -> bool:
        """Whether there will never be more work. Asked when there is none right now."""
        with self.database.transaction() as tx:
            return runs.is_finished(tx, self.run.id)

    @property
    def stopping(self) -> bool:
        """Whether a long piece of work should end early."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Take no more work. Harmless when repeated."""
        self._stop.set()
        self._news.set()

    def hear_news(self) -> None:
        """Look for work now rather than at the next poll."""
        self._news.set()

    def serve(self) -> None:
        """Work until there is no more or a signal comes. A lost database is waited for."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        pulse = Pulse(self)  # first, so that an exclusive role that is refused leaves no worker behind
        with self.database.transaction() as tx:
            self.worker_id = workers.register(tx, self.run.id, self.role)
        pulse.start()
        logger.info("%s worker %d serves run '%s'", self.role, self.worker_id, self.run.name)
        try:
            self.database.retry(self.start, give_up=lambda: self.stopping)
            while not self.stopping and not self.database.retry(self._step, give_up=lambda: self.stopping):
                pass
            self.release()
        except DatabaseUnavailable as error:
            if not self.stopping:
                raise
            logger.warning("%s; what was in hand will be done again", error)
        finally:
            pulse.stop()
            self._goodbye()
        if pulse.failure is not None:
            raise pulse.failure

    def _step(self) -> bool:
        """One piece of work, or a wait for news; True when there will never be more work."""
        self._news.clear()
        if self._lost_track:
            with self.database.transaction() as tx:
                workers.release_own(tx, self.worker_id)
            self._lost_track = False
        try:
            if self.work():
                return False
        except DatabaseUnavailable:
            # A claim may have been committed without our hearing of it.
            self._lost_track = True
            raise
        if self.is_done():
            return True
        self._news.wait(POLL_SECONDS)
        return False

    def _goodbye(self) -> None:
        self.database.close()  # the connection may be lost without anybody having noticed
        try:
            with self.database.transaction() as tx:
                workers.stop(tx, self.worker_id)
                workers.release_leases(tx, self.run.id, LEASE_SECONDS)
                runs.announce(tx, self.run.id)
        except DatabaseUnavailable as error:
            logger.warning("%s; the leases of worker %d run out by themselves", error, self.worker_id)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.stopping:
            os._exit(128 + number)  # the second time: leave at once, the leases run out by themselves
        logger.info("%s: finishing what is in hand; once more to leave at once", signal.Signals(number).name)
        self.stop()


class Pulse(threading.Thread):
    """Heartbeat, rescue and news, on a connection of its own that comes back when the server does."""

    def __init__(self, service: Service) -> None:
        super().__init__(name="pulse", daemon=True)
        self.failure: Exception | None = None
        self._service = service
        self._ended = threading.Event()
        supervisor = os.environ.get(SUPERVISOR)
        self._supervisor = int(supervisor) if supervisor else None
        self._connection = self._connect()

    def run(self) -> None:
        """Beat and listen until stopped."""
        beaten_at = -math.inf
        while not self._ended.is_set():
            self._watch_supervisor()
            try:
                if time.monotonic() - beaten_at >= HEARTBEAT_SECONDS:
                    self._beat()
                    beaten_at = time.monotonic()
                for _ in self._connection.notifies(timeout=LISTEN_SECONDS):
                    self._service.hear_news()
            except psycopg.OperationalError:
                self._reconnect()
        # Here and not in stop(): a connection must not be closed while another thread waits on it.
        self._connection.close()

    def stop(self) -> None:
        """End the thread and its connection, and with it the lock of an exclusive role."""
        self._ended.set()
        self.join(HEARTBEAT_SECONDS)

    def _beat(self) -> None:
        """One sign of life, and a look after the others."""
        service = self._service
        with self._connection.transaction():
            self._connection.execute(query("heartbeat"), {"worker_id": service.worker_id})
            released = workers.release_leases(self._connection, service.run.id, LEASE_SECONDS)
        if released:
            logger.warning(
                "gave back %d rows and %d groups of workers that are gone",
                released.experiences,
                released.groups,
            )
            service.hear_news()

    def _watch_supervisor(self) -> None:
        if self._supervisor not in (None, os.getppid()) and not self._service.stopping:
            logger.warning("the supervisor is gone: stopping")
            self._service.stop()

    def _connect(self) -> psycopg.Connection[DictRow]:
        service = self._service
        connection = service.database.listen(runs.channel(service.run.id))
        if service.exclusive:
            try:
                connection.execute(query("wait_for_lock"), {"seconds": f"{LOCK_SECONDS}s"})
                connection.execute(query("lock_trainer"), {"run_id": service.run.id})
            except psycopg.errors.LockNotAvailable:
                connection.close()
                raise ConfigError(
                    f"Run '{service.run.name}' has a {service.role} worker already; stop that one first."
                ) from None
        return connection

    def _reconnect(self) -> None:
        if self._ended.wait(RETRY_SECONDS[0]):
            return
        self._connection.close()
        try:
            self._connection = self._connect()
        except DatabaseUnavailable:
            return
        except ConfigError as error:
            self.failure = LeaseLost(f"{error} It took over while the database was away.")
            self._ended.set()
            self._service.stop()
        else:
            self._service.hear_news()
