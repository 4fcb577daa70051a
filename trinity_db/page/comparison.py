"""What is asked of runs that are compared; schema/queries/comparison.sql has the statements."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any

from psycopg.rows import DictRow

from trinity_db.database import Database, Transaction
from trinity_db.errors import ConfigError, NotFound
from trinity_db.page.charts import Point
from trinity_db.page.settings import changed, flat
from trinity_db.schema.queries import query
from trinity_db.schema.states import RunKind

MAX_RUNS = 6  # curves in one chart that people tell apart, also without colour
MAX_METRICS = 12  # charts of one page
POINTS = 400  # of a curve; more are not told apart
NAMES = 300  # metrics of one run to choose from
SETTINGS = 50  # of one run, the newest
USUAL = ("reward", "loss", "completions/mean_length", "entropy", "rewards/accuracies", "mean_token_accuracy")
"""What is drawn if no metric was chosen: those of these that the runs have."""
TOKENS = "num_tokens"
OVER = {
    "step": "trainer step",
    "version": "policy version",
    "time": "time since the run was made",
    "tokens": "tokens that were trained on",
}
"""What curves may be drawn over."""


@dataclass(frozen=True)
class Wanted:
    """What a link asks to be compared."""

    runs: tuple[str, ...]
    metrics: tuple[str, ...] = ()
    over: str = "step"


@dataclass(frozen=True)
class Change:
    """A setting that a run had before."""

    before: Any
    changed_at: datetime
    since_step: int | None
    """The first step that was drawn under the next one; None before there is one."""


@dataclass(frozen=True)
class Compared:
    """One of the runs."""

    row: DictRow
    curves: Mapping[str, Sequence[Point]]
    last: Mapping[str, float]
    settings: Mapping[str, Any]
    """Its settings now, by dotted keys."""
    changes: Mapping[str, Sequence[Change]] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """The runs in the order of the link, and what can be drawn of them."""

    runs: list[Compared]
    metrics: list[str]
    """Those that are drawn."""
    names: list[str]
    """Those that can be chosen."""


def comparison(wanted: Wanted) -> Callable[[Database], Comparison]:
    """The question for a page of runs side by side."""

    def read(database: Database) -> Comparison:
        with database.transaction(read_only=True) as tx:
            found = _find(tx, wanted.runs)
            values = {"run_ids": [row["id"] for row in found], "names": NAMES}
            names = [row["name"] for row in tx.execute(query("comparison_metrics"), values)]
            metrics = list(wanted.metrics) or [name for name in USUAL if name in names] or names[:1]
            compared = [_compared(tx, row, metrics, wanted.over) for row in found]
        return Comparison(compared, metrics, names)

    return read


def _find(tx: Transaction, names: Sequence[str]) -> list[DictRow]:
    rows = {row["name"]: row for row in tx.execute(query("comparison_runs"), {"names": list(names)})}
    for name in names:
        if name not in rows:
            raise NotFound(f"There is no run '{name}'.")
        if rows[name]["kind"] != RunKind.TRAIN:
            raise ConfigError(f"'{name}' is a data set, and has no curves: choose runs.")
    return [rows[name] for name in names]


def _compared(tx: Transaction, row: DictRow, metrics: Sequence[str], over: str) -> Compared:
    values = {"run_id": row["id"], "names": list(metrics), "points": POINTS, "over": over}
    curves: dict[str, list[Point]] = defaultdict(list)
    for one in tx.execute(query("comparison_curves"), values):
        curves[one["name"]].append((one["place"], one["value"]))
    asked = {"run_id": row["id"], "names": [*metrics, TOKENS]}
    last = {one["name"]: one["value"] for one in tx.execute(query("comparison_last"), asked)}
    asked = {"run_id": row["id"], "limit": SETTINGS}
    settings = tx.execute(query("comparison_settings"), asked).fetchall()
    return Compared(row, curves, last, flat(row["config"]), _changes(settings))


def _changes(settings: Sequence[DictRow]) -> dict[str, list[Change]]:
    """What was changed, by key, oldest first."""
    found: dict[str, list[Change]] = defaultdict(list)
    for old, new in pairwise(settings):
        for key, (before, _) in changed(old["config"], new["config"]).items():
            found[key].append(Change(before, new["created_at"], new["since_step"]))
    return found
