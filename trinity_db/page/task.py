"""One task in a run: how often each policy version solved it, and what two versions said, side by side."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from nicegui import ui
from psycopg.rows import DictRow

from trinity_db.errors import ConfigError
from trinity_db.inspection.words import moment
from trinity_db.page import layout, pass_rates, texts
from trinity_db.page.charts import Chart, Point, draw
from trinity_db.page.elements import Cell, Column, Fact, Facts, Rows, said
from trinity_db.page.forms import MAX_VERSION, field, hidden, whole
from trinity_db.page.group import asked, attempt
from trinity_db.page.pass_rates import Task
from trinity_db.page.reader import Reader
from trinity_db.page.tasks import percent

COLUMNS = (
    Column("version", "number", "policy version that wrote the oldest token"),
    Column("for"),
    Column("attempts", "number"),
    Column("with a reward", "number"),
    Column("solved", "number"),
    Column("pass rate", "number", "share of the attempts with a reward that solved it"),
    Column("mean reward", "number", "of the attempts with a reward"),
    Column("rows"),
)
BOUNDS = (
    f"Of the {pass_rates.VERSIONS} newest versions at most, and of each the "
    f"{pass_rates.GROUPS_OF_VERSION} newest groups at most; rewards as they are now."
)
NO_VERSIONS = (
    "No policy version of this run has attempted this task yet. The page of the run says whether its "
    "explorers are alive."
)
SIDES = (
    "What the policy said then and now: attempts of two versions, of each those of the "
    f"{pass_rates.SIDE} newest groups at most."
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
                said("p", "Tasks have whole numbers.", "notice", role="alert")
                return
            if not name:
                said("p", "Say which run, as in /task/1?run=NAME; the tasks of a run lead here.", "notice",
                     role="alert")  # fmt: skip
                said("a", "Tasks", "button", href="/tasks")
                return
            try:
                chosen = versions_of(a, b)
            except ConfigError as error:
                said("p", str(error), "notice", role="alert")
                said("a", "The first and the last version", "button",
                     href=layout.place("task", number, run=name))  # fmt: skip
                return
            build = partial(_show, name)
            await layout.once(reader, pass_rates.task(number, name, chosen), build).look()


def versions_of(a: str, b: str) -> tuple[int | None, int | None]:
    """Two versions of a link; None where it names none.

    Raises:
        ConfigError: one is no version.
    """
    read = whole("policy version", MAX_VERSION)
    first, second = (read(text.strip()) if text.strip() else None for text in (a, b))
    return first, second


def choose_versions(path: str, kept: Mapping[str, str], chosen: Sequence[int]) -> None:
    """A form for two versions, that leads to the page at this path; `kept` of its link."""
    shown = dict(zip("ab", map(str, [*chosen[:1], *chosen[-1:]]), strict=False))
    with said("form", "", "filters", action=path, method="get", aria_label="Two versions"):
        for name, value in kept.items():
            hidden(name, value)
        field("a", "version A", "number", shown)
        field("b", "version B", "number", shown)
        said("button", "Compare", "main", type="submit")


def _show(run: str, task: Task) -> None:
    Facts().show(_facts(run, task.row))
    layout.heading("Task")
    with said("div", "", "card"):
        texts.show(asked(task.row["payload"]))
    layout.heading("By policy version", BOUNDS)
    draw(*_curves(task.versions))
    table = Rows("by policy version", COLUMNS, NO_VERSIONS)
    table.show([_version(run, task.row, one) for one in task.versions])
    layout.heading("Two versions side by side", SIDES)
    chosen = [version for version, _ in task.sides]
    choose_versions(layout.place("task", task.row["id"]), {"run": run}, chosen)
    with said("div", "", "halves"):
        for version, rows in task.sides:
            _side(version, rows)


def _facts(run: str, task: Mapping[str, Any]) -> list[Fact]:
    scored = task["scored"] or 0
    rate = f"{percent(task['solved'] / scored)}, {task['solved']:,} of {scored:,} attempts" if scored else ""
    return [
        Fact("run", run, layout.place("run", run)),
        Fact("taskset", task["taskset"], layout.place("tasks", run=run, taskset=task["taskset"])),
        Fact("pass rate in training", rate or "none yet"),
        Fact("difficulty", f"{task['difficulty']} of 4" if task["difficulty"] else ""),
        Fact("started", layout.count(task["issued"] or 0, "group", "groups")),
        Fact("last asked", moment(task["issued_at"]) if task["issued_at"] else ""),
        Fact("level", "" if task["level"] is None else f"{task['level']:g}"),
        Fact("imported", moment(task["created_at"])),
        Fact("all its rows", task["key"], layout.place("experiences", run=run, task=task["key"])),
    ]


def _purpose(one: Mapping[str, Any]) -> str:
    return EVALUATION if one["evaluated"] else TRAINING


def _curves(versions: Sequence[DictRow]) -> tuple[list[Chart], dict[str, list[Point]]]:
    """Charts over versions, with the points of each curve."""
    points: dict[str, list[Point]] = {}
    for one in reversed(versions):
        if one["judged"]:
            purpose = _purpose(one)
            points.setdefault(f"rate {purpose}", []).append((one["version"], one["solved"] / one["judged"]))
            points.setdefault(f"reward {purpose}", []).append((one["version"], one["reward"]))
    return [
        Chart(title, unit, {f"{name} {purpose}": called for purpose, called in PURPOSES.items()})
        for name, title, unit in (
            ("rate", "Pass rate", "share of attempts, by policy version"),
            ("reward", "Mean reward", "of an attempt, by policy version"),
        )
    ], points


def _version(run: str, task: Mapping[str, Any], one: Mapping[str, Any]) -> list[Cell]:
    judged = one["judged"]
    rows = layout.place("experiences", run=run, task=task["key"], version=one["version"])
    return [
        Cell(
            str(one["version"]), layout.place("task", task["id"], run=run, a=task["first"], b=one["version"])
        ),
        Cell(_purpose(one)),
        Cell(f"{one['attempts']:,}"),
        Cell(f"{judged:,}"),
        Cell(f"{one['solved']:,}"),
        Cell(percent(one["solved"] / judged if judged else None)),
        Cell(layout.number(one["reward"])),
        Cell("show", rows),
    ]


def _side(version: int, rows: Sequence[DictRow]) -> None:
    with said("section"):
        said("h3", f"Version {version:,}")
        if not rows:
            said("p", "This version has no attempt at this task. The table above has those that do.", "empty")
        with said("div", "", "beside"):
            for row in rows:
                attempt(row, with_group=True)
