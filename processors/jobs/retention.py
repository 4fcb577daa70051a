"""Removes rows that runs no longer keep (`processors.retention`), in short turns of a processor."""

import logging
import math
import time

import psycopg

from trinity_db.errors import DatabaseUnavailable, TrinityError
from trinity_db.postgres.connection import Database
from trinity_db.store import retention

logger = logging.getLogger(__name__)

TURN_SECONDS = 0.1  # per turn, while rollouts wait; it may exceed this by one range
SHARE = 0.1  # maximum share of a process's time, because rollouts are urgent and old rows are not
IDLE_SECONDS = 60.0  # between checks whether a removal is due
PAUSE_SECONDS = 600.0  # after an error, which a person has to fix


class Remover:
    """Removes old rows of all runs, in short turns."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._look_at = -math.inf
        self._complaint: str | None = None

    def work(self) -> None:
        """Check some ranges, if it is time. An error is logged once, and rows stay until a later attempt."""
        started = time.monotonic()
        if started < self._look_at:
            return
        has_more = True
        try:
            while has_more and time.monotonic() < started + TURN_SECONDS:
                with self._database.transaction() as tx:
                    has_more = retention.remove_next(tx)
        except DatabaseUnavailable:
            raise
        except psycopg.errors.LockNotAvailable:
            self._complain(
                "another session holds them or their run's checkpoint; the next try is in a minute"
            )
            self._look_at = started + IDLE_SECONDS
            return
        except TrinityError as error:
            self._complain(
                f"{error} If this login lacks a right, the tables' owner runs trinity-db db roles again."
            )
            self._look_at = started + PAUSE_SECONDS
            return
        ended = time.monotonic()
        self._complaint = None
        self._look_at = ended + ((ended - started) * (1 / SHARE - 1) if has_more else IDLE_SECONDS)

    def _complain(self, why: str) -> None:
        """Log once why old rows stay."""
        if why != self._complaint:
            self._complaint = why
            logger.warning("old rows stay: %s", why)
