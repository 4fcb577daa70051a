"""Queries about how often tasks are solved, for the pages about tasks and evaluations.

A solved task is defined once: in `task_stat` for training, in `evaluation_task_view` for evaluations.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.rows import DictRow

from trinity_db.errors import NotFound
from trinity_db.page import questions
from trinity_db.page.charts import Point
from trinity_db.page.questions import ROWS
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.schema.queries import query
from trinity_db.store import evaluations, runs

WINDOW = 5_000  # tasks whose prompts are searched per query: 0.3 s
GROUPS = 50  # newest groups per task that its mean reward covers: 0.1 s for a page
VERSIONS = 200  # newest versions per task whose figures are shown
GROUPS_OF_VERSION = 8  # newest groups per task and version that the figures cover
SIDE = 4  # groups per version in a side-by-side comparison
EVALUATIONS = 10  # evaluations per page
MEASURED = 4_000  # newest measurements of evaluations in the curves
PAIRS = 20  # comparable evaluations of two versions


@dataclass(frozen=True)
class TaskFilter:
    """Filter and order of a run's tasks; None: any."""

    run: str | None = None
    taskset: str | None = None
    solved: str | None = None
    """never, always or sometimes."""
    text: str | None = None
    sort: str | None = None
    rank: float | None = None
    """Sort key of the last task of the previous page; given together with its id, `below`."""
    below: int | None = None


@dataclass(frozen=True)
class Tasks:
    """One page of a run's tasks, in the requested order."""

    rows: list[DictRow]
    next: tuple[float, int] | None
    """Start of the next page; None on the last page."""
    looked_at: int
    run_names: list[str]
    tasksets: list[str]


@dataclass(frozen=True)
class Task:
    """A task, with its figures in one run."""

    row: DictRow
    versions: list[DictRow]
    """Figures of each version, newest first."""
    sides: list[tuple[int, list[DictRow]]]
    """Two versions, or one, with the attempts of each."""


@dataclass(frozen=True)
class Evaluated:
    """Evaluations of a run, their curves, and the comparison of two versions."""

    rows: list[DictRow]
    before: int | None
    """Start of the next page; None on the last page."""
    known: list[DictRow]
    """Each taskset and number of attempts that the run was evaluated on."""
    curves: dict[str, list[Point]]
    versions: tuple[int, int] | None
    """Versions that are compared."""
    pairs: list[DictRow]
    """Evaluations that both versions have with the same settings."""
    run_names: list[str]


def tasks(filters: TaskFilter) -> Callable[[Database], Tasks]:
    """Return the query for a page of tasks.

    Raises:
        NotFound: by the query, if the run does not exist.
    """

    def read(database: Database) -> Tasks:
        with database.transaction() as tx:
            names = _run_names(tx)
            if filters.run is None:
                return Tasks([], None, 0, names, [])
            run_id = runs.find(tx, filters.run).id
            values = {
                "run_id": run_id, "taskset": filters.taskset, "solved": filters.solved, "sort": filters.sort,
                "rank": filters.rank, "below": filters.below, "pattern": questions.pattern(filters.text),
                "limit": ROWS + 1, "window": WINDOW if filters.text else ROWS + 1, "groups": GROUPS,
            }  # fmt: skip
            # Not prepared: no single plan would suit all filters.
            answer = tx.execute(query("page_tasks"), values, prepare=False).fetchall()
            tasksets = [row["name"] for row in tx.execute(query("page_tasksets"), {"run_id": run_id})]
        rows = [row for row in answer if row["id"] is not None]
        following = None
        if len(rows) > ROWS:
            following = rows[ROWS - 1]["rank"], rows[ROWS - 1]["id"]
        elif filters.text and answer[0]["looked_at"] == WINDOW:
            following = answer[0]["last_rank"], answer[0]["last_id"]
        return Tasks(rows[:ROWS], following, answer[0]["looked_at"], names, tasksets)

    return read


def task(task_id: int, run_name: str, chosen: tuple[int | None, int | None]) -> Callable[[Database], Task]:
    """Return the query for a task in a run, with the attempts of two versions.

    Args:
        chosen: versions to compare; None: the first and the last that attempted the task.

    Raises:
        NotFound: by the query, if the run or the task does not exist.
    """

    def read(database: Database) -> Task:
        with database.transaction() as tx:
            run = runs.find(tx, run_name, "run or data set")
            values = {"run_id": run.id, "id": task_id}
            row = tx.execute(query("page_task"), values).fetchone()
            if row is None:
                raise NotFound(f"There is no task {task_id}.")
            bounds = {"versions": VERSIONS, "groups": GROUPS_OF_VERSION}
            versions = tx.execute(query("page_task_versions"), values | bounds).fetchall()
            sides = []
            for version in dict.fromkeys(
                last if selected is None else selected
                for selected, last in zip(chosen, (row["first"], row["last"]), strict=True)
            ):
                if version is not None:
                    newest = values | {"version": version, "limit": SIDE}
                    ids = [group["id"] for group in tx.execute(query("page_task_groups"), newest)]
                    sides.append((version, questions.members(tx, ids, version)))
        return Task(row, versions, sides)

    return read


def evaluated(
    run_name: str | None,
    taskset: str | None,
    before: int | None,
    chosen: tuple[int | None, int | None],
) -> Callable[[Database], Evaluated]:
    """Return the query for a run's evaluations, with the difference between two versions.

    Args:
        chosen: versions to compare; None: the first and the last that were evaluated.

    Raises:
        NotFound: by the query, if the run does not exist.
    """

    def read(database: Database) -> Evaluated:
        with database.transaction() as tx:
            names = _run_names(tx)
            if run_name is None:
                return Evaluated([], None, [], {}, None, [], names)
            run_id = runs.find(tx, run_name).id
            values = {"run_id": run_id, "taskset": taskset, "before": before, "limit": EVALUATIONS + 1}
            page = tx.execute(query("page_evaluations"), values).fetchall()
            following = page[EVALUATIONS - 1]["id"] if len(page) > EVALUATIONS else None
            known = tx.execute(query("page_evaluated"), {"run_id": run_id}).fetchall()
            curves = _curves(tx, run_id, known)
            versions = _versions(known, chosen)
            pairs = _pairs(tx, run_id, taskset, *versions) if versions else []
        return Evaluated(page[:EVALUATIONS], following, known, curves, versions, pairs, names)

    return read


def figures(evaluation: Mapping[str, Any]) -> Callable[[Database], dict[str, Any]]:
    """Return the query for an evaluation's row of evaluation_view, with the interval of best@k.

    Raises:
        NotFound: by the query, if the evaluation does not exist.
    """

    def read(database: Database) -> dict[str, Any]:
        with database.transaction() as tx:
            rows = evaluations.read(tx, [evaluation["id"]])
            best = tx.execute(query("page_best_limits"), {"id": evaluation["id"]}).fetchone()
        if not rows or best is None:
            raise NotFound(f"There is no evaluation {evaluation['id']}.")
        return {**rows[0], **best}

    return read


def difference(pair: Mapping[str, Any]) -> Callable[[Database], dict[str, Any]]:
    """Return the query for the second evaluation minus the first; see trinity-db evaluate."""

    def read(database: Database) -> dict[str, Any]:
        with database.transaction() as tx:
            first = evaluations.compare(tx, pair["before"], pair["after"])
            several = evaluations.compare(tx, pair["before"], pair["after"], pair["samples"])
        return {**first, **{f"at_k_{name}": several[name] for name in ("pass", "pass_low", "pass_high")}}

    return read


def evaluation(
    evaluation_id: int, after: int | None, solved: str | None
) -> Callable[[Database], dict[str, Any]]:
    """Return the query for one evaluation, with a page of its tasks.

    Raises:
        NotFound: by the query, if the evaluation does not exist.
    """

    def read(database: Database) -> dict[str, Any]:
        limited = figures({"id": evaluation_id})(database)
        with database.transaction() as tx:
            values = {"id": evaluation_id, "after": after, "solved": solved, "limit": ROWS + 1}
            rows = tx.execute(query("page_evaluation_tasks"), values).fetchall()
        following = rows[ROWS - 1]["group_id"] if len(rows) > ROWS else None
        return {**limited, "rows": rows[:ROWS], "after": following}

    return read


def _run_names(tx: Transaction) -> list[str]:
    return [row["name"] for row in tx.execute(query("page_run_names"))]


def _curves(tx: Transaction, run_id: int, known: Sequence[DictRow]) -> dict[str, list[Point]]:
    """Curves by metric name; the x values are policy versions."""
    names = [name for entry in known for name in evaluations.metric_names(entry["taskset"], entry["samples"])]
    curves: dict[str, list[Point]] = defaultdict(list)
    values = {"run_id": run_id, "names": names, "limit": MEASURED}
    for row in tx.execute(query("page_evaluation_curves"), values):
        curves[row["name"]].append((row["version"], row["value"]))
    return curves


def _versions(known: Sequence[DictRow], chosen: tuple[int | None, int | None]) -> tuple[int, int] | None:
    """Versions to compare; None if there are not two."""
    if not known:
        return None
    before, after = chosen
    before = min(row["first"] for row in known) if before is None else before
    after = max(row["last"] for row in known) if after is None else after
    return None if before == after else (before, after)


def _pairs(tx: Transaction, run_id: int, taskset: str | None, before: int, after: int) -> list[DictRow]:
    values = {"run_id": run_id, "taskset": taskset, "a": before, "b": after, "limit": PAIRS}
    return tx.execute(query("page_evaluation_pairs"), values).fetchall()
