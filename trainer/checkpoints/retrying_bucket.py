"""Retries requests to an object store: for minutes while the trainer runs, and for seconds while it stops."""

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from trinity_db.errors import TrinityError
from trinity_db.weights.bucket import MAX_OBJECT_BYTES, Bucket, Unreachable

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

AWAY_SECONDS = 300.0  # with an unreachable object store, before a running trainer gives up
STOP_SECONDS = 20.0  # that a stopping trainer continues; its supervisor kills it after 60 s
PAUSE_SECONDS = 2.0  # between two retries, in addition to the library's own


class GivenUp(TrinityError):
    """The trainer is stopping and sends no further requests to the object store. Its next start does."""


class Patience:
    """Retries of one process, for all its requests to an object store.

    Args:
        should_stop: Whether the process should stop.
    """

    def __init__(self, should_stop: Callable[[], bool]) -> None:
        self._should_stop = should_stop
        self._stopped_at: float | None = None
        self.is_over = False
        """Whether it has given up, because the process is stopping."""

    def ask(self, work: Callable[[], Result]) -> Result:
        """Repeat a request while the object store is unreachable, up to a limit. Thread-safe.

        Raises:
            GivenUp: if the process is stopping, and the store is unreachable, or STOP_SECONDS have passed
                since then.
            TrinityError: if the store was unreachable for AWAY_SECONDS. Other errors are raised immediately.
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
                        f"{error} Retries for {AWAY_SECONDS:.0f} s failed. When it answers, start again."
                    ) from error
                if not is_said:
                    logger.warning("%s Retrying.", error)
                is_said = True
            time.sleep(PAUSE_SECONDS)

    def check(self) -> None:
        """Check whether to give up.

        Raises:
            GivenUp: if so.
        """
        if self._should_stop() and self._stopped_at is None:
            self._stopped_at = time.monotonic()
        if self._stopped_at is not None and time.monotonic() - self._stopped_at > STOP_SECONDS:
            self.is_over = True
        if self.is_over:
            raise GivenUp("The trainer is stopping, and the object store takes too long.")


class PatientBucket(Bucket):
    """A bucket that retries requests, except listing and deletion.

    Each request is given up when the retries are over, even if it hangs.
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
