"""What a person sees while a run goes on: a bar on a terminal, a line now and then elsewhere."""

import logging
import math
import time
from types import TracebackType
from typing import Any, Self

from psycopg.rows import DictRow
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from trinity_db.configuration import RunConfig
from trinity_db.database import Database
from trinity_db.errors import DatabaseUnavailable
from trinity_db.schema.queries import query
from trinity_db.store import runs

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # between looks into the store
LINE_SECONDS = 10.0  # between lines where there is no terminal


class Progress:
    """Progress of a run as the store tells it."""

    def __init__(self, database: Database, run: runs.Run, config: RunConfig) -> None:
        self._database = database
        self._run = run
        self._total = config.trainer.steps if config.is_online else None
        console = Console(stderr=True)
        self._is_terminal = console.is_terminal
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[state]}"),
            console=console,
            disable=not self._is_terminal,
        )
        self._task = self._bar.add_task(run.name, total=self._total, state="starting")
        self._pause = LOOK_SECONDS if self._is_terminal else LINE_SECONDS
        self._looked_at = -math.inf

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(self, now: bool = False) -> None:
        """Look into the store and show what is there. Without `now`, only after a pause since the last look.

        A store that is away is not waited for.
        """
        if not now and time.monotonic() - self._looked_at < self._pause:
            return
        self._looked_at = time.monotonic()
        try:
            with self._database.transaction() as tx:
                row = tx.execute(query("run_progress"), {"run_id": self._run.id}).fetchone()
        except DatabaseUnavailable:
            return
        assert row is not None
        state = _describe(row)
        self._bar.update(self._task, completed=row["step"], state=state)
        if not self._is_terminal:
            total = f" of {self._total}" if self._total else ""
            logger.info("%s: step %d%s, %s", self._run.name, row["step"], total, state)


def _describe(row: DictRow) -> str:
    parts: list[Any] = [f"version {row['version']}" if row["version"] is not None else "no version yet"]
    if row["groups"]:
        parts.append(f"{row['groups']} groups")
    if row["dropped"]:
        parts.append(f"{row['dropped']} dropped")
    if row["reward"] is not None:
        parts.append(f"reward {row['reward']:.3f}")
    if row["staleness"] is not None:
        parts.append(f"staleness {row['staleness']}")
    return ", ".join(parts)
