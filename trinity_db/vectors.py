"""Embeddings of responses in Lance tables, beside the archive: one table for each run, store and model.

Any number of processes append at the same time. Lance numbers rows in the order of their commits, and a
process that has appended sees all that were committed before. So of two rows that are compared at the same
time, the later one sees the earlier one, without a lock. Searches are exact: they read every vector. Lance
does not flush what it writes. A power cut may lose the newest vectors, and no row.
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

from trinity_db import settings
from trinity_db.archive import connection, in_our_words

MERGE_FILES = 64
KEPT = timedelta(minutes=10)  # versions of a table that another process may be reading


@dataclass(frozen=True)
class Row:
    """An embedding on its way into a table."""

    experience_id: int
    task_id: int | None
    group_id: int | None
    vector: NDArray[np.float32]
    """Of length 1."""


@dataclass(frozen=True)
class Near:
    """A row that was found."""

    experience_id: int
    place: int
    """In the order in which rows were appended."""
    cosine: float


def names(run_id: int | None, store: UUID) -> list[str]:
    """The tables of a run in this store; with None those of all runs.

    Raises:
        TrinityError: they cannot be looked for.
    """
    of_run = r"\d+" if run_id is None else str(run_id)
    return [name for name in _tables() if re.fullmatch(f"vectors_{of_run}_{store.hex}_[0-9a-f]+", name)]


def name_of(run_id: int, store: UUID, digest: str) -> str:
    """The table of the embeddings that one model made, by the model's digest."""
    return f"vectors_{run_id}_{store.hex}_{short_digest(digest)}"


def short_digest(digest: str) -> str:
    """The part of a model's digest that names of tables contain."""
    return digest[:16]


def digest_in(name: str) -> str:
    """The beginning of the model's digest in the name of a table."""
    return name.rpartition("_")[2]


def opened(name: str) -> "Vectors | None":
    """A table; None where there is none, or where another process is making it just now.

    Raises:
        TrinityError: it cannot be read.
    """
    with in_our_words("read"):
        try:
            table = connection(settings.lance_uri()).open_table(name)
        except ValueError as error:
            # Its folder comes before its first version, so a list of tables may have it already.
            if "was not found" not in str(error):
                raise
            return None
    return Vectors(table)


def make(name: str, size: int) -> "Vectors":
    """A table, which is made where it is missing. The caller sees to it that no other process does so now.

    Lance would replace a table that another process made meanwhile, and what was written into it.

    Args:
        size: of each vector.

    Raises:
        TrinityError: it cannot be made.
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
            connection(settings.lance_uri()).create_table(name, schema=schema, storage_options=options)
        )


class Vectors:
    """One table. It is as new as it is now at each call."""

    def __init__(self, table: Any) -> None:
        """From Lance's own, which `opened` opens."""
        self._table = table

    def add(self, rows: Sequence[Row]) -> None:
        """Append rows in one version, and merge small files now and then."""
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

    def places(self, ids: Sequence[int]) -> dict[int, int]:
        """The places of those of these experiences that it has; of one that is there twice, the first."""
        if not ids:
            return {}
        chosen = f"experience_id IN ({', '.join(map(str, ids))})"
        with in_our_words("read"):
            self._table.checkout_latest()
            scan = self._table.search().where(chosen).select(["experience_id"]).with_row_id(True).limit(None)
            found = scan.to_arrow()
        places: dict[int, int] = {}
        for id, place in zip(found["experience_id"].to_pylist(), found["_rowid"].to_pylist(), strict=True):
            places[id] = min(place, places.get(id, place))
        return places

    def vector(self, id: int) -> NDArray[np.float32] | None:
        """The vector of an experience; None where it has none here."""
        with in_our_words("read"):
            self._table.checkout_latest()
            found = (
                self._table.search().where(f"experience_id = {int(id)}").select(["vector"]).limit(1).to_list()
            )
        return np.array(found[0]["vector"], np.float32) if found else None

    def near(
        self, vector: NDArray[np.float32], least: float, limit: int, where: Mapping[str, int | None]
    ) -> list[Near]:
        """The rows that are nearest to a vector, the nearest first.

        Args:
            least: smallest cosine.
            where: values that columns have.
        """
        condition = " AND ".join(
            f"{column} IS NULL" if value is None else f"{column} = {int(value)}"
            for column, value in where.items()
        )
        with in_our_words("read"):
            self._table.checkout_latest()
            # Distances are float32: a row that is equal may be a rounding error away.
            search = self._table.search(vector, vector_column_name="vector").distance_type("cosine")
            search = search.distance_range(upper_bound=1 - least + 1e-6).limit(limit)
            if condition:
                search = search.where(condition, prefilter=True)
            found = search.select(["experience_id", "_distance"]).with_row_id(True).to_arrow()
        columns = (found[name].to_pylist() for name in ("experience_id", "_rowid", "_distance"))
        return [Near(id, place, 1 - distance) for id, place, distance in zip(*columns, strict=True)]

    def remove(self, ids: Sequence[int]) -> None:
        """Remove the rows of experiences."""
        with in_our_words("written"):
            self._table.delete(f"experience_id IN ({', '.join(map(str, ids))})")


def _tables() -> list[str]:
    uri = settings.lance_uri()
    if "://" not in uri and not Path(uri).is_dir():  # before Lance makes a folder to look in
        return []
    found: list[str] = []
    with in_our_words("read"):
        page = connection(uri).list_tables()
        found += page.tables
        while page.page_token:
            page = connection(uri).list_tables(page_token=page.page_token)
            found += page.tables
    return found
