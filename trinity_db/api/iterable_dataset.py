"""Rows of a query for a loop that may stop anywhere and continue: a data set of PyTorch.

Rows are read in the order of their ids, in pages. Each page begins after the last id of the one before, so
continuing costs one page however many rows were read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, Self

import pyarrow as pa
import torch.utils.data

from trinity_db.api.reading import ARRAYS
from trinity_db.errors import ConfigError

PAGE_ROWS = 1_024  # a page is in a temporary file

_REMEDY = "select a unique whole number AS id, after which reading continues, or use to_dataset()."


class Selection(Protocol):
    """What this module uses of `Query`, which imports it."""

    def where(self, condition: str, *values: Any) -> Self: ...
    def select(self, *names: str) -> Self: ...
    def order_by(self, order: str) -> Self: ...
    def limit(self, number: int) -> Self: ...
    def head(self, number: int) -> list[dict[str, Any]]: ...
    def to_batches(self) -> pa.RecordBatchReader: ...


@dataclass(frozen=True)
class _State:
    """What was read of a pass over the rows, by one of the parallel workers."""

    after: int | None = None
    """Id of the last row that was returned. None: none."""
    until: int | None = None
    """Largest id at the start of the pass, which ends there. None: the pass has not started."""
    worker: int = 0
    workers: int = 1


class IterableDataset(torch.utils.data.IterableDataset[dict[str, Any]]):
    """The rows of a query, in the order of their ids. Each iteration is a pass over the rows.

    `state_dict()` after some rows is where the pass is. After `load_state_dict` the next iteration continues
    there. Each worker of a `DataLoader` reads its own part of the rows.
    """

    def __init__(self, query: Selection, has_id: bool) -> None:
        """`has_id`: whether a row contains its id, or the query has it for the order only."""
        self._query = query
        self._has_id = has_id
        self._state = _State()
        self._is_loaded = False

    def state_dict(self) -> dict[str, Any]:
        """Return where the newest iteration is. It fits into JSON."""
        return asdict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue there in the next iteration."""
        try:
            self._state = _State(**state)
        except TypeError:
            raise ConfigError("This is no state of these rows: load what state_dict() returned.") from None
        self._is_loaded = True

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = torch.utils.data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        if not self._is_loaded:
            self._state = _State(worker=worker, workers=workers)
        elif (self._state.worker, self._state.workers) != (worker, workers):
            raise ConfigError(
                f"The state is that of worker {self._state.worker} of {self._state.workers}, and this is "
                f"worker {worker} of {workers}: continue with as many workers as before."
            )
        self._is_loaded = False
        return self._rows(self._state)

    def _rows(self, state: _State) -> Iterator[dict[str, Any]]:
        if state.until is None:
            self._state = state = replace(state, until=self._last_id())
        number = 0 if state.until is None else PAGE_ROWS
        while number == PAGE_ROWS:
            number, last = 0, state.after
            for number, row in enumerate(_rows_of(self._page(state)), 1):
                if number == 1 and row["id"] == last:
                    continue
                if state.after is not None and row["id"] <= state.after:
                    raise ConfigError(f"Two rows have the id {row['id']}: {_REMEDY}")
                self._state = state = replace(state, after=row["id"])
                yield row if self._has_id else {name: row[name] for name in row if name != "id"}
        self._state = replace(state, after=state.until)

    def _page(self, state: _State) -> Selection:
        """Return the next rows. The first is the last one of the page before: a second one shows with it."""
        page = self._query.where("id <= %s", state.until)
        if state.after is not None:
            page = page.where("id >= %s", state.after)
        if state.workers > 1:
            # By a hash: of ids themselves, one worker might get the first row of each group, and no other.
            page = page.where("mod(abs(hashint8(id)::bigint), %s) = %s", state.workers, state.worker)
        return page.order_by("id").limit(PAGE_ROWS)

    def _last_id(self) -> int | None:
        """Return the largest id; None without rows."""
        ids = self._query.select("id")
        if ids.where("id IS NULL").head(1):
            raise ConfigError(f"A row has no id: {_REMEDY}")
        newest = ids.order_by("id DESC").head(1)
        return newest[0]["id"] if newest else None


def _rows_of(query: Selection) -> Iterator[dict[str, Any]]:
    """Return rows as dictionaries, with arrays of tokens as arrays of numpy."""
    for batch in query.to_batches():
        columns = [
            _arrays(column) if name in ARRAYS and pa.types.is_list(column.type) else column.to_pylist()
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        for values in zip(*columns, strict=True):
            yield dict(zip(batch.schema.names, values, strict=True))


def _arrays(column: pa.ListArray) -> Iterator[Any]:
    for value in column:
        # Writable: torch warns about other arrays.
        yield value.values.to_numpy(zero_copy_only=False, writable=True) if value.is_valid else None
