"""How long a trainer waits for an object store: minutes while it works, and seconds once it is to stop."""

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from trinity_db.errors import TrinityError
from trinity_db.weights.bucket import MAX_OBJECT_BYTES, Bucket, Unreachable

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

AWAY_SECONDS = 300.0  # that an object store may be away before a trainer that works gives up
STOP_SECONDS = 20.0  # that a trainer which is to stop goes on; its supervisor kills it after 60 s
PAUSE_SECONDS = 2.0  # between two tries; the library makes a few of its own before


class GivenUp(TrinityError):
    """The trainer is to stop, and asks the object store for nothing more. Its next start does."""


class Patience:
    """The patience of one process, for all that it asks of an object store.

    Args:
        should_stop: whether the process is to stop.
    """

    def __init__(self, should_stop: Callable[[], bool]) -> None:
        self._should_stop = should_stop
        self._stopped_at: float | None = None
        self.is_over = False
        """Whether it has given up, because the process is to stop."""

    def ask(self, work: Callable[[], Result]) -> Result:
        """Ask again while the object store is away, but not for ever. Threads may call it at once.

        Raises:
            GivenUp: the process is to stop, and the store is away, or this has taken STOP_SECONDS since then.
            TrinityError: the store was away for AWAY_SECONDS. Other errors come at once.
        """
        deadline, is_said = time.monotonic() + AWAY_SECONDS, False
        while True:
            self.check()
            try:
                return work()
            except Unreachable as error:
                if self._should_stop():
                    self.is_over = True
                    raise GivenUp(str(error)) from error
                if time.monotonic() > deadline:
                    raise TrinityError(
                        f"{error} It was asked again for {AWAY_SECONDS:.0f} s. When it answers, start again."
                    ) from error
                if not is_said:
                    logger.warning("%s Trying again.", error)
                is_said = True
            time.sleep(PAUSE_SECONDS)

    def check(self) -> None:
        """Find out whether it is over.

        Raises:
            GivenUp: it is.
        """
        if self._should_stop() and self._stopped_at is None:
            self._stopped_at = time.monotonic()
        if self._stopped_at is not None and time.monotonic() - self._stopped_at > STOP_SECONDS:
            self.is_over = True
        if self.is_over:
            raise GivenUp("The trainer is to stop, and the object store takes too long.")


class PatientBucket(Bucket):
    """A bucket that is asked again while it does not answer. A list or a deletion is asked for once.

    Each request is given up when the patience is over, also one that hangs.
    """

    def __init__(self, url: str, patience: Patience) -> None:
        super().__init__(url)
        self._patience = patience

    def put(self, name: str, content: bytes) -> None:
        self._patience.ask(partial(super().put, name, content))

    def create(self, name: str, content: bytes) -> bool:
        return self._patience.ask(partial(super().create, name, content))

    def get(self, name: str, most: int = MAX_OBJECT_BYTES) -> bytes:
        return self._patience.ask(partial(super().get, name, most))

    def _look(self) -> None:
        self._patience.check()
