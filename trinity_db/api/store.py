"""The store as a program sees it: `trinity_db.connect`."""

import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, get_args

from trinity_db.api import rewards, run
from trinity_db.api.conditions import Values, bind
from trinity_db.api.explorer import Explorer, open_explorer
from trinity_db.api.importing import import_of
from trinity_db.api.query import Query
from trinity_db.api.reading import arrow_needed
from trinity_db.api.run import Run
from trinity_db.api.trainer import Trainer, open_trainer
from trinity_db.config.base import hint
from trinity_db.data.exporter import export_rows
from trinity_db.data.records.records import Kind
from trinity_db.data.rejects import Summary
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.postgres import address
from trinity_db.postgres.connection import Database
from trinity_db.postgres.opening import open_database, open_reader
from trinity_db.schema import queries
from trinity_db.store.rewards import Change

Names = Mapping[str, str] | None
"""Our name → the rows' column."""
Result = TypeVar("Result")


def connect(url: str | None = None, *, read_only: bool = True, timeout: float = 10.0) -> "Store":
    """Open the store.

    Args:
        url: address of a PostgreSQL server. None: TRINITY_DB_URL, or the embedded server of TRINITY_DB_HOME,
            which is started if necessary.
        read_only: refuse every method that writes.
        timeout: seconds that a method waits for a server that does not answer.

    Queries are read-only transactions. With `url` they use its login; without it the login of
    TRINITY_DB_READ_URL, the embedded server's login that may only read, or the login of TRINITY_DB_URL.

    Raises:
        DatabaseUnavailable: if no server answers.
        SchemaMismatch: if the store has another version; the message names the command that fixes it.
    """
    return Store(url, open_reader(url=url), read_only, timeout)


class Store:
    """An open store, which closes at the end of a `with` block. Threads and forked processes may use it."""

    def __init__(self, url: str | None, reader: Database, read_only: bool, timeout: float) -> None:
        self._url = url
        self._reader = reader
        self._is_read_only = read_only
        self._timeout = timeout

    def run(self, name: str) -> Run:
        """Return a run or data set.

        Raises:
            NotFound: with the most similar name.
        """
        return self._retried(lambda: run.find(self._reader, name, self._timeout))

    def runs(self) -> Query:
        """Return the rows of run_view: runs and data sets with their status."""
        return self.sql("SELECT * FROM trinity.run_view")

    def tasksets(self) -> Query:
        """Return the imported tasksets, with the number of their tasks."""
        return self.sql(queries.query("all_tasksets"))

    def sql(self, query: str, params: Values = ()) -> Query:
        """Return a SELECT of your own as a query. Tables and views are found without their schema.

        Params replace the placeholders: %s with a sequence, %(name)s with a mapping. With params, write %%
        for a percent sign.
        """
        return Query(self._reader, self._timeout, bind(query, params))

    def import_tasks(
        self, rows: Any, *, name: str, mapping: Names = None, format: str | None = None
    ) -> Summary:
        """Import tasks into a taskset, and return how many were added, known and rejected.

        Importing a row again adds nothing. Rejected rows are in `summary.rejects_path`, with the reasons.

        Args:
            rows: dictionaries; a table of pandas, polars or Arrow; or the path of a file. The columns are
                those of `trinity-db import`.
            name: taskset or data set. It is created if necessary.
            mapping: our name → the rows' column: {"prompt": "question"}.
            format: trl, verl, trinity-rft, atropos or verifiers; None: detected from the first row.
        """
        return import_of(self._writer, rows, "tasks", name, mapping, format)

    def import_preferences(
        self, rows: Any, *, name: str, mapping: Names = None, format: str | None = None
    ) -> Summary:
        """Import pairs, chosen and rejected, or labelled responses, like `import_tasks`."""
        return import_of(self._writer, rows, "preferences", name, mapping, format)

    def import_demonstrations(
        self, rows: Any, *, name: str, mapping: Names = None, format: str | None = None
    ) -> Summary:
        """Import responses to imitate, like `import_tasks`."""
        return import_of(self._writer, rows, "demonstrations", name, mapping, format)

    def import_trajectories(
        self, rows: Any, *, name: str, mapping: Names = None, format: str | None = None
    ) -> Summary:
        """Import responses with rewards, like `import_tasks`."""
        return import_of(self._writer, rows, "trajectories", name, mapping, format)

    def export(self, name: str, kind: Kind, path: str | Path, *, format: str | None = None) -> int:
        """Write the rows of a taskset, data set or run to a file, and return their number.

        Args:
            kind: tasks, preferences, demonstrations, trajectories or traces.
            path: .jsonl, .jsonl.gz, .csv, .parquet or .arrow.
            format: of traces: openenv or verifiers. None: openenv.
        """
        if kind not in get_args(Kind):
            raise ConfigError(f"There is no kind of rows '{kind}'; {hint(kind, get_args(Kind))}")
        with arrow_needed():
            return self._retried(
                lambda: export_rows(self._reader, kind, name, Path(path), lambda rows: None, format)
            )

    def reward(
        self,
        experience: int,
        value: float,
        *,
        name: str = "human",
        source: str = "human",
        by: str | None = None,
        weight: float = 1.0,
    ) -> Change:
        """Give an experience a reward, and return what changed; see `trinity-db reward`.

        The experience's reward is the sum of all names' latest values times weights, so a value that is only
        information has weight 0.
        """
        row = {"experience": experience, "value": value, "name": name, "source": source, "by": by}
        return self.reward_rows([row | {"weight": weight}])[0]

    def reward_rows(self, rows: Iterable[Mapping[str, Any]]) -> list[Change]:
        """Give rewards in one transaction: all, or none if one is wrong.

        Each row has the arguments of `reward`, such as {"experience": 12, "value": 0.5}.
        """
        defaults = {"name": "human", "source": "human", "by": None, "weight": 1.0}
        return rewards.record(self._writer, [rewards.judgement({**defaults, **row}) for row in rows])

    def trainer(
        self,
        run: str,
        *,
        checkpoints: str | Path | None = None,
        from_start: bool = False,
        from_version: int | None = None,
    ) -> Trainer:
        """Train a run with `algorithm: external` in a loop of your own, in a `with` block.

        The run continues from its latest whole checkpoint. Batches that it does not include are given back.

        Args:
            checkpoints: folder of versions and checkpoints, in which each run has a folder. None:
                `checkpoints` in TRINITY_DB_HOME.
            from_start: if all checkpoints of the run are damaged, train again from the starting model.
            from_version: continue from the checkpoint of a version that the server has lost.

        Entering the block raises:
            ConfigError: if the run has a live trainer, or another algorithm.
            NotFound: with the most similar name.
        """
        self._check_writes()
        return Trainer(partial(open_trainer, self._url, run, checkpoints, from_start, from_version))

    def explorer(self, run: str, *, checkpoints: str | Path | None = None) -> Explorer:
        """Explore a run with `explorer.workflow: external` by sampling of your own, in a `with` block.

        Args:
            checkpoints: folder of versions that may be read, in addition to TRINITY_DB_HOME, and to folders
                that a trainer has marked as its own.

        Entering the block raises:
            ConfigError: if the run has another workflow.
            NotFound: with the most similar name.
        """
        self._check_writes()
        return Explorer(partial(open_explorer, self._url, run, checkpoints))

    def close(self) -> None:
        """Close the connections of this thread."""
        self._reader.close()
        if "_writer" in vars(self):
            self._writer.close()

    def _retried(self, read: Callable[[], Result]) -> Result:
        """Read again while no database answers, such as after a restart of the server."""
        deadline = time.monotonic() + self._timeout
        return self._reader.retry(read, give_up=lambda: time.monotonic() > deadline)

    @cached_property
    def _writer(self) -> Database:
        self._check_writes()
        return open_database(url=self._url)  # one for all threads; each has its own connection

    def _check_writes(self) -> None:
        if self._is_read_only:
            raise TrinityError("This store is open for reading: use trinity_db.connect(read_only=False).")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<trinity_db.Store: {address.shown(self._reader.url)}>"
