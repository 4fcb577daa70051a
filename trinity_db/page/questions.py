"""The questions that only the page asks; schema/queries/page.sql has them."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.rows import DictRow

from trinity_db.database import Database, Transaction
from trinity_db.diagnosis import learning, work
from trinity_db.diagnosis.finding import Finding, Level
from trinity_db.errors import NotFound
from trinity_db.inspection import status
from trinity_db.page import conditions, events
from trinity_db.page.charts import METRICS, Point
from trinity_db.processors import meaning
from trinity_db.processors.meaning import Models
from trinity_db.schema.queries import query
from trinity_db.store import runs, search

POINTS = 400  # of a curve; more are not told apart
ROWS = 50  # experiences of a page
WINDOW = 10_000  # rows in which a text or a condition is looked for at a time: about 0.1 s
MEMBERS = 256  # attempts of a group that are shown
REWARD_ROWS = 2_000  # of a version, whose rewards a run shows: about 0.3 s for the newest versions together
OF_WORK = (work.dead_letters, work.silent_workers, work.setbacks)


@dataclass(frozen=True)
class Filter:
    """Which experiences are looked for; None: any."""

    run: str | None = None
    state: str | None = None
    version: int | None = None
    task: str | None = None
    reward_from: float | None = None
    reward_to: float | None = None
    reason: str | None = None
    text: str | None = None
    where: str | None = None
    """A condition in SQL on the columns of experience_view."""
    approved: str | None = None
    """The approval of the condition."""
    before: int | None = None
    """The id below which they lie, for the next page."""

    @property
    def is_search(self) -> bool:
        """Whether rows are looked at one by one."""
        return self.text is not None or self.where is not None


@dataclass(frozen=True)
class Experiences:
    """A page of experiences, newest first."""

    rows: list[DictRow]
    before: int | None
    """The id below which there may be more; None: all were looked at."""
    looked_at: int
    run_names: list[str]


def runs_and_alerts(database: Database) -> tuple[list[dict[str, Any]], list[Finding]]:
    """Every run, newest first, with its last step and what it waits for; and what needs a person."""
    found = status.overview(database)
    with database.transaction() as tx:
        steps = {row["run_id"]: row for row in tx.execute(query("page_runs"))}
        alerts = _alerts(tx)
    active = [run for run in found if run["state"] == "active"]
    waiting = {run["id"]: status.waiting(database, run["id"]) for run in active}
    rows = [
        {**run, "last": steps.get(run["id"], {}), "waiting": waiting.get(run["id"])}
        for run in reversed(found)
    ]
    return rows, alerts


def run_in_full(database: Database, name: str) -> dict[str, Any]:
    """What `trinity-db status` says of a run, with its curves, alerts and events.

    Raises:
        NotFound: there is no such run.
    """
    found = status.detail(database, name, REWARD_ROWS)
    with database.transaction() as tx:
        values = {"run_id": found["id"], "names": METRICS, "points": POINTS}
        curves: dict[str, list[Point]] = defaultdict(list)
        for row in tx.execute(query("page_curves"), values):
            curves[row["name"]].append((row["step"], row["value"]))
        alerts = [alert for alert in _alerts(tx, found["id"]) if alert.run == name]
        happened = events.newest(tx, found["id"])
    return {**found, "curves": curves, "alerts": alerts, "events": happened}


def experiences(wanted: Filter) -> Callable[[Database], Experiences]:
    """The question for a page of experiences.

    A text and a condition are looked for in the newest WINDOW rows that meet the other filters: `before` says
    where to look further, also if none of these rows is shown.
    """

    def read(database: Database) -> Experiences:
        looks = wanted.is_search
        with database.transaction(read_only=True) as tx:
            run_id = runs.find(tx, wanted.run, "run or data set").id if wanted.run else None
            values = {
                "run_id": run_id, "state": wanted.state, "version": wanted.version, "task": wanted.task,
                "reward_from": wanted.reward_from, "reward_to": wanted.reward_to, "reason": wanted.reason,
                "before": wanted.before, "window": WINDOW if looks else ROWS + 1,
            }  # fmt: skip
            # Not prepared: one plan for all filters would not fit any.
            candidates = [row["id"] for row in tx.execute(query("page_candidates"), values, prepare=False)]
            ids = candidates if wanted.where is None else conditions.meeting(tx, wanted.where, candidates)
            found = {"ids": ids, "pattern": pattern(wanted.text), "limit": ROWS + 1}
            rows = tx.execute(query("page_experiences"), found, prepare=False).fetchall()
            names = [row["name"] for row in tx.execute(query("page_run_names"))]
        before = None
        if len(rows) > ROWS:
            before = rows[ROWS - 1]["id"]
        elif looks and len(candidates) == WINDOW:
            before = candidates[-1]
        return Experiences(rows[:ROWS], before, len(candidates), names)

    return read


def similar(wanted: int | str, run: str | None, models: Models) -> Callable[[Database], list[DictRow] | None]:
    """The question for rows whose responses mean nearly what a row or words do; None without vectors."""

    def read(database: Database) -> list[DictRow] | None:
        run_id = None
        if run is not None:
            with database.transaction(read_only=True) as tx:
                run_id = runs.find(tx, run, "run or data set").id
        if isinstance(wanted, int):
            best = meaning.like(database, wanted, run_id, ROWS)
        else:
            best = meaning.by_words(database, wanted, run_id, ROWS, models)
        if best is None:
            return None
        with database.transaction(read_only=True) as tx:
            return search.with_texts(tx, best)

    return read


def group(database: Database, group_id: int) -> dict[str, Any]:
    """A rollout group with its attempts, the failed ones too.

    Raises:
        NotFound: there is no such group.
    """
    values = {"id": group_id, "limit": MEMBERS}
    with database.transaction() as tx:
        found = tx.execute(query("page_group"), values).fetchone()
        if found is None:
            raise NotFound(f"There is no group {group_id}.")
        rows = members(tx, [group_id])
        failures = tx.execute(query("page_group_failures"), values).fetchall()
    return {**found, "rows": rows, "failures": failures}


def members(tx: Transaction, group_ids: Sequence[int], version: int | None = None) -> list[DictRow]:
    """The experiences of groups, or those of one policy version, with what a group page says of each."""
    values = {"group_ids": list(group_ids), "version": version, "limit": MEMBERS}
    return tx.execute(query("page_group_rows"), values).fetchall()


def steps(database: Database, experience_id: int) -> list[DictRow]:
    """The steps of the rollout that an experience is of, itself among them."""
    with database.transaction() as tx:
        return tx.execute(query("page_steps"), {"id": experience_id, "limit": MEMBERS}).fetchall()


def sources(database: Database) -> dict[str, list[str]]:
    """The names of what a new run can learn from: tasksets, and data sets, newest first."""
    found: dict[str, list[str]] = {"taskset": [], "data": []}
    with database.transaction() as tx:
        for row in tx.execute(query("page_sources")):
            found[row["kind"]].append(row["name"])
    return found


def kept(database: Database, name: str) -> runs.Run:
    """A run with the configuration that the store keeps.

    Raises:
        NotFound: there is no such run.
    """
    with database.transaction() as tx:
        return runs.find(tx, name)


@dataclass(frozen=True)
class Catalogue:
    """What statements can be about."""

    relations: list[DictRow]
    """Tables and views, with their columns and comments."""
    newest_run: str | None


def catalogue(database: Database) -> Catalogue:
    """What the reader's login may read."""
    with database.transaction() as tx:
        relations = tx.execute(query("page_catalogue")).fetchall()
        newest = tx.execute(query("page_run_names")).fetchone()
    return Catalogue(relations, newest["name"] if newest else None)


def _alerts(tx: Transaction, run_id: int | None = None) -> list[Finding]:
    """What trinity-db doctor finds wrong with active runs; with the id of a run, of that one in any state."""
    found = [finding for check in OF_WORK for finding in check(tx)]
    found += [finding for check in learning.CHECKS for finding in check(tx, run_id)]
    return [finding for finding in found if finding.level is not Level.OK]


def pattern(text: str | None) -> str | None:
    """A pattern of LIKE for texts that contain this one."""
    if not text:
        return None
    marked = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{marked}%"


def label_of(row: Mapping[str, Any]) -> str:
    """How an attempt of a group is called."""
    step = f", step {row['step']}" if row["step"] else ""
    return f"attempt {row['ordinal']}{step}" if row["ordinal"] is not None else f"row {row['id']}"
