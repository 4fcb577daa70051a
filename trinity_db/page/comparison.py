"""Queries for runs that are compared; schema/queries/comparison.sql has the statements."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any

from psycopg.rows import DictRow

from trinity_db.errors import ConfigError, NotFound
from trinity_db.page.charts import Point
from trinity_db.page.settings import changed, flat
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.schema.queries import query
from trinity_db.schema.states import RunKind

MAX_RUNS = 6  # curves that people can tell apart in one chart, even without colour
MAX_METRICS = 12  # charts per page
POINTS = 400  # per curve; more cannot be distinguished
NAMES = 300  # metrics per run to choose from
SETTINGS = 50  # newest settings per run
USUAL = ("reward", "loss", "completions/mean_length", "entropy", "rewards/accuracies", "mean_token_accuracy")
"""Metrics that are drawn if none is selected and the runs have them."""
TOKENS = "num_tokens"
OVER = {
    "step": "trainer step",
    "version": "policy version",
    "time": "time since the run was created",
    "tokens": "trained tokens",
}
"""Axes that curves can be drawn over."""


@dataclass(frozen=True)
class Selection:
    """Runs, metrics and axis that a link selects."""

    runs: tuple[str, ...]
    metrics: tuple[str, ...] = ()
    over: str = "step"


@dataclass(frozen=True)
class Change:
    """An earlier value of a setting."""

    before: Any
    changed_at: datetime
    since_step: int | None
    """First step that used the next value; None until there is one."""


@dataclass(frozen=True)
class Compared:
    """One of the compared runs."""

    row: DictRow
    curves: Mapping[str, Sequence[Point]]
    last: Mapping[str, float]
    settings: Mapping[str, Any]
    """Current settings, by dotted keys."""
    changes: Mapping[str, Sequence[Change]] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """The runs in the order of the link, and the metrics that can be drawn."""

    runs: list[Compared]
    metrics: list[str]
    """Metrics that are drawn."""
    names: list[str]
    """Metrics that can be selected."""


def comparison_query(selection: Selection) -> Callable[[Database], Comparison]:
    """Return the query for a page of runs side by side."""

    def read(database: Database) -> Comparison:
        with database.transaction(read_only=True) as tx:
            run_rows = _find(tx, selection.runs)
            values = {"run_ids": [row["id"] for row in run_rows], "names": NAMES}
            names = [row["name"] for row in tx.execute(query("comparison_metrics"), values)]
            metrics = list(selection.metrics) or [name for name in USUAL if name in names] or names[:1]
            compared = [_compared(tx, row, metrics, selection.over) for row in run_rows]
        return Comparison(compared, metrics, names)

    return read


def _find(tx: Transaction, names: Sequence[str]) -> list[DictRow]:
    rows = {row["name"]: row for row in tx.execute(query("comparison_runs"), {"names": list(names)})}
    for name in names:
        if name not in rows:
            raise NotFound(f"There is no run '{name}'.")
        if rows[name]["kind"] != RunKind.TRAIN:
            raise ConfigError(f"'{name}' is a data set, which has no curves: select runs.")
    return [rows[name] for name in names]


def _compared(tx: Transaction, row: DictRow, metrics: Sequence[str], over: str) -> Compared:
    values = {"run_id": row["id"], "names": list(metrics), "points": POINTS, "over": over}
    curves: dict[str, list[Point]] = defaultdict(list)
    for point in tx.execute(query("comparison_curves"), values):
        curves[point["name"]].append((point["place"], point["value"]))
    with_tokens = {"run_id": row["id"], "names": [*metrics, TOKENS]}
    last = {point["name"]: point["value"] for point in tx.execute(query("comparison_last"), with_tokens)}
    newest = {"run_id": row["id"], "limit": SETTINGS}
    settings = tx.execute(query("comparison_settings"), newest).fetchall()
    return Compared(row, curves, last, flat(row["config"]), _changes(settings))


def _changes(settings: Sequence[DictRow]) -> dict[str, list[Change]]:
    """Changes of settings, by key, oldest first."""
    changes: dict[str, list[Change]] = defaultdict(list)
    for old, new in pairwise(settings):
        for key, (before, _) in changed(old["config"], new["config"]).items():
            changes[key].append(Change(before, new["created_at"], new["since_step"]))
    return changes
