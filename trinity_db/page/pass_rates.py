"""How often tasks are solved: the questions of the pages about tasks and evaluations.

What solves a task is said once: `task_stat` counts it for training, `evaluation_task_view` for evaluations.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.rows import DictRow

from trinity_db.database import Database, Transaction
from trinity_db.errors import NotFound
from trinity_db.page import questions
from trinity_db.page.charts import Point
from trinity_db.page.questions import ROWS
from trinity_db.schema.queries import query
from trinity_db.store import evaluations, runs

WINDOW = 5_000  # tasks in whose prompts a text is looked for at a time: 0.3 s
GROUPS = 50  # of a task, whose rewards its line is of: 0.1 s for a page
VERSIONS = 200  # of a task, the newest, whose figures are shown
GROUPS_OF_VERSION = 8  # of a task and a version, the newest, that its figures are of
SIDE = 4  # groups of a version that are shown beside those of another
EVALUATIONS = 10  # of a page
MEASURED = 4_000  # newest measurements of evaluations that curves are of
PAIRS = 20  # of evaluations that two versions have alike


@dataclass(frozen=True)
class Asked:
    """Which tasks of a run are looked for; None: any."""

    run: str | None = None
    taskset: str | None = None
    solved: str | None = None
    """never, always or sometimes."""
    text: str | None = None
    sort: str | None = None
    rank: float | None = None
    """With `below` the place behind which they lie, for the next page."""
    below: int | None = None


@dataclass(frozen=True)
class Tasks:
    """A page of the tasks of a run, in the order that was asked for."""

    rows: list[DictRow]
    next: tuple[float, int] | None
    """Where the next page begins; None at the end."""
    looked_at: int
    run_names: list[str]
    tasksets: list[str]


@dataclass(frozen=True)
class Task:
    """A task as one run knows it."""

    row: DictRow
    versions: list[DictRow]
    """What each version earned, the newest first."""
    sides: list[tuple[int, list[DictRow]]]
    """Two versions, or one, with what each of them said."""


@dataclass(frozen=True)
class Evaluated:
    """What the evaluations of a run say."""

    rows: list[DictRow]
    before: int | None
    """Where the next page begins; None at the end."""
    known: list[DictRow]
    """Each taskset and number of attempts that the run was evaluated on."""
    curves: dict[str, list[Point]]
    versions: tuple[int, int] | None
    """The two that are compared."""
    pairs: list[DictRow]
    """The evaluations that both have alike."""
    run_names: list[str]


def tasks(wanted: Asked) -> Callable[[Database], Tasks]:
    """The question for a page of tasks.

    Raises:
        NotFound: there is no such run.
    """

    def read(database: Database) -> Tasks:
        with database.transaction() as tx:
            names = _run_names(tx)
            if wanted.run is None:
                return Tasks([], None, 0, names, [])
            run_id = runs.find(tx, wanted.run).id
            values = {
                "run_id": run_id, "taskset": wanted.taskset, "solved": wanted.solved, "sort": wanted.sort,
                "rank": wanted.rank, "below": wanted.below, "pattern": questions.pattern(wanted.text),
                "limit": ROWS + 1, "window": WINDOW if wanted.text else ROWS + 1, "groups": GROUPS,
            }  # fmt: skip
            # Not prepared: one plan for all filters would not fit any.
            found = tx.execute(query("page_tasks"), values, prepare=False).fetchall()
            tasksets = [row["name"] for row in tx.execute(query("page_tasksets"), {"run_id": run_id})]
        rows = [row for row in found if row["id"] is not None]
        following = None
        if len(rows) > ROWS:
            following = rows[ROWS - 1]["rank"], rows[ROWS - 1]["id"]
        elif wanted.text and found[0]["looked_at"] == WINDOW:
            following = found[0]["last_rank"], found[0]["last_id"]
        return Tasks(rows[:ROWS], following, found[0]["looked_at"], names, tasksets)

    return read


def task(task_id: int, run_name: str, chosen: tuple[int | None, int | None]) -> Callable[[Database], Task]:
    """The question for a task in a run, and for what two versions said to it.

    Args:
        chosen: these versions; None: the first and the last that were asked.

    Raises:
        NotFound: there is no such run or task.
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
                last if given is None else given
                for given, last in zip(chosen, (row["first"], row["last"]), strict=True)
            ):
                if version is not None:
                    asked = values | {"version": version, "limit": SIDE}
                    ids = [group["id"] for group in tx.execute(query("page_task_groups"), asked)]
                    sides.append((version, questions.members(tx, ids, version)))
        return Task(row, versions, sides)

    return read


def evaluated(
    run_name: str | None,
    taskset: str | None,
    before: int | None,
    chosen: tuple[int | None, int | None],
) -> Callable[[Database], Evaluated]:
    """The question for the evaluations of a run, and for how two versions differ.

    Args:
        chosen: these versions; None: the first and the last that were evaluated.

    Raises:
        NotFound: there is no such run.
    """

    def read(database: Database) -> Evaluated:
        with database.transaction() as tx:
            names = _run_names(tx)
            if run_name is None:
                return Evaluated([], None, [], {}, None, [], names)
            run_id = runs.find(tx, run_name).id
            values = {"run_id": run_id, "taskset": taskset, "before": before, "limit": EVALUATIONS + 1}
            found = tx.execute(query("page_evaluations"), values).fetchall()
            following = found[EVALUATIONS - 1]["id"] if len(found) > EVALUATIONS else None
            known = tx.execute(query("page_evaluated"), {"run_id": run_id}).fetchall()
            curves = _curves(tx, run_id, known)
            versions = _versions(known, chosen)
            pairs = _pairs(tx, run_id, taskset, *versions) if versions else []
        return Evaluated(found[:EVALUATIONS], following, known, curves, versions, pairs, names)

    return read


def figures(one: Mapping[str, Any]) -> Callable[[Database], dict[str, Any]]:
    """The question for what evaluation_view says of an evaluation, and for the interval of best@k.

    Raises:
        NotFound: there is no such evaluation.
    """

    def read(database: Database) -> dict[str, Any]:
        with database.transaction() as tx:
            found = evaluations.read(tx, [one["id"]])
            best = tx.execute(query("page_best_limits"), {"id": one["id"]}).fetchone()
        if not found or best is None:
            raise NotFound(f"There is no evaluation {one['id']}.")
        return {**found[0], **best}

    return read


def difference(pair: Mapping[str, Any]) -> Callable[[Database], dict[str, Any]]:
    """The question for the second of two evaluations less the first, as trinity-db evaluate says it."""

    def read(database: Database) -> dict[str, Any]:
        with database.transaction() as tx:
            first = evaluations.compare(tx, pair["before"], pair["after"])
            several = evaluations.compare(tx, pair["before"], pair["after"], pair["samples"])
        return {**first, **{f"at_k_{name}": several[name] for name in ("pass", "pass_low", "pass_high")}}

    return read


def evaluation(
    evaluation_id: int, after: int | None, solved: str | None
) -> Callable[[Database], dict[str, Any]]:
    """The question for one evaluation, and for a page of its tasks.

    Raises:
        NotFound: there is no such evaluation.
    """

    def read(database: Database) -> dict[str, Any]:
        found = figures({"id": evaluation_id})(database)
        with database.transaction() as tx:
            values = {"id": evaluation_id, "after": after, "solved": solved, "limit": ROWS + 1}
            rows = tx.execute(query("page_evaluation_tasks"), values).fetchall()
        following = rows[ROWS - 1]["group_id"] if len(rows) > ROWS else None
        return {**found, "rows": rows[:ROWS], "after": following}

    return read


def _run_names(tx: Transaction) -> list[str]:
    return [row["name"] for row in tx.execute(query("page_run_names"))]


def _curves(tx: Transaction, run_id: int, known: Sequence[DictRow]) -> dict[str, list[Point]]:
    """By the names of metrics; steps are versions."""
    names = [name for one in known for name in evaluations.metric_names(one["taskset"], one["samples"])]
    curves: dict[str, list[Point]] = defaultdict(list)
    values = {"run_id": run_id, "names": names, "limit": MEASURED}
    for row in tx.execute(query("page_evaluation_curves"), values):
        curves[row["name"]].append((row["version"], row["value"]))
    return curves


def _versions(known: Sequence[DictRow], chosen: tuple[int | None, int | None]) -> tuple[int, int] | None:
    """The versions to compare; None where there are no two."""
    if not known:
        return None
    before, after = chosen
    before = min(one["first"] for one in known) if before is None else before
    after = max(one["last"] for one in known) if after is None else after
    return None if before == after else (before, after)


def _pairs(tx: Transaction, run_id: int, taskset: str | None, before: int, after: int) -> list[DictRow]:
    values = {"run_id": run_id, "taskset": taskset, "a": before, "b": after, "limit": PAIRS}
    return tx.execute(query("page_evaluation_pairs"), values).fetchall()
