"""Lifecycle of all roles: register, start, work until none is left, release, stop.

A `Service` handles the process's signals and owns its worker row. Its `Pulse` is a thread with a separate
connection that keeps this worker's leases alive, releases the leases of dead workers, and wakes the service
on notifications. A role implements `work`, which does one piece of work.
"""

import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from types import FrameType
from typing import ClassVar, TypeVar

import psycopg

from trinity_db.errors import ConfigError, DatabaseUnavailable, LeaseLost, StoreUpgraded, TrinityError
from trinity_db.postgres import upgrades
from trinity_db.postgres.connection import RETRY_SECONDS, Database, Transaction, in_our_words, is_pooled
from trinity_db.schema.states import WorkerRole
from trinity_db.store import evaluations, runs, workers
from trinity_db.worker.signals import endings

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

LEASE_SECONDS = 30.0  # longer than a disk stall, short enough for people to wait
HEARTBEAT_SECONDS = LEASE_SECONDS / 6  # so that a worker may miss several heartbeats
# One iteration of the pulse: the delay to notice a stop, a lost supervisor or, behind a pooler, new work.
LISTEN_SECONDS = 0.5
POLL_SECONDS = 2.0  # poll interval; notifications usually wake a service sooner, but may be lost
WATCH_SECONDS = 1.5 * HEARTBEAT_SECONDS  # a live worker sends at least one heartbeat in this time
LOOK_SECONDS = 0.2  # poll interval for a worker that holds the place
RELEASE_SECONDS = 5.0  # longest wait for the database when a role stops; after that its work is repeated
SUPERVISOR = "TRINITY_DB_SUPERVISOR"  # environment variable with the process id of the supervisor
GIVES_UP = 78  # exit code of a role that must not be restarted; EX_CONFIG of sysexits.h


class Service:
    """One process in a role. Subclasses set `role` and implement `work`."""

    role: ClassVar[WorkerRole]
    exclusive: ClassVar[bool] = False
    """Whether a run may have only one worker of this role."""
    notify_debounce_seconds: ClassVar[float] = 0.0
    """Seconds for which further notifications are ignored, for roles with many workers."""

    def __init__(self, database: Database, run: runs.Run) -> None:
        self.database = database
        self.run = run
        self.worker_id = 0
        self._stopping = False
        self._was_signalled = False
        self._is_told_to_end = False
        """Whether a signal or the store asked this process to end, other than for an upgrade."""
        self._upgrade: StoreUpgraded | None = None
        """Upgrade for which it stops."""
        self.hears_of_end = False
        """Whether a notification reported that the run is finished. Notifications may be lost."""
        self._news = threading.Event()
        self._lost_claim_until = -math.inf
        """Time until which the server may still commit a claim of a lost connection."""

    def start(self) -> None:
        """Prepare for work. Subclasses override it. Called again if the connection is lost meanwhile."""

    def work(self) -> bool:
        """Do one piece of work; return False if none is available. Subclasses override it."""
        raise NotImplementedError(type(self).__name__)

    def release(self) -> None:
        """Finish or release unfinished work. Subclasses override it. May be repeated, like `start`."""

    def held(self) -> workers.Held:
        """Return what this worker holds between two pieces of work. Subclasses override it."""
        return workers.NOTHING

    def is_done(self) -> bool:
        """Whether there will never be more work. Called after `work` has returned False."""
        with self.database.transaction() as tx:
            return runs.is_finished(tx, self.run.id) and not evaluations.are_open(tx, self.run.id)

    @property
    def stopping(self) -> bool:
        """Whether the service must stop. Long pieces of work end early then."""
        return self._stopping

    def stop(self) -> None:
        """Stop taking work. May be called repeatedly."""
        self._stopping = True
        self._news.set()

    def wake(self) -> None:
        """Look for work now instead of at the next poll."""
        self._news.set()

    def serve(self) -> None:
        """Work until none is left or a signal arrives. If the database is away, wait for it.

        Raises:
            ConfigError: if the role is exclusive and the run has a live worker in it.
            LeaseLost: if this worker was silent for too long and another worker took its place.
            NotFound: if the store has lost the run.
            StoreUpgraded: if the store is being upgraded; current work is finished or released.
        """
        previous = {number: signal.signal(number, self._on_signal) for number in endings()}
        try:
            self.worker_id = self._claim_place()
        except DatabaseUnavailable as error:
            if not self.stopping:
                raise
            logger.warning("%s; no work was started", error)
        if not self.worker_id:
            return
        pulse = Pulse(self)
        try:
            self._serve(pulse)
        except DatabaseUnavailable as error:
            if not self.stopping:
                raise
            logger.warning("%s; unfinished work will be done again", error)
        except (LeaseLost, psycopg.errors.ForeignKeyViolation):
            self._check_that_the_run_exists()
            raise
        finally:
            pulse.stop()
            self._sign_off()
        if pulse.failure is not None:
            if isinstance(pulse.failure, LeaseLost):
                self._check_that_the_run_exists()
            raise pulse.failure
        if self._upgrade is not None and not self._is_told_to_end:
            for number, handler in previous.items():  # from here on, signals interrupt again
                signal.signal(number, handler)
            raise self._upgrade

    def stop_if_orphaned(self) -> None:
        """Stop if the supervisor that started this process is gone."""
        if is_orphan() and not self.stopping:
            logger.warning("the supervisor is gone: stopping")
            self.stop()

    def stop_as_asked(self) -> None:
        """Stop because the store asks all workers of the run to stop."""
        if not self._is_told_to_end:
            logger.info("the run was asked to stop: finishing current work")
            self._is_told_to_end = True
            self.stop()

    @property
    def makes_room(self) -> bool:
        """Whether it stops for an upgrade of the store."""
        return self._upgrade is not None

    def make_room(self, upgrade: StoreUpgraded) -> None:
        """Stop for an upgrade of the store, which waits for this worker to exit."""
        if self._upgrade is None:
            logger.info("the store is being upgraded: finishing current work")
            self._upgrade = upgrade
            self.stop()

    def _serve(self, pulse: "Pulse") -> None:
        pulse.start()
        logger.info("%s worker %d serves run '%s'", self.role, self.worker_id, self.run.name)
        self._retry(self.start)
        while not self.stopping and not self._retry(self._step):
            pass
        deadline = time.monotonic() + RELEASE_SECONDS
        self.database.retry(self.release, lambda: self.stopping and time.monotonic() > deadline)

    def _check_that_the_run_exists(self) -> None:
        """Distinguish a lost run from a lost lease: a server that lost the run has lost this worker's row
        too.

        Raises:
            NotFound: if the store has lost the run.
        """
        with self.database.transaction() as tx:
            runs.is_finished(tx, self.run.id)

    def _retry(self, decide: Callable[[], Result]) -> Result:
        """Retry while the database is away, until this process must stop."""

        def give_up() -> bool:
            self.stop_if_orphaned()
            return self.stopping

        return self.database.retry(decide, give_up)

    def _claim_place(self) -> int:
        """Register this process. Return the worker's id, or 0 if it was stopped before.

        If another worker holds an exclusive role, this process watches it, measured with its own clock. A
        worker with heartbeats keeps its place. A worker whose lease has expired on the server's clock loses
        its place only after `WATCH_SECONDS` without a heartbeat, because that clock may have been set
        forward. Any other worker loses it after `LEASE_SECONDS`.

        Raises:
            ConfigError: if the other worker is alive; nothing is registered then.
        """
        watched: workers.Rival | None = None
        since = time.monotonic()
        self.stop_if_orphaned()  # the supervisor may have died during loading, and the role may run elsewhere
        while not self.stopping:
            seconds = time.monotonic() - since
            is_gone = watched and seconds > (WATCH_SECONDS if watched.is_silent else LEASE_SECONDS)
            registered = self._retry(partial(self._register, watched if is_gone else None))
            if isinstance(registered, int):
                return registered
            if watched is not None and registered is not None and registered != watched:
                raise ConfigError(
                    f"Run '{self.run.name}' has a {self.role} worker already; stop that one first."
                )
            if watched is None:
                since = time.monotonic()
            watched = registered
            self._news.wait(LOOK_SECONDS)
        return 0

    def _register(self, gone: workers.Rival | None) -> int | workers.Rival | None:
        """Return a new worker's id, or the rival that holds the place; None if the rival has just left.

        Args:
            gone: a dead rival, which is stopped first.
        """
        with self.database.transaction() as tx:
            upgrades.check(tx)
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
        """Do one piece of work, or wait for a notification. Return True if there will never be more work."""
        self._news.clear()
        with self._claims_known():
            if self.work():
                return False
        if self.is_done():
            return True
        self._news.wait(POLL_SECONDS)
        return False

    @contextmanager
    def _claims_known(self) -> Iterator[None]:
        """Context of a claim that first releases what an earlier one leased on a lost connection."""
        if time.monotonic() < self._lost_claim_until:
            # Now it holds only `held()`; any other leases belong to the lost connection.
            with self.database.transaction() as tx:
                workers.release_own(tx, self.worker_id, self.held())
            self._lost_claim_until = min(self._lost_claim_until, time.monotonic() + LEASE_SECONDS)
        try:
            yield
        except DatabaseUnavailable:
            # The server may have committed a claim whose response was lost, or may still commit it.
            self._lost_claim_until = math.inf
            raise

    def _sign_off(self) -> None:
        """Release this worker's leases and end its row. If the database stays away, the leases expire."""
        if not self.worker_id:
            return
        self.database.close()  # a connection may be lost without notice, so a new one is made
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
        if self._was_signalled and number == signal.SIGHUP:
            return  # a closing terminal may send it twice, once through its shell
        if self._was_signalled:
            os._exit(128 + number)  # second signal: exit immediately and let the leases expire
        self._was_signalled = self._is_told_to_end = True
        logger.info(
            "%s: finishing current work; send it again to exit immediately", signal.Signals(number).name
        )
        # Do not set an event here: the interrupted code may hold the event's lock; the pulse sets it.
        self._stopping = True


class Pulse(threading.Thread):
    """Thread for heartbeats, rescues and notifications, on a separate connection. Reconnects after
    outages."""

    def __init__(self, service: Service) -> None:
        super().__init__(name="pulse", daemon=True)
        self.failure: Exception | None = None
        """Error that ended the thread."""
        self._service = service
        self._ended = threading.Event()
        self._last_beat = -math.inf
        """Time of the last heartbeat on this process's clock. -inf: none on this connection."""
        self._server_time: datetime | None = None
        """Time of the last heartbeat on the server's clock."""
        self._connection: Transaction | None = None
        self._polling_is_logged = False
        """Whether it was logged that the service polls, because a pooler does not forward notifications."""

    def run(self) -> None:
        """Send heartbeats and listen until `stop`."""
        pause, longest = RETRY_SECONDS
        while not self._ended.is_set():
            self._service.stop_if_orphaned()
            if self._service.stopping:
                self._service.wake()
            try:
                connection = self._connected()
                self._beat(connection)
                self._listen(connection)
                pause = RETRY_SECONDS[0]
            except DatabaseUnavailable:
                self._ended.wait(pause)
                pause = min(2 * pause, longest)
            except StoreUpgraded as upgrade:
                self._service.make_room(upgrade)
            except Exception as error:  # after any error: a worker must not work without a heartbeat
                self.failure = error
                self._ended.set()
                self._service.stop()
        # Not closed in stop(): no thread may close a connection on which another one waits.
        if self._connection is not None:
            self._connection.close()

    def stop(self) -> None:
        """End the thread and its connection."""
        self._ended.set()
        if self.is_alive():
            self.join(HEARTBEAT_SECONDS)

    def _beat(self, connection: Transaction) -> None:
        """Record a heartbeat if it is due. A rescuer also releases the leases of silent workers.

        If the server's clock has moved by more than a lease since the last heartbeat, forward or back, then
        the clock was set, this process was frozen, or the server was away. Live workers may look silent then,
        so no lease is released until the next heartbeat.

        Raises:
            LeaseLost: if another worker declared this one dead.
            StoreUpgraded: if an upgrade waits for this worker, which continues its heartbeats until it exits.
        """
        if time.monotonic() - self._last_beat < HEARTBEAT_SECONDS:
            return
        service = self._service
        with service.database.transaction_on(connection) as tx:
            if not service.makes_room:
                upgrades.check(tx)
            if self._last_beat == -math.inf:
                workers.keep_session(tx, service.worker_id)
            beat = workers.beat(tx, service.worker_id, LEASE_SECONDS)
            is_steady = abs((beat.at - (self._server_time or beat.at)).total_seconds()) <= LEASE_SECONDS
            rescues = beat.is_rescuer and is_steady
            released = rescues and workers.release_leases(tx, service.run.id, LEASE_SECONDS)
        self._last_beat, self._server_time = time.monotonic(), beat.at
        if beat.is_to_stop:
            service.stop_as_asked()
        if released:
            logger.warning(
                "gave back %d rows and %d groups of workers that are gone",
                released.experiences,
                released.groups,
            )
            service.wake()

    def _listen(self, connection: Transaction) -> None:
        """Wake the service at each notification; behind a pooler, which forwards none, in every iteration."""
        if is_pooled(connection):
            self._ended.wait(LISTEN_SECONDS)
            self._service.wake()
            return
        with in_our_words(connection):
            news = list(connection.notifies(timeout=LISTEN_SECONDS, stop_after=1))
        if news:
            self._service.hears_of_end |= any(notification.payload == runs.FINISHED for notification in news)
            self._service.wake()
            self._ended.wait(self._service.notify_debounce_seconds)

    def _connected(self) -> Transaction:
        """Return the connection, reconnecting if it was lost.

        Raises:
            DatabaseUnavailable: if the server does not answer.
        """
        connection = self._connection
        if connection is None or connection.closed or connection.broken:
            if connection is not None:
                connection.close()
                self._service.wake()
            channel = runs.channel(self._service.run.id)
            self._connection = connection = self._service.database.listen(channel)
            self._last_beat = -math.inf
            if is_pooled(connection) and not self._polling_is_logged:
                self._polling_is_logged = True
                logger.info("the database is behind a pooler: polling every %g s", LISTEN_SECONDS)
        return connection


def is_supervised() -> bool:
    """Whether a supervisor started this process, and so has reached the database before."""
    return SUPERVISOR in os.environ


def is_orphan() -> bool:
    """Whether the supervisor that started this process has exited."""
    return is_supervised() and int(os.environ[SUPERVISOR]) != os.getppid()
