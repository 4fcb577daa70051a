"""Which store this is. A copy of it, made in any way, is another one, and owns none of its files.

An instance is bound to a place: the server's system identifier, the database's oid and, for an embedded
server, its home. A role that owns files finds out at its start whether the place is the one in the rows:

    the same place                          the same instance
    the same, on a later timeline           a replica was promoted: the same instance
    another place                           a copy: it becomes an instance of its own

A store that was moved on purpose looks like a copy. `declare_moved` says that it is none.
"""

from dataclasses import asdict, dataclass
from uuid import UUID

from psycopg.rows import DictRow

from trinity_db.database import Transaction
from trinity_db.errors import TrinityError
from trinity_db.schema.queries import query


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
    is_new_copy: bool = False
    """Whether it was found just now that it is a copy."""


def identify(tx: Transaction) -> Instance:
    """The instance that this store is. One that is found in another place is a copy from now on."""
    place, held = _hold(tx)
    if place.continues(_bound(held)):
        tx.execute(query("bind_instance"), asdict(place))
        return Instance(held["id"], held["copy_of"])
    _become(tx, place, None, copy_of=held["id"])
    _, held = _hold(tx)
    return Instance(held["id"], held["copy_of"], is_new_copy=True)


def declare_moved(tx: Transaction) -> bool:
    """Say that the store is no copy but was moved here; False where it is where it was.

    Raises:
        TrinityError: it has trained on as a copy, so that the original's checkpoints are another line.
    """
    place, held = _hold(tx)
    if not place.continues(_bound(held)):
        tx.execute(query("bind_instance"), asdict(place))
        return True
    if held["copy_of"] is None:
        return False
    row = tx.execute(query("published_since"), {"moment": held["created_at"]}).fetchone()
    assert row is not None
    if row["is_so"]:
        raise TrinityError(
            "This store has published versions as a copy, in folders of its own, and goes on there; "
            "nothing is lost. To be the original, restore it again and run db moved before any role."
        )
    _become(tx, place, held["copy_of"], copy_of=None)
    return True


def _hold(tx: Transaction) -> tuple[Place, DictRow]:
    """Where the database is, and the row of its instance, which is made where there is none."""
    found = tx.execute(query("server_place")).fetchone()
    assert found is not None
    place = Place(**found)
    tx.execute(query("make_instance"), asdict(place))
    held = tx.execute(query("hold_instance")).fetchone()
    assert held is not None
    return place, held


def _bound(held: DictRow) -> Place:
    return Place(held["system_identifier"], held["database_oid"], held["timeline"], held["home"])


def _become(tx: Transaction, place: Place, instance: UUID | None, copy_of: UUID | None) -> None:
    tx.execute(query("bind_instance"), asdict(place))
    tx.execute(query("become_instance"), {"id": instance, "copy_of": copy_of})
