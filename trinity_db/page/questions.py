"""Queries that only the page runs; schema/queries/page.sql has the statements."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.rows import DictRow

from trinity_db.errors import NotFound
from trinity_db.insight import status
from trinity_db.insight.checks import learning, work
from trinity_db.insight.checks.finding import Finding, Level
from trinity_db.page import conditions, events
from trinity_db.page.charts import METRICS, Point
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.processors.jobs import semantic_search
from trinity_db.processors.jobs.semantic_search import Models
from trinity_db.schema.queries import query
from trinity_db.store import runs, search

POINTS = 400  # per curve; more cannot be distinguished
ROWS = 50  # experiences per page
WINDOW = 10_000  # rows searched for a text or a condition per query: about 0.1 s
MEMBERS = 256  # attempts shown per group
REWARD_ROWS = 2_000  # rows per version in a run's rewards: about 0.3 s for all shown versions
OF_WORK = (work.dead_letters, work.silent_workers, work.setbacks)


@dataclass(frozen=True)
class Filter:
    """Filter of experiences; None: any."""

    run: str | None = None
    state: str | None = None
    version: int | None = None
    task: str | None = None
    reward_from: float | None = None
    reward_to: float | None = None
    reason: str | None = None
    text: str | None = None
    where: str | None = None
    """SQL condition on the columns of experience_view."""
    approved: str | None = None
    """Approval of the condition."""
    before: int | None = None
    """Only experiences with smaller ids, for the next page."""

    @property
    def is_search(self) -> bool:
        """Whether the filter has to read rows one by one."""
        return self.text is not None or self.where is not None


@dataclass(frozen=True)
class Experiences:
    """One page of experiences, newest first."""

    rows: list[DictRow]
    before: int | None
    """Id below which there may be more; None: all rows were searched."""
    looked_at: int
    run_names: list[str]


def runs_and_alerts(database: Database) -> tuple[list[dict[str, Any]], list[Finding]]:
    """Return every run, newest first, with its last step and what it waits for; and the alerts."""
    overview = status.overview(database)
    with database.transaction() as tx:
        steps = {row["run_id"]: row for row in tx.execute(query("page_runs"))}
        alerts = _alerts(tx)
    active = [run for run in overview if run["state"] == "active"]
    waiting = {run["id"]: status.waiting(database, run["id"]) for run in active}
    rows = [
        {**run, "last": steps.get(run["id"], {}), "waiting": waiting.get(run["id"])}
        for run in reversed(overview)
    ]
    return rows, alerts


def run_in_full(database: Database, name: str) -> dict[str, Any]:
    """Return the data of `trinity-db status` for a run, with its curves, alerts and events.

    Raises:
        NotFound: if the run does not exist.
    """
    detail = status.detail(database, name, REWARD_ROWS)
    with database.transaction() as tx:
        values = {"run_id": detail["id"], "names": METRICS, "points": POINTS}
        curves: dict[str, list[Point]] = defaultdict(list)
        for row in tx.execute(query("page_curves"), values):
            curves[row["name"]].append((row["step"], row["value"]))
        alerts = [alert for alert in _alerts(tx, detail["id"]) if alert.run == name]
        happened = events.newest(tx, detail["id"])
    return {**detail, "curves": curves, "alerts": alerts, "events": happened}


def experiences(filters: Filter) -> Callable[[Database], Experiences]:
    """Return the query for a page of experiences.

    Texts and conditions are searched for in the newest WINDOW rows that pass the other filters; `before`
    is where to continue, even if none of these rows matches.
    """

    def read(database: Database) -> Experiences:
        looks = filters.is_search
        with database.transaction(read_only=True) as tx:
            run_id = runs.find(tx, filters.run, "run or data set").id if filters.run else None
            values = {
                "run_id": run_id, "state": filters.state, "version": filters.version, "task": filters.task,
                "reward_from": filters.reward_from, "reward_to": filters.reward_to, "reason": filters.reason,
                "before": filters.before, "window": WINDOW if looks else ROWS + 1,
            }  # fmt: skip
            # Not prepared: no single plan would suit all filters.
            candidates = [row["id"] for row in tx.execute(query("page_candidates"), values, prepare=False)]
            ids = candidates if filters.where is None else conditions.meeting(tx, filters.where, candidates)
            searched = {"ids": ids, "pattern": pattern(filters.text), "limit": ROWS + 1}
            rows = tx.execute(query("page_experiences"), searched, prepare=False).fetchall()
            names = [row["name"] for row in tx.execute(query("page_run_names"))]
        before = None
        if len(rows) > ROWS:
            before = rows[ROWS - 1]["id"]
        elif looks and len(candidates) == WINDOW:
            before = candidates[-1]
        return Experiences(rows[:ROWS], before, len(candidates), names)

    return read


def similar(sought: int | str, run: str | None, models: Models) -> Callable[[Database], list[DictRow] | None]:
    """Return the query for rows whose responses are similar to a row or to words; None without vectors."""

    def read(database: Database) -> list[DictRow] | None:
        run_id = None
        if run is not None:
            with database.transaction(read_only=True) as tx:
                run_id = runs.find(tx, run, "run or data set").id
        if isinstance(sought, int):
            best = semantic_search.like(database, sought, run_id, ROWS)
        else:
            best = semantic_search.by_words(database, sought, run_id, ROWS, models)
        if best is None:
            return None
        with database.transaction(read_only=True) as tx:
            return search.with_texts(tx, best)

    return read


def group(database: Database, group_id: int) -> dict[str, Any]:
    """Return a rollout group with its attempts, including failed ones.

    Raises:
        NotFound: if the group does not exist.
    """
    values = {"id": group_id, "limit": MEMBERS}
    with database.transaction() as tx:
        row = tx.execute(query("page_group"), values).fetchone()
        if row is None:
            raise NotFound(f"There is no group {group_id}.")
        rows = members(tx, [group_id])
        failures = tx.execute(query("page_group_failures"), values).fetchall()
    return {**row, "rows": rows, "failures": failures}


def members(tx: Transaction, group_ids: Sequence[int], version: int | None = None) -> list[DictRow]:
    """Return the experiences of groups with the group page's columns, optionally of one policy version."""
    values = {"group_ids": list(group_ids), "version": version, "limit": MEMBERS}
    return tx.execute(query("page_group_rows"), values).fetchall()


def steps(database: Database, experience_id: int) -> list[DictRow]:
    """Return all steps of an experience's rollout, including this one."""
    with database.transaction() as tx:
        return tx.execute(query("page_steps"), {"id": experience_id, "limit": MEMBERS}).fetchall()


def sources(database: Database) -> dict[str, list[str]]:
    """Return the names of a new run's possible sources: tasksets, and data sets, newest first."""
    names: dict[str, list[str]] = {"taskset": [], "data": []}
    with database.transaction() as tx:
        for row in tx.execute(query("page_sources")):
            names[row["kind"]].append(row["name"])
    return names


def kept(database: Database, name: str) -> runs.Run:
    """Return a run with its stored configuration.

    Raises:
        NotFound: if the run does not exist.
    """
    with database.transaction() as tx:
        return runs.find(tx, name)


@dataclass(frozen=True)
class Catalogue:
    """Tables and views that statements can use."""

    relations: list[DictRow]
    """Tables and views, with their columns and comments."""
    newest_run: str | None


def catalogue(database: Database) -> Catalogue:
    """Return what the reader's login may read."""
    with database.transaction() as tx:
        relations = tx.execute(query("page_catalogue")).fetchall()
        newest = tx.execute(query("page_run_names")).fetchone()
    return Catalogue(relations, newest["name"] if newest else None)


def _alerts(tx: Transaction, run_id: int | None = None) -> list[Finding]:
    """Problems that trinity-db doctor finds in active runs; with an id, in that run whatever its state."""
    findings = [finding for check in OF_WORK for finding in check(tx)]
    findings += [finding for check in learning.CHECKS for finding in check(tx, run_id)]
    return [finding for finding in findings if finding.level is not Level.OK]


def pattern(text: str | None) -> str | None:
    """Escape a text into a LIKE pattern that matches texts which contain it."""
    if not text:
        return None
    marked = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{marked}%"


def label_of(row: Mapping[str, Any]) -> str:
    """Label of an attempt within a group."""
    step = f", step {row['step']}" if row["step"] else ""
    return f"attempt {row['ordinal']}{step}" if row["ordinal"] is not None else f"row {row['id']}"
