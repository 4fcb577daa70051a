"""Progress of a run for people: a bar on a terminal, a line per step elsewhere, and finally the outcome."""

import logging
import math
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from trinity_db.cli.output import shorten
from trinity_db.errors import DatabaseUnavailable
from trinity_db.insight import status
from trinity_db.insight.checks import learning
from trinity_db.insight.checks.finding import Level, span
from trinity_db.insight.words import printable, with_limits
from trinity_db.postgres.connection import Database
from trinity_db.run.configuration import RunConfig
from trinity_db.schema.queries import query
from trinity_db.store import evaluations, policies, runs

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # between two reads of the store
LINE_SECONDS = 10.0  # minimum between two lines
SILENT_SECONDS = 60.0  # after which a line is printed without a new step
SAMPLE_LINES = 10  # between two samples
SAMPLE_WIDTH = 100  # characters of a question or a response


class Progress:
    """The progress of a run, as the store records it, on stderr.

    Args:
        quiet: print nothing.
    """

    def __init__(self, database: Database, run: runs.Run, config: RunConfig, quiet: bool = False) -> None:
        self._database = database
        self._run = run
        self._total = config.trainer.steps if config.is_online else None
        self._group_size = config.explorer.group_size
        console = Console(stderr=True)
        self._is_quiet = quiet
        self._has_bar = console.is_terminal and not quiet
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[state]}"),
            console=console,
            disable=not self._has_bar,
        )
        self._task = self._bar.add_task(run.name, total=self._total, state="starting")
        self._looked_at = self._printed_at = -math.inf
        self._printed_step = -1
        self._lines = 0
        self._has_warned = False

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(self, now: bool = False) -> None:
        """Read the store and show the progress; without `now`, only after a pause.

        Does not wait for an unreachable store.
        """
        pause = LOOK_SECONDS if self._has_bar else LINE_SECONDS
        if self._is_quiet or (not now and time.monotonic() - self._looked_at < pause):
            return
        self._looked_at = time.monotonic()
        try:
            self._show(now)
        except DatabaseUnavailable:
            return

    def _show(self, now: bool) -> None:
        with self._database.transaction(read_only=True) as tx:
            row = tx.execute(query("run_progress"), {"run_id": self._run.id}).fetchone()
        assert row is not None
        is_due = now or row["step"] != self._printed_step or self._silent_seconds >= SILENT_SECONDS
        if self._has_bar:
            self._bar.update(
                self._task, completed=row["step"], state=describe(row, self._total, self._group_size)
            )
            is_due = is_due and self._silent_seconds >= LINE_SECONDS
        if not is_due:
            return
        self._printed_at, self._printed_step = time.monotonic(), row["step"]
        if not self._has_bar:
            self._print_line(row)
        if self._lines % SAMPLE_LINES == 0 and row["step"]:
            self._print_sample()
        self._lines += 1
        if not self._has_warned:
            self._warn_of_failures()

    @property
    def _silent_seconds(self) -> float:
        return time.monotonic() - self._printed_at

    def _print_line(self, row: Mapping[str, Any]) -> None:
        parts = [describe(row, self._total, self._group_size)]
        with self._database.transaction(read_only=True) as tx:
            waits, _ = status.balance(status.measured(tx, self._run.id)["waiting"])
        if waits:
            parts.append(f"waits: {waits}")
        total = f" of {self._total}" if self._total else ""
        logger.info("%s: step %d%s, %s", self._run.name, row["step"], total, ", ".join(parts))

    def _print_sample(self) -> None:
        with self._database.transaction(read_only=True) as tx:
            row = tx.execute(query("run_sample"), {"run_id": self._run.id}).fetchone()
        if row is not None:
            reward = "" if row["reward"] is None else f" (reward {row['reward']:.3g})"
            question, response = (shortened(row[name]) for name in ("question", "response"))
            logger.info("%s: sample: %s → %s%s", self._run.name, question, response, reward)

    def _warn_of_failures(self) -> None:
        """Warn once if many attempts end with an error, which otherwise only the explorers' logs show."""
        with self._database.transaction(read_only=True) as tx:
            [finding] = learning.attempts(tx, self._run.id)
        if finding.level is Level.WARN:
            logger.warning("%s", printable(str(finding)))
            self._has_warned = True


def describe(row: Mapping[str, Any], total: int | None, group_size: int) -> str:
    """Format the state of a run in one line, from a row of `run_progress`."""
    parts = []
    if total and row["seconds_between"] and row["step"] < total:
        remaining = (total - row["step"]) * row["seconds_between"] / row["steps_between"]
        parts.append(f"{span(remaining)} left")
    parts.append(f"version {row['version']}" if row["version"] is not None else "no version yet")
    if row["reward"] is not None:
        change = (
            f" ({row['reward_change']:+.3f} in {row['steps_between']})"
            if row["reward_change"] is not None
            else ""
        )
        parts.append(f"reward {row['reward']:.3f}{change}")
    if row["length"] is not None:
        parts.append(f"length {row['length']:.0f}")
    if row["groups"]:
        parts.append(f"{row['groups']} groups")
        if row["dropped"]:
            parts.append(f"{row['dropped'] / (row['groups'] * group_size):.0%} dropped")
    if row["staleness"] is not None:
        parts.append(f"staleness {row['staleness']}")
    return ", ".join(parts)


def outcome(database: Database, run: runs.Run) -> Iterator[str]:
    """Yield lines about a finished run: its evaluations, its newest weights, and how to inspect it."""
    with database.transaction(read_only=True) as tx:
        pairs = tx.execute(query("run_evaluations"), {"run_id": run.id}).fetchall()
        for pair in pairs:
            rows = {row["id"]: row for row in evaluations.read(tx, [*pair.values()])}
            first, last = rows[pair["first_id"]], rows[pair["last_id"]]
            yield f"evaluation on {first['taskset']}: mean@{first['samples']} {_figure(first)}" + (
                f" → {_figure(last)}" if last is not first else ""
            )
        newest = policies.newest(tx, run.id)
    if newest is not None:
        yield f"model: version {newest.version} in {newest.checkpoint}"
    yield f"inspect it: trinity-db page, or trinity-db status {run.name}"


def _figure(evaluation: Mapping[str, Any]) -> str:
    return f"{with_limits(evaluation, 'mean')} (version {evaluation['version']})"


def shortened(text: str) -> str:
    """Shorten a text to one line, keeping its end too, because an answer is often there."""
    return shorten(printable(" ".join(text.split())), SAMPLE_WIDTH) or "(empty)"
