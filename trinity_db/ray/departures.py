"""Machines that are to leave the cluster: spot machines hear of it some time before, and Ray drains them."""

import logging
import time

from trinity_db.ray import cluster
from trinity_db.ray.place import Whereabouts

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # between two questions to the head: one takes a millisecond
SILENT_SECONDS = 10.0  # the same when it did not answer, which holds up the command for a second


class Departures:
    """What Ray knows of them. One for all roles of a run, so that the head is asked once."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._told: set[str] = set()
        self._next_look = 0.0

    def has(self, where: Whereabouts) -> bool:
        """Whether the machine that a role is on is to go. The first time it says so."""
        if time.monotonic() >= self._next_look:
            found = cluster.draining()
            self._known = self._known if found is None else found
            self._next_look = time.monotonic() + (SILENT_SECONDS if found is None else LOOK_SECONDS)
        if where.node in self._known and where.node not in self._told:
            self._told.add(where.node)
            at = self._known[where.node]
            left = f"in {max(0.0, at / 1000 - time.time()):.0f} s" if at else "soon"
            logger.warning(
                "%s is to leave the cluster %s: its roles end, and begin elsewhere", where.host, left
            )
        return where.node in self._known
