"""Progress log of `delete` and `prune`, which may take minutes to remove rows."""

import logging
import time

logger = logging.getLogger(__name__)

LINE_SECONDS = 5.0  # between lines


class RemovalLog:
    """Logs at intervals how many rows of a run are removed so far."""

    def __init__(self, doing: str, run: str) -> None:
        self._doing = doing
        self._run = run
        self._said_at = time.monotonic()

    def __call__(self, name: str, count: int) -> None:
        if time.monotonic() - self._said_at > LINE_SECONDS:
            self._said_at = time.monotonic()
            logger.info("%s '%s': %d %s so far", self._doing, self._run, count, name)
