"""Lazy queries: nothing is read before a method that returns rows."""

import html
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

from psycopg.errors import UndefinedColumn

from trinity_db.api.conditions import Bound, bind, escaped, identifier, is_ordered
from trinity_db.api.reading import ARRAYS, CHUNK_ROWS, Answer, arrow_needed, needs, read
from trinity_db.errors import ConfigError, MissingExtra, WrongSelect
from trinity_db.insight.columns import Column
from trinity_db.insight.words import cell
from trinity_db.postgres.connection import Database

if TYPE_CHECKING:
    import datasets
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from trinity_db.api.iterable_dataset import IterableDataset

Result = TypeVar("Result")

SHOWN_ROWS = 10  # in a notebook
SHOWN_CHARACTERS = 200  # of a cell in a notebook


@dataclass(frozen=True)
class Query:
    """A SELECT that is not executed yet. Its methods return new queries, or read its rows.

    Each reading method is one transaction with one snapshot. Arrow libraries read a query directly, through
    `__arrow_c_stream__`: `pyarrow.table(query)`, `polars.DataFrame(query)`, `duckdb.sql("from query")`.
    """

    _database: Database
    _seconds: float
    """How long a method waits for a database that does not answer."""
    _source: Bound
    _arrays_of: str | None = None
    """Column with ids of experiences, whose arrays are added to the columns."""
    _conditions: tuple[Bound, ...] = ()
    _names: tuple[str, ...] = ()
    """Selected columns; none: all."""
    _order: str | None = None
    _limit: int | None = None

    def where(self, condition: str, *values: Any) -> Self:
        """Keep the rows that meet a condition in SQL; several are combined with AND.

        Values replace the placeholders %s, in order: `where("reward > %s", 0.5)`.
        """
        source = self._as_source()
        return replace(source, _conditions=(*source._conditions, bind(condition, values)))

    def select(self, *names: str) -> Self:
        """Keep these columns, in this order. The arrays stay."""
        return replace(self._as_source(), _names=names)

    def order_by(self, order: str) -> Self:
        """Sort the rows by an expression in SQL, such as "reward DESC NULLS LAST, id"."""
        return replace(self._as_source(), _order=escaped(order))

    def limit(self, number: int) -> Self:
        """Keep the first rows."""
        return replace(self._as_source(), _limit=int(number))

    def to_batches(self, batch_size: int = CHUNK_ROWS) -> "pa.RecordBatchReader":
        """Read the rows as Arrow record batches of so many rows, or fewer if they are long.

        All rows are from one snapshot. A large result is in a temporary file; a batch at a time is in memory.
        A batch ends when it has 64 MiB.
        """
        if batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}; it must be at least 1.")
        with arrow_needed():
            from trinity_db.api import spool
        statement, drop = self._statement(with_id=self._hides_id), self._hides_id
        return self._told(
            lambda: spool.record_batches(
                self._database, statement, self._seconds, batch_size, arrays_of=self._arrays_of, drop=drop
            )
        )

    def to_arrow(self) -> "pa.Table":
        """Read the rows as a pyarrow.Table."""
        return self.to_batches().read_all()

    def to_pandas(self) -> "pd.DataFrame":
        """Read the rows as a pandas.DataFrame."""
        try:
            import pandas  # noqa: F401
        except ModuleNotFoundError as error:
            raise needs("pandas", "to_pandas") from error
        return self.to_arrow().to_pandas()

    def to_polars(self) -> "pl.DataFrame":
        """Read the rows as a polars.DataFrame."""
        try:
            import polars
        except ModuleNotFoundError as error:
            raise needs("polars", "to_polars") from error
        return polars.DataFrame(self)

    def to_dataset(self) -> "datasets.Dataset":
        """Read the rows as a datasets.Dataset of Hugging Face, which uses the same memory."""
        try:
            import datasets
            import datasets.table
        except ModuleNotFoundError as error:
            raise MissingExtra("hub", "datasets") from error
        return datasets.Dataset(datasets.table.InMemoryTable(self.to_arrow()))

    def to_iterable_dataset(self) -> "IterableDataset":
        """Return the rows as a torch.utils.data.IterableDataset, which continues where its state says.

        The rows are read in the order of their column `id`, and arrays are arrays of numpy. `state_dict()`
        and `load_state_dict()` are those that torchdata's StatefulDataLoader calls.

        Raises:
            ConfigError: if the rows have no such column, or have an order or a limit of their own.
        """
        try:
            import torch  # noqa: F401
        except ModuleNotFoundError as error:
            raise needs("torch", "to_iterable_dataset") from error
        with arrow_needed():
            from trinity_db.api.iterable_dataset import IterableDataset
        if self._order or self._limit is not None or is_ordered(self._source.text):
            raise ConfigError(
                "An iterable data set reads all rows in the order of their ids, after which it continues: "
                "leave out the query's own ORDER BY and LIMIT, or use to_dataset()."
            )
        kinds = {column.name: column.type for column in self._described(self._source)}
        if kinds.get("id") not in ("int2", "int4", "int8"):
            raise ConfigError(
                "An iterable data set continues after the id of a row, and these rows have no column id of "
                "whole numbers: select one AS id, or use to_dataset()."
            )
        has_id = not self._names or "id" in self._names
        return IterableDataset(self if has_id else replace(self, _names=(*self._names, "id")), has_id)

    def to_list(self) -> list[dict[str, Any]]:
        """Read the rows as dictionaries. Arrays are lists of numbers."""
        if self._arrays_of is not None:
            rows: list[dict[str, Any]] = self.to_arrow().to_pylist()
            return rows

        def consume(answer: Answer) -> list[dict[str, Any]]:
            names = [column.name for column in answer.columns]
            chunks = iter(lambda: answer.fetch(CHUNK_ROWS), [])
            return [dict(zip(names, row, strict=True)) for rows in chunks for row in rows]

        return self._told(lambda: read(self._database, self._statement(), self._seconds, consume))

    def head(self, number: int = 5) -> list[dict[str, Any]]:
        """Read the first rows as dictionaries."""
        return self.limit(number).to_list()

    def count(self) -> int:
        """Count the rows."""
        inner = self._statement()
        counted = replace(
            self, _source=Bound(f"SELECT count(*) AS rows {_from(inner)}", inner.values), _arrays_of=None
        )
        (row,) = counted._bare().to_list()
        return int(row["rows"])

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return [
            *self._told(lambda: self._columns_of(self._statement())),
            *(ARRAYS if self._arrays_of else ()),
        ]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.to_list())

    def __arrow_c_schema__(self) -> Any:
        """Return the columns without reading rows. Without this, DuckDB would read all rows three times."""
        return self.limit(0).to_batches().schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        try:
            return self.to_batches().__arrow_c_stream__(requested_schema)
        finally:
            if isinstance(threading.current_thread(), threading._DummyThread):
                self._database.close()  # DuckDB reads in a thread of its own, which would keep its session

    def __repr__(self) -> str:
        text = " ".join(self._statement().text.replace("%%", "%").split())
        return f"<trinity_db.Query: {text[:200]}{'...' if len(text) > 200 else ''}>"

    def _repr_html_(self) -> str:
        rows = self.head(SHOWN_ROWS + 1)
        names = list(rows[0]) if rows else self.columns
        header = "".join(f"<th>{html.escape(name)}</th>" for name in names)
        body = "".join(
            f"<tr>{''.join(f'<td>{_shown(value)}</td>' for value in row.values())}</tr>"
            for row in rows[:SHOWN_ROWS]
        )
        more = f"<p>The first {SHOWN_ROWS} rows.</p>" if len(rows) > SHOWN_ROWS else ""
        return f"<table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>{more}"

    def _as_source(self) -> Self:
        """Return a query to refine: after a limit, further conditions apply to the rows within it."""
        if self._limit is None:
            return self
        return replace(self._bare(), _source=self._statement(with_id=self._hides_id), _names=self._names)

    @property
    def _hides_id(self) -> bool:
        """Whether the column with the ids of the arrays is read, and not part of the result."""
        return self._arrays_of is not None and bool(self._names) and self._arrays_of not in self._names

    def _bare(self) -> Self:
        return replace(self, _conditions=(), _names=(), _order=None, _limit=None)

    def _statement(self, with_id: bool = False) -> Bound:
        """Return the SELECT. `with_id` adds the column with the ids of the arrays."""
        if not (self._conditions or self._names or self._order or self._limit is not None):
            return self._source
        names = [*self._names, *([self._arrays_of] if with_id and self._arrays_of else [])]
        text = f"SELECT {', '.join(map(identifier, names)) or '*'} {_from(self._source)}"
        values = dict(self._source.values)
        if self._conditions:
            # A condition may end with a comment, which its line ends.
            conditions = [f"({condition.text}\n)" for condition in self._conditions]
            text += f"\nWHERE {' AND '.join(conditions)}"
        for condition in self._conditions:
            values |= condition.values
        text += f"\nORDER BY {self._order}" if self._order else ""
        text += f"\nLIMIT {self._limit}" if self._limit is not None else ""
        return Bound(text, values)

    def _columns_of(self, statement: Bound) -> list[str]:
        return [column.name for column in self._described(statement)]

    def _described(self, statement: Bound) -> Sequence[Column]:
        empty = Bound(f"SELECT * {_from(statement)} LIMIT 0", statement.values)
        return read(self._database, empty, self._seconds, lambda answer: answer.columns)

    def _told(self, attempt: Callable[[], Result]) -> Result:
        """Name the columns in the error about an unknown one."""
        try:
            return attempt()
        except WrongSelect as error:
            if not isinstance(error.__cause__, UndefinedColumn):
                raise
            known = self._columns_of(self._source)
            raise WrongSelect(f"{error}; the columns are {', '.join(known)}") from error


def _from(statement: Bound) -> str:
    return f"FROM (\n{statement.text.strip().rstrip(';')}\n) AS q"


def _shown(value: Any) -> str:
    text = cell(value)
    return html.escape(text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…")
