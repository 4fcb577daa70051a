"""Identify this store. A copy of a store, however it was made, is another store and owns none of its files.

An instance is bound to a place: the server's system identifier, the database's oid and, for an embedded
server, its home. A role that owns files compares, at its start, the current place with the recorded one:

    the same place                          the same instance
    the same, on a later timeline           a replica was promoted: the same instance
    another place                           a copy: it becomes a new instance

A store that was moved on purpose looks like a copy; `declare_moved` makes it the original again.
"""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from psycopg.rows import DictRow

from trinity_db.errors import TrinityError
from trinity_db.postgres.connection import Transaction
from trinity_db.schema.queries import query

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """Location of a database."""

    system_identifier: int
    database_oid: int
    timeline: int
    home: str | None

    def continues(self, bound: "Place") -> bool:
        """Whether a store bound to another place may be the same store here."""
        same = (self.system_identifier, self.database_oid) == (bound.system_identifier, bound.database_oid)
        # A copied home has the original's timeline; the home of a promoted replica has a later one.
        return same and (bound.home in (None, self.home) or self.timeline > bound.timeline)


@dataclass(frozen=True)
class Instance:
    """Identity of the store in this database."""

    id: UUID
    copy_of: UUID | None


def identify(tx: Transaction) -> Instance:
    """Return this store's instance. A store found in another place becomes a copy.

    If the place is unchanged, the store is only read.

    Raises:
        TrinityError: if the place has changed, and this login may not record it.
    """
    location, row = _look(tx)
    if location == _bound(row):
        return Instance(row["id"], row["copy_of"])
    if not _asks(tx, "may_rebind"):
        if location.continues(_bound(row)):
            return Instance(row["id"], row["copy_of"])
        raise TrinityError(
            "This store is a copy of another one, or was moved, and this login may not record which: start "
            "its trainer, or, if it was moved on purpose, run with the owner's login: trinity-db db moved"
        )
    location, row = _hold(tx)
    if location.continues(_bound(row)):
        tx.execute(query("bind_instance"), asdict(location))
        return Instance(row["id"], row["copy_of"])
    _become(tx, location, None, copy_of=row["id"])
    _, row = _hold(tx)
    logger.warning(
        "this store is a copy of another one, or was moved: from now on it writes its own checkpoints and "
        "archives, and leaves the original's untouched; if it was moved on purpose, stop its roles, then: "
        "trinity-db db moved"
    )
    return Instance(row["id"], row["copy_of"])


def known(tx: Transaction) -> UUID | None:
    """Instance recorded by the last role that owns files; None before the first."""
    row = tx.execute(query("read_instance")).fetchone()
    return row["id"] if row else None


def declare_moved(tx: Transaction) -> bool:
    """Record that the store was moved here and is not a copy; False if its place is unchanged.

    Raises:
        TrinityError: if it has trained or archived as a copy, and so has its own files.
    """
    location, row = _hold(tx)
    if not location.continues(_bound(row)):
        tx.execute(query("bind_instance"), asdict(location))
        return True
    if row["copy_of"] is None:
        return False
    if _asks(tx, "owns_files", {"moment": row["created_at"], "id": row["id"]}):
        raise TrinityError(
            "This store has published versions or archived arrays as a copy, in its own folders and tables, "
            "and stays a copy; nothing is lost. To make it the original, restore it again and run "
            "trinity-db db moved before any role starts."
        )
    _become(tx, location, row["copy_of"], copy_of=None)
    return True


def _look(tx: Transaction) -> tuple[Place, DictRow]:
    """Return the place of the database and the row of its instance, which is created if missing."""
    columns = tx.execute(query("server_place")).fetchone()
    assert columns is not None
    location = Place(**columns)
    row = tx.execute(query("read_instance")).fetchone()
    if row is None:
        tx.execute(query("make_instance"), asdict(location))
        row = tx.execute(query("read_instance")).fetchone()
    assert row is not None
    return location, row


def _hold(tx: Transaction) -> tuple[Place, DictRow]:
    """Like `_look`, with the row locked."""
    location, _ = _look(tx)
    row = tx.execute(query("hold_instance")).fetchone()
    assert row is not None
    return location, row


def _asks(tx: Transaction, question: str, values: Mapping[str, Any] | None = None) -> bool:
    row = tx.execute(query(question), values).fetchone()
    assert row is not None
    return bool(row["is_so"])


def _bound(row: DictRow) -> Place:
    return Place(row["system_identifier"], row["database_oid"], row["timeline"], row["home"])


def _become(tx: Transaction, location: Place, instance: UUID | None, copy_of: UUID | None) -> None:
    tx.execute(query("bind_instance"), asdict(location))
    tx.execute(query("become_instance"), {"id": instance, "copy_of": copy_of})
