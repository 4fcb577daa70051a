"""The page of a task in a run: pass rates by policy version, and attempts of two versions, side by side."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from nicegui import ui
from psycopg.rows import DictRow

from trinity_db.errors import ConfigError
from trinity_db.insight.words import moment
from trinity_db.page import layout, pass_rates, texts
from trinity_db.page.charts import Chart, Point, draw
from trinity_db.page.elements import Cell, Column, Fact, Facts, Rows, element
from trinity_db.page.forms import MAX_VERSION, field, hidden, whole
from trinity_db.page.group import attempt, task_text
from trinity_db.page.pass_rates import Task
from trinity_db.page.reader import Reader
from trinity_db.page.tasks import percent

COLUMNS = (
    Column("version", "number", "policy version that sampled the oldest token"),
    Column("for"),
    Column("attempts", "number"),
    Column("with a reward", "number"),
    Column("solved", "number"),
    Column("pass rate", "number", "share of the attempts with a reward that solved it"),
    Column("mean reward", "number", "of the attempts with a reward"),
    Column("rows"),
)
BOUNDS = (
    f"The newest {pass_rates.VERSIONS} versions at most, each with its newest "
    f"{pass_rates.GROUPS_OF_VERSION} groups at most; current rewards."
)
NO_VERSIONS = (
    "No policy version of this run has attempted this task yet. The page of the run shows whether its "
    "explorers are alive."
)
SIDES = (
    "Responses of the policy then and now: attempts of two versions, each from at most its newest "
    f"{pass_rates.SIDE} groups."
)
TRAINING, EVALUATION = "training", "evaluation"
PURPOSES = {TRAINING: "in training", EVALUATION: "in evaluations"}


def register(reader: Reader) -> None:
    """Add the page."""

    @ui.page("/task/{task_id}", response_timeout=layout.RESPONSE_SECONDS)
    async def task_page(task_id: str, run: str = "", a: str = "", b: str = "") -> None:
        with layout.frame(f"Task {task_id}"):
            number, name = layout.identifier(task_id), layout.text(run.strip())
            if number is None:
                element("p", "Task ids are whole numbers.", "notice", role="alert")
                return
            if not name:
                element("p", "The run is missing: /task/1?run=NAME. Open a task from its run.", "notice",
                     role="alert")  # fmt: skip
                element("a", "Tasks", "button", href="/tasks")
                return
            try:
                chosen = versions_of(a, b)
            except ConfigError as error:
                element("p", str(error), "notice", role="alert")
                element("a", "The first and the last version", "button",
                     href=layout.link("task", number, run=name))  # fmt: skip
                return
            build = partial(_show, name)
            await layout.once(reader, pass_rates.task(number, name, chosen), build).look()


def versions_of(a: str, b: str) -> tuple[int | None, int | None]:
    """Parse the two versions of a link; None for a missing one.

    Raises:
        ConfigError: if one is not a version.
    """
    read = whole("policy version", MAX_VERSION)
    first, second = (read(text.strip()) if text.strip() else None for text in (a, b))
    return first, second


def choose_versions(path: str, others: Mapping[str, str], chosen: Sequence[int]) -> None:
    """Show a form for two versions, which leads to a path; `kept` are other values of its link."""
    shown = dict(zip("ab", map(str, [*chosen[:1], *chosen[-1:]]), strict=False))
    with element("form", "", "filters", action=path, method="get", aria_label="Two versions"):
        for name, value in others.items():
            hidden(name, value)
        field("a", "version A", "number", shown)
        field("b", "version B", "number", shown)
        element("button", "Compare", "main", type="submit")


def _show(run: str, task: Task) -> None:
    Facts().show(_facts(run, task.row))
    layout.heading("Task")
    with element("div", "", "card"):
        texts.show(task_text(task.row["payload"]))
    layout.heading("By policy version", BOUNDS)
    draw(*_curves(task.versions))
    table = Rows("by policy version", COLUMNS, NO_VERSIONS)
    table.show([_version(run, task.row, row) for row in task.versions])
    layout.heading("Two versions side by side", SIDES)
    chosen = [version for version, _ in task.sides]
    choose_versions(layout.link("task", task.row["id"]), {"run": run}, chosen)
    with element("div", "", "halves"):
        for version, rows in task.sides:
            _side(version, rows)


def _facts(run: str, task: Mapping[str, Any]) -> list[Fact]:
    scored = task["scored"] or 0
    rate = f"{percent(task['solved'] / scored)}, {task['solved']:,} of {scored:,} attempts" if scored else ""
    return [
        Fact("run", run, layout.link("run", run)),
        Fact("taskset", task["taskset"], layout.link("tasks", run=run, taskset=task["taskset"])),
        Fact("pass rate in training", rate or "none yet"),
        Fact("difficulty", f"{task['difficulty']} of 4" if task["difficulty"] else ""),
        Fact("started", layout.count(task["issued"] or 0, "group", "groups")),
        Fact("last asked", moment(task["issued_at"]) if task["issued_at"] else ""),
        Fact("level", "" if task["level"] is None else f"{task['level']:g}"),
        Fact("imported", moment(task["created_at"])),
        Fact("all its rows", task["key"], layout.link("experiences", run=run, task=task["key"])),
    ]


def _purpose(row: Mapping[str, Any]) -> str:
    return EVALUATION if row["evaluated"] else TRAINING


def _curves(versions: Sequence[DictRow]) -> tuple[list[Chart], dict[str, list[Point]]]:
    """Charts over versions, with the points of each curve."""
    points: dict[str, list[Point]] = {}
    for row in reversed(versions):
        if row["judged"]:
            purpose = _purpose(row)
            points.setdefault(f"rate {purpose}", []).append((row["version"], row["solved"] / row["judged"]))
            points.setdefault(f"reward {purpose}", []).append((row["version"], row["reward"]))
    return [
        Chart(title, unit, {f"{name} {purpose}": called for purpose, called in PURPOSES.items()})
        for name, title, unit in (
            ("rate", "Pass rate", "share of attempts, by policy version"),
            ("reward", "Mean reward", "of an attempt, by policy version"),
        )
    ], points


def _version(run: str, task: Mapping[str, Any], row: Mapping[str, Any]) -> list[Cell]:
    judged = row["judged"]
    rows = layout.link("experiences", run=run, task=task["key"], version=row["version"])
    return [
        Cell(
            str(row["version"]), layout.link("task", task["id"], run=run, a=task["first"], b=row["version"])
        ),
        Cell(_purpose(row)),
        Cell(f"{row['attempts']:,}"),
        Cell(f"{judged:,}"),
        Cell(f"{row['solved']:,}"),
        Cell(percent(row["solved"] / judged if judged else None)),
        Cell(layout.number(row["reward"])),
        Cell("show", rows),
    ]


def _side(version: int, rows: Sequence[DictRow]) -> None:
    with element("section"):
        element("h3", f"Version {version:,}")
        if not rows:
            element(
                "p", "This version has not attempted this task; the table above shows which have.", "empty"
            )
        with element("div", "", "beside"):
            for row in rows:
                attempt(row, with_group=True)
