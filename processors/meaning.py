"""Searches for rows by meaning, in the vectors that the step `embed` wrote."""

from collections.abc import Iterator

from trinity_db import vectors
from trinity_db.database import Database
from trinity_db.processors.embedding import Embedder, embedder
from trinity_db.store import instances
from trinity_db.vectors import Vectors

WIDEST = 2.0  # less than any cosine is 1 less this


def by_words(database: Database, words: str, run_id: int | None, limit: int) -> dict[int, float] | None:
    """The cosine of rows whose responses mean nearly what the words do, the nearest first. None: no vectors.

    Args:
        run_id: of the run whose rows are looked at; None: all that have vectors.

    Raises:
        TrinityError: the model is not there any more, or its endpoint does not answer.
    """
    models: dict[str, Embedder] = {}
    found: dict[int, float] = {}
    tables = list(_tables(database, run_id))
    for name, table in tables:
        digest = vectors.digest_in(name)
        if digest not in models:
            models[digest] = embedder(table.made_by)
        [vector] = models[digest].embed([words])
        found |= {near.experience_id: near.cosine for near in table.near(vector, 1 - WIDEST, limit, {})}
    return _best(found, limit) if tables else None


def like(database: Database, id: int, run_id: int | None, limit: int) -> dict[int, float] | None:
    """The same for rows that mean nearly what a row does; None where the row has no vector."""
    found: dict[int, float] = {}
    tables = list(_tables(database, None))
    asked = {
        vectors.digest_in(name): vector for name, table in tables if (vector := table.vector(id)) is not None
    }
    for name, table in _tables(database, run_id) if asked else ():
        if (vector := asked.get(vectors.digest_in(name))) is not None:
            near = table.near(vector, 1 - WIDEST, limit + 1, {})
            found |= {one.experience_id: one.cosine for one in near if one.experience_id != id}
    return _best(found, limit) if asked else None


def _tables(database: Database, run_id: int | None) -> Iterator[tuple[str, Vectors]]:
    with database.transaction(read_only=True) as tx:
        store = instances.known(tx)
    for name in vectors.names(run_id, store) if store is not None else ():
        if (table := vectors.opened(name)) is not None:
            yield name, table


def _best(found: dict[int, float], limit: int) -> dict[int, float]:
    order = sorted(found, key=lambda id: (-found[id], id))
    return {id: found[id] for id in order[:limit]}
