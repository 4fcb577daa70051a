"""The turn of a processor in which it removes rows that runs keep no longer (`processors.retention`)."""

import logging
import math
import time

import psycopg

from trinity_db.database import Database
from trinity_db.errors import DatabaseUnavailable, TrinityError
from trinity_db.store import retention

logger = logging.getLogger(__name__)

TURN_SECONDS = 0.1  # of one turn, while rollouts wait for theirs; one range more at most
SHARE = 0.1  # of a process's time: rollouts wait for it, and old rows do not
IDLE_SECONDS = 60.0  # until the next question whether a look is due
PAUSE_SECONDS = 600.0  # after an error, which a person has to mend


class Remover:
    """Removes old rows of all runs, in short turns."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._look_at = -math.inf
        self._complaint: str | None = None

    def work(self) -> None:
        """Look at some ranges, if it is time. An error is logged once, and rows stay until a later try."""
        started = time.monotonic()
        if started < self._look_at:
            return
        found = True
        try:
            while found and time.monotonic() < started + TURN_SECONDS:
                with self._database.transaction() as tx:
                    found = retention.remove_next(tx)
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
        self._look_at = ended + ((ended - started) * (1 / SHARE - 1) if found else IDLE_SECONDS)

    def _complain(self, why: str) -> None:
        """Say once why old rows stay."""
        if why != self._complaint:
            self._complaint = why
            logger.warning("old rows stay: %s", why)
