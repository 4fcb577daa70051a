"""From the metric table to sinks: at once, or while a run goes on.

A sink that is slow or fails holds up no role and no other sink: each has its own thread and connection. The
log names it once when it begins to fail, and it is tried again. What it did not take stays in the table.
"""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from trinity_db.database import Database
from trinity_db.errors import DatabaseUnavailable, TrinityError
from trinity_db.sinks.config import MetricsConfig
from trinity_db.sinks.mlflow import Mlflow
from trinity_db.sinks.sink import Sink
from trinity_db.sinks.tensorboard import TensorBoard
from trinity_db.sinks.wandb import Wandb
from trinity_db.store import metrics
from trinity_db.store.runs import Run

logger = logging.getLogger(__name__)

PAGE = 10_000  # numbers read at a time, some megabytes
LOOK_SECONDS = 3.0  # between two looks at the table while a run goes on
SETTLE_SECONDS = 5.0  # for processes that write their last metrics; that takes milliseconds
SETTLE_PAUSE = 0.05  # seconds between two looks then
END_SECONDS = 20.0  # for all sinks to take the rest when a run ends; a first upload takes a few


def sinks_of(config: MetricsConfig) -> list[Sink]:
    """The sinks that a configuration names; none of them is open.

    Raises:
        MissingExtra: the package of one is not installed.
    """
    sinks: list[Sink] = []
    if config.tensorboard is not None:
        sinks.append(TensorBoard(config.tensorboard))
    if config.wandb is not None:
        sinks.append(Wandb(config.wandb))
    if config.mlflow is not None:
        sinks.append(Mlflow(config.mlflow))
    return sinks


class Follower:
    """Brings one sink up to date with a run's metrics."""

    def __init__(self, database: Database, run: Run, sink: Sink) -> None:
        self.sink = sink
        self._database = database
        self._run = run
        self._position: int | None = None
        """The id up to which the sink has everything; None: it is not open."""

    def catch_up(self, patience: float = 0.0) -> int:
        """Give the sink the metrics that it does not have yet; returns how many.

        Args:
            patience: seconds to wait for transactions that write metrics now. Later ones come the next time.

        Raises:
            DatabaseUnavailable: the store is away; the sink stays open.
            TrinityError: the sink does not take them, and is closed.
        """
        position = self._opened()
        upto = self._settled(patience)
        if upto is None:
            return 0
        if position > upto:
            self.close()
            raise TrinityError(
                f"{self.sink} has later metrics of run '{self._run.name}' than the store, "
                "which was set back; move them away"
            )
        count = 0
        while page := self._read(position, upto):
            with self._in_our_words():
                self.sink.write(page)
            self._position = position = page[-1].id
            count += sum(len(one.values) for one in page)
        return count

    def close(self) -> None:
        """Close the sink. Errors do not matter any more, because it has taken everything."""
        self._position = None
        with suppress(Exception):  # another project's package may raise anything
            self.sink.close()

    def _opened(self) -> int:
        if self._position is None:
            with self._in_our_words():
                self._position = self.sink.open(self._run)
        return self._position

    def _settled(self, patience: float) -> int | None:
        """The id up to which nothing appears any more; None while a transaction is writing."""
        deadline = time.monotonic() + patience
        while True:
            # Each in a transaction, and so in a snapshot, of its own.
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
            raise TrinityError(f"{self.sink} does not take the metrics: {lines[0]}") from error


class Mirror(threading.Thread):
    """A follower that works until it is told to end, and then once more."""

    def __init__(self, database: Database, follower: Follower) -> None:
        super().__init__(name=f"metrics to {follower.sink}", daemon=True)
        self._database = database
        self._follower = follower
        self._ending = threading.Event()
        self._is_failing = False
        self.failure: TrinityError | None = None
        """Why the last look did not bring the sink up to date."""

    def run(self) -> None:
        while not self._ending.wait(LOOK_SECONDS):
            self._look(patience=0.0)
        self._look(patience=SETTLE_SECONDS)
        self._follower.close()
        self._database.close()  # this thread's connection

    def end(self) -> None:
        """Look once more, and end."""
        self._ending.set()

    def _look(self, patience: float) -> None:
        try:
            self._follower.catch_up(patience)
        except DatabaseUnavailable as error:  # the command that started this thread says so
            self.failure = error
        except TrinityError as error:
            if not self._is_failing:
                logger.warning("%s; trying again, and nothing is lost meanwhile", error)
            self._is_failing, self.failure = True, error
        else:
            self._is_failing, self.failure = False, None


@contextmanager
def mirrored(database: Database, run: Run, sinks: Sequence[Sink]) -> Iterator[Sequence[Mirror]]:
    """Keep sinks up to date while this lasts. It ends some seconds later at most. Sinks never make it fail.

    Afterwards a mirror whose sink does not have everything has a `failure`.
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
                later = f"{mirror.name} are not complete; later: trinity-db metrics {run.name}"
                logger.warning(later)
                mirror.failure = TrinityError(later)
