"""Nodes that are about to leave the cluster, such as spot instances that were given notice and are
drained."""

import logging
import time

from trinity_db.ray import cluster
from trinity_db.ray.place import Whereabouts

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # between queries to the head, each of which takes a millisecond
SILENT_SECONDS = 10.0  # the same after a query timed out, which blocks the command for a second


class Departures:
    """Tracks draining nodes, shared by all roles of a run, so that the head is queried once."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._told: set[str] = set()
        self._next_look = 0.0

    def has(self, where: Whereabouts) -> bool:
        """Whether a role's node is about to leave; logs it the first time."""
        if time.monotonic() >= self._next_look:
            draining = cluster.draining()
            self._known = self._known if draining is None else draining
            self._next_look = time.monotonic() + (SILENT_SECONDS if draining is None else LOOK_SECONDS)
        if where.node in self._known and where.node not in self._told:
            self._told.add(where.node)
            at = self._known[where.node]
            when = f"in {max(0.0, at / 1000 - time.time()):.0f} s" if at else "soon"
            logger.warning(
                "%s is about to leave the cluster %s: its roles are restarted elsewhere", where.host, when
            )
        return where.node in self._known
