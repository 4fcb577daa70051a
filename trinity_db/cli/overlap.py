"""`trinity-db overlap`: finds text of evaluation tasks in tasks and rows that are trained on."""

import sys
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trinity_db.cli import output
from trinity_db.errors import NotFound
from trinity_db.insight.words import printable

if TYPE_CHECKING:
    from trinity_db.postgres.connection import Database, Transaction
    from trinity_db.processors.jobs.overlap import EvaluatedTasks

COLUMNS = ("experience", "task", "evaluated", "share", "text")
NUMBERS = ("experience", "task", "evaluated", "share")


def overlap(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A taskset, a data set or a run.")],
    evaluated: Annotated[
        str, typer.Option("--with", metavar="TASKSET", help="Taskset that is used for evaluation.")
    ],
    words: Annotated[
        int, typer.Option("--words", metavar="N", min=1, max=1000, help="Words per n-gram.")
    ] = 13,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000_000, help="Number of rows to list.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find text of evaluation tasks in tasks or responses.

    Searches the tasks and responses of NAME, and drops nothing. The results are evidence for a person to
    judge: overlap_view keeps all of it, and the strongest is listed. Texts are compared by n-grams of
    words. `share` is the share of the evaluation task's n-grams that were found.

    Example:

        trinity-db overlap gsm8k-train --with gsm8k-test
    """
    from trinity_db.postgres.opening import open_database
    from trinity_db.processors.jobs.overlap import evaluated as read
    from trinity_db.store import overlaps, runs

    with closing(open_database()) as database:
        with database.transaction(read_only=True) as tx:
            with_id = runs.find_taskset(tx, evaluated)
            taskset_id, run_id = _find(tx, name)
        tasks = read(database, [with_id], words)
        counts = _compare(database, tasks, taskset_id, run_id)
        with database.transaction(read_only=True) as tx:
            strongest = overlaps.strongest(tx, with_id, taskset_id, run_id, tasks.measure, limit)
    if as_json:
        output.print_json({**counts, "overlaps": strongest})
        return
    if strongest:
        console = output.console(sys.stdout)
        rows = [
            [
                _cell(row["experience"]),
                _cell(row["task"]),
                _cell(row["evaluated"]),
                _cell(row["share"]),
                _cell(row["text"]),
            ]
            for row in strongest
        ]
        console.print(output.fitted(COLUMNS, rows, console.width, ("task",), NUMBERS))
    print(
        f"Compared: {counts['tasks']} tasks and {counts['rows']} responses of '{name}', with "
        f"{tasks.num_tasks} tasks of '{evaluated}' ({tasks.too_short} are too short). "
        f"New evidence: {counts['new']}; overlap_view lists all of it."
    )


def _find(tx: "Transaction", name: str) -> tuple[int | None, int | None]:
    """Return the taskset and the run of this name.

    Raises:
        NotFound: if there is neither.
    """
    from trinity_db.store import runs

    ids: list[int | None] = []
    for find in (runs.find_taskset, lambda tx, name: runs.find(tx, name, "taskset, data set or run").id):
        try:
            ids.append(find(tx, name))
        except NotFound as error:
            missing = error
            ids.append(None)
    if ids == [None, None]:
        raise missing
    return ids[0], ids[1]


def _compare(
    database: "Database", tasks: "EvaluatedTasks", taskset_id: int | None, run_id: int | None
) -> dict[str, int]:
    """Compare everything, and write the evidence; return counts."""
    from trinity_db.processors.jobs.overlap import texts
    from trinity_db.store import overlaps

    counts = {
        "tasks": 0,
        "rows": 0,
        "new": 0,
        "evaluated_tasks": tasks.num_tasks,
        "too_short": tasks.too_short,
    }
    for rows in overlaps.tasks(database, taskset_id) if taskset_id is not None else ():
        matches = [
            replace(match, of_task_id=row["id"])
            for row in rows
            for match in tasks.found_in(texts(row["payload"]))
            if match.task_id != row["id"]
        ]
        with database.transaction() as tx:
            counts["new"] += overlaps.write(tx, tasks.measure, matches)
        counts["tasks"] += len(rows)
    for rows in overlaps.responses(database, run_id) if run_id is not None else ():
        matches = [
            replace(match, experience_id=row["id"])
            for row in rows
            for match in tasks.found_in([row["response"]])
        ]
        with database.transaction() as tx:
            counts["new"] += overlaps.write(tx, tasks.measure, matches)
        counts["rows"] += len(rows)
    return counts


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    return output.shorten(printable(str(value)), 80) if value is not None else ""
