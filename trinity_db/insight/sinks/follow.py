"""Copies metrics from the table to sinks, once or during a run.

A slow or failing sink blocks no role and no other sink: each has its own thread and connection. A failure is
logged once, and retried. Metrics that a sink has not taken stay in the table.
"""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from trinity_db.errors import DatabaseUnavailable, TrinityError
from trinity_db.insight.sinks.config import MetricsConfig
from trinity_db.insight.sinks.sink import Sink
from trinity_db.postgres.connection import Database
from trinity_db.store import metrics
from trinity_db.store.runs import Run

logger = logging.getLogger(__name__)

PAGE = 10_000  # numbers read at a time, some megabytes
LOOK_SECONDS = 3.0  # between checks of the table during a run
SETTLE_SECONDS = 5.0  # for processes to write their last metrics, which takes milliseconds
SETTLE_PAUSE = 0.05  # seconds between checks meanwhile
END_SECONDS = 20.0  # for all sinks to take the rest when a run ends; a first upload takes a few


def sinks_of(config: MetricsConfig) -> list[Sink]:
    """Return the configured sinks, unopened. Only these are imported.

    Raises:
        MissingExtra: if a sink's package is not installed.
    """
    sinks: list[Sink] = []
    if config.tensorboard is not None:
        from trinity_db.insight.sinks.tensorboard import TensorBoard

        sinks.append(TensorBoard(config.tensorboard))
    if config.wandb is not None:
        from trinity_db.insight.sinks.wandb import Wandb

        sinks.append(Wandb(config.wandb))
    if config.mlflow is not None:
        from trinity_db.insight.sinks.mlflow import Mlflow

        sinks.append(Mlflow(config.mlflow))
    return sinks


class Follower:
    """Brings one sink up to date with a run's metrics."""

    def __init__(self, database: Database, run: Run, sink: Sink) -> None:
        self.sink = sink
        self._database = database
        self._run = run
        self._position: int | None = None
        """Last id that the sink has written; None: it is not open."""

    def catch_up(self, patience: float = 0.0) -> int:
        """Write new metrics to the sink, and return how many.

        Args:
            patience: seconds to wait for transactions that are writing metrics. Later metrics follow next
                time.

        Raises:
            DatabaseUnavailable: if the store is unavailable; the sink stays open.
            TrinityError: if the sink fails; it is closed.
        """
        position = self._opened()
        upto = self._settled(patience)
        if upto is None:
            return 0
        if position > upto:
            self.close()
            raise TrinityError(
                f"{self.sink} has newer metrics of run '{self._run.name}' than the store, which was restored "
                "to an earlier state; move them away"
            )
        count = 0
        while page := self._read(position, upto):
            with self._in_our_words():
                self.sink.write(page)
            self._position = position = page[-1].id
            count += sum(len(measurement.values) for measurement in page)
        return count

    def close(self) -> None:
        """Close the sink, ignoring errors, as everything has been written."""
        self._position = None
        with suppress(Exception):  # another project's package may raise anything
            self.sink.close()

    def _opened(self) -> int:
        if self._position is None:
            with self._in_our_words():
                self._position = self.sink.open(self._run)
        return self._position

    def _settled(self, patience: float) -> int | None:
        """Return the id up to which all metrics are committed; None while a transaction is writing."""
        deadline = time.monotonic() + patience
        while True:
            # Separate transactions, and therefore separate snapshots.
            with self._database.transaction(read_only=True) as tx:
                last_id = metrics.last_id(tx)
            with self._database.transaction(read_only=True) as tx:
                if metrics.is_settled(tx, self._run.id):
                    return last_id
            if time.monotonic() >= deadline:
                return None
            time.sleep(SETTLE_PAUSE)

    def _read(self, position: int, upto: int) -> list[metrics.Measurement]:
        with self._database.transaction(read_only=True) as tx:
            return metrics.read(tx, self._run.id, position, upto, PAGE)

    @contextmanager
    def _in_our_words(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # another project's package, over a network: it may raise anything
            self.close()
            if isinstance(error, TrinityError):
                raise
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise TrinityError(f"{self.sink} did not take the metrics: {lines[0]}") from error


class Mirror(threading.Thread):
    """Runs a follower until asked to end, and then once again."""

    def __init__(self, database: Database, follower: Follower) -> None:
        super().__init__(name=f"metrics to {follower.sink}", daemon=True)
        self._database = database
        self._follower = follower
        self._ending = threading.Event()
        self._is_failing = False
        self.failure: TrinityError | None = None
        """Why the latest run did not bring the sink up to date."""

    def run(self) -> None:
        while not self._ending.wait(LOOK_SECONDS):
            self._look(patience=0.0)
        self._look(patience=SETTLE_SECONDS)
        self._follower.close()
        self._database.close()  # this thread's connection

    def end(self) -> None:
        """Run once again, and end."""
        self._ending.set()

    def _look(self, patience: float) -> None:
        try:
            self._follower.catch_up(patience)
        except DatabaseUnavailable as error:  # reported by the command that started this thread
            self.failure = error
        except TrinityError as error:
            if not self._is_failing:
                logger.warning("%s; retrying, and no metrics are lost", error)
            self._is_failing, self.failure = True, error
        else:
            self._is_failing, self.failure = False, None


@contextmanager
def mirrored(database: Database, run: Run, sinks: Sequence[Sink]) -> Iterator[Sequence[Mirror]]:
    """Keep sinks up to date within this `with`, which takes some seconds to end. Raises no errors of sinks.

    Afterwards a mirror whose sink is incomplete has a `failure`.
    """
    mirrors = [Mirror(database, Follower(database, run, sink)) for sink in sinks]
    for mirror in mirrors:
        mirror.start()
    try:
        yield mirrors
    finally:
        deadline = time.monotonic() + END_SECONDS
        for mirror in mirrors:
            mirror.end()
        for mirror in mirrors:
            mirror.join(max(0.0, deadline - time.monotonic()))
            if mirror.is_alive():
                later = f"{mirror.name} are incomplete; to complete them: trinity-db metrics {run.name}"
                logger.warning(later)
                mirror.failure = TrinityError(later)
