"""Which store this is. A copy of it, made in any way, is another one, and owns none of its files.

An instance is bound to a place: the server's system identifier, the database's oid and, for an embedded
server, its home. A role that owns files finds out at its start whether the place is the one in the rows:

    the same place                          the same instance
    the same, on a later timeline           a replica was promoted: the same instance
    another place                           a copy: it becomes an instance of its own

A store that was moved on purpose looks like a copy. `declare_moved` says that it is none.
"""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from psycopg.rows import DictRow

from trinity_db.database import Transaction
from trinity_db.errors import TrinityError
from trinity_db.schema.queries import query

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """Where a database is."""

    system_identifier: int
    database_oid: int
    timeline: int
    home: str | None

    def continues(self, bound: "Place") -> bool:
        """Whether a store that was bound to another place may be the same one here."""
        same = (self.system_identifier, self.database_oid) == (bound.system_identifier, bound.database_oid)
        # A home that is copied has its original's timeline; the home of a promoted replica has a later one.
        return same and (bound.home in (None, self.home) or self.timeline > bound.timeline)


@dataclass(frozen=True)
class Instance:
    """The store that this database is."""

    id: UUID
    copy_of: UUID | None


def identify(tx: Transaction) -> Instance:
    """The instance that this store is. One that is found in another place is a copy from now on.

    A store that is where it was is only read.

    Raises:
        TrinityError: it is in another place, and this login may not say so.
    """
    place, held = _look(tx)
    if place == _bound(held):
        return Instance(held["id"], held["copy_of"])
    if not _asks(tx, "may_rebind"):
        if place.continues(_bound(held)):
            return Instance(held["id"], held["copy_of"])
        raise TrinityError(
            "This store is a copy of another one, or was moved, and this login may not say which: start its "
            "trainer, or by the owner's login, if it was moved on purpose, run: trinity-db db moved"
        )
    place, held = _hold(tx)
    if place.continues(_bound(held)):
        tx.execute(query("bind_instance"), asdict(place))
        return Instance(held["id"], held["copy_of"])
    _become(tx, place, None, copy_of=held["id"])
    _, held = _hold(tx)
    logger.warning(
        "this store is a copy of another one, or was moved: from now on it writes checkpoints and archives "
        "of its own, and leaves the other's alone; if it was moved on purpose, stop its roles, then: "
        "trinity-db db moved"
    )
    return Instance(held["id"], held["copy_of"])


def known(tx: Transaction) -> UUID | None:
    """The instance that this store was when a role that owns files last looked; None before the first did."""
    row = tx.execute(query("read_instance")).fetchone()
    return row["id"] if row else None


def declare_moved(tx: Transaction) -> bool:
    """Say that the store is no copy but was moved here; False where it is where it was.

    Raises:
        TrinityError: as a copy it has trained on or archived, and has files of its own.
    """
    place, held = _hold(tx)
    if not place.continues(_bound(held)):
        tx.execute(query("bind_instance"), asdict(place))
        return True
    if held["copy_of"] is None:
        return False
    if _asks(tx, "owns_files", {"moment": held["created_at"], "id": held["id"]}):
        raise TrinityError(
            "This store has published versions or archived arrays as a copy, in folders and tables of its "
            "own, and goes on there; nothing is lost. To be the original, restore it again and run db moved "
            "before any role."
        )
    _become(tx, place, held["copy_of"], copy_of=None)
    return True


def _look(tx: Transaction) -> tuple[Place, DictRow]:
    """Where the database is, and the row of its instance, which is made where there is none."""
    found = tx.execute(query("server_place")).fetchone()
    assert found is not None
    place = Place(**found)
    held = tx.execute(query("read_instance")).fetchone()
    if held is None:
        tx.execute(query("make_instance"), asdict(place))
        held = tx.execute(query("read_instance")).fetchone()
    assert held is not None
    return place, held


def _hold(tx: Transaction) -> tuple[Place, DictRow]:
    """The same, with the row locked."""
    place, _ = _look(tx)
    held = tx.execute(query("hold_instance")).fetchone()
    assert held is not None
    return place, held


def _asks(tx: Transaction, question: str, values: Mapping[str, Any] | None = None) -> bool:
    row = tx.execute(query(question), values).fetchone()
    assert row is not None
    return bool(row["is_so"])


def _bound(held: DictRow) -> Place:
    return Place(held["system_identifier"], held["database_oid"], held["timeline"], held["home"])


def _become(tx: Transaction, place: Place, instance: UUID | None, copy_of: UUID | None) -> None:
    tx.execute(query("bind_instance"), asdict(place))
    tx.execute(query("become_instance"), {"id": instance, "copy_of": copy_of})
