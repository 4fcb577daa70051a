"""Embeddings of responses in Lance tables, next to the archive: one table per run, store and model.

Any number of processes may append concurrently. Lance numbers rows in commit order, and a process that has
appended sees all earlier commits. So of two rows compared at the same time, the later one sees the earlier
one, without a lock. Searches are exact: they read every vector. Lance does not flush to disk: a power cut may
lose the newest vectors, but no rows of the store.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from trinity_db.arrays.archive import connection, in_our_words
from trinity_db.config import base

MERGE_FILES = 64
KEPT = timedelta(minutes=10)  # age of table versions that another process may still be reading


@dataclass(frozen=True)
class EmbeddedRow:
    """An embedding to append."""

    experience_id: int
    task_id: int | None
    group_id: int | None
    vector: NDArray[np.float32]
    """Unit vector."""


@dataclass(frozen=True)
class Near:
    """A search result."""

    experience_id: int
    position: int
    """Position of the row in the order of appends."""
    cosine: float


def names(run_id: int | None, store: UUID) -> list[str]:
    """List the tables of a run in this store; None: of all runs.

    Raises:
        TrinityError: if they cannot be listed.
    """
    of_run = r"\d+" if run_id is None else str(run_id)
    return [name for name in _tables() if re.fullmatch(f"vectors_{of_run}_{store.hex}_[0-9a-f]+", name)]


def name_of(run_id: int, store: UUID, digest: str) -> str:
    """Return the name of the table for one model's embeddings, from the model's digest."""
    return f"vectors_{run_id}_{store.hex}_{short_digest(digest)}"


def short_digest(digest: str) -> str:
    """Return the part of a model's digest that table names contain."""
    return digest[:16]


def digest_in(name: str) -> str:
    """Return the shortened model digest in a table's name."""
    return name.rpartition("_")[2]


def opened(name: str) -> "Vectors | None":
    """Open a table; None if it does not exist, or another process is just creating it.

    Raises:
        TrinityError: if it cannot be read.
    """
    with in_our_words("read"):
        try:
            table = connection(base.lance_uri()).open_table(name)
        except ValueError as error:
            # Its folder is created before its first version, so a list of tables may contain it already.
            if "was not found" not in str(error):
                raise
            return None
    return Vectors(table)


def make(name: str, size: int) -> "Vectors":
    """Open a table, creating it if missing. The caller must prevent concurrent creation.

    Lance would replace a table that another process created meanwhile, with its rows.

    Args:
        size: length of the vectors.

    Raises:
        TrinityError: if it cannot be created.
    """
    import pyarrow as pa

    fields = [
        pa.field("experience_id", pa.int64(), nullable=False),
        pa.field("task_id", pa.int64()),
        pa.field("group_id", pa.int64()),
        pa.field("vector", pa.list_(pa.float32(), size), nullable=False),
    ]
    schema = pa.schema(fields)
    if (table := opened(name)) is not None:
        return table
    with in_our_words("written"):
        options = {"new_table_enable_stable_row_ids": "true"}
        return Vectors(
            connection(base.lance_uri()).create_table(name, schema=schema, storage_options=options)
        )


class Vectors:
    """One table; each call uses its newest version."""

    def __init__(self, table: Any) -> None:
        """Wrap Lance's table; see `opened`."""
        self._table = table

    def add(self, rows: Sequence[EmbeddedRow]) -> None:
        """Append rows in one version, and occasionally merge small files."""
        import pyarrow as pa

        with in_our_words("written"):
            schema = self._table.schema
            size = schema.field("vector").type.list_size
            flat = pa.array(np.concatenate([row.vector for row in rows]).astype(np.float32))
            columns = [
                pa.array([getattr(row, name) for row in rows], pa.int64()) for name in schema.names[:3]
            ]
            vectors = pa.FixedSizeListArray.from_arrays(flat, size)
            self._table.add(pa.table([*columns, vectors], schema=schema))
            if self._table.stats()["fragment_stats"]["num_small_fragments"] >= MERGE_FILES:
                self._table.optimize(cleanup_older_than=KEPT)

    def positions(self, ids: Sequence[int]) -> dict[int, int]:
        """Return the positions of these experiences, as far as stored; the first one for duplicates."""
        if not ids:
            return {}
        chosen = f"experience_id IN ({', '.join(map(str, ids))})"
        with in_our_words("read"):
            self._table.checkout_latest()
            scan = self._table.search().where(chosen).select(["experience_id"]).with_row_id(True).limit(None)
            table = scan.to_arrow()
        positions: dict[int, int] = {}
        for id, position in zip(table["experience_id"].to_pylist(), table["_rowid"].to_pylist(), strict=True):
            positions[id] = min(position, positions.get(id, position))
        return positions

    def vector(self, id: int) -> NDArray[np.float32] | None:
        """Return the vector of an experience; None if it is not stored."""
        with in_our_words("read"):
            self._table.checkout_latest()
            rows = (
                self._table.search().where(f"experience_id = {int(id)}").select(["vector"]).limit(1).to_list()
            )
        return np.array(rows[0]["vector"], np.float32) if rows else None

    def near(
        self, vector: NDArray[np.float32], least: float, limit: int, where: Mapping[str, int | None]
    ) -> list[Near]:
        """Return the rows nearest to a vector, nearest first.

        Args:
            least: smallest cosine.
            where: required values of columns.
        """
        condition = " AND ".join(
            f"{column} IS NULL" if value is None else f"{column} = {int(value)}"
            for column, value in where.items()
        )
        with in_our_words("read"):
            self._table.checkout_latest()
            # Distances are float32: an equal row may differ by a rounding error.
            search = self._table.search(vector, vector_column_name="vector").distance_type("cosine")
            search = search.distance_range(upper_bound=1 - least + 1e-6).limit(limit)
            if condition:
                search = search.where(condition, prefilter=True)
            table = search.select(["experience_id", "_distance"]).with_row_id(True).to_arrow()
        columns = (table[name].to_pylist() for name in ("experience_id", "_rowid", "_distance"))
        return [Near(id, position, 1 - distance) for id, position, distance in zip(*columns, strict=True)]

    def remove(self, ids: Sequence[int]) -> None:
        """Delete the rows of experiences."""
        with in_our_words("written"):
            self._table.delete(f"experience_id IN ({', '.join(map(str, ids))})")


def _tables() -> list[str]:
    uri = base.lance_uri()
    if "://" not in uri and not Path(uri).is_dir():  # before Lance creates the folder
        return []
    names: list[str] = []
    with in_our_words("read"):
        page = connection(uri).list_tables()
        names += page.tables
        while page.page_token:
            page = connection(uri).list_tables(page_token=page.page_token)
            names += page.tables
    return names
