"""Evaluations of a run, as `trinity-db evaluate` says them; and one of them, task by task."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from nicegui import ui
from psycopg.rows import DictRow

from trinity_db.database import Database
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.inspection.words import moment, with_limits
from trinity_db.page import layout, pass_rates
from trinity_db.page.charts import Chart, draw
from trinity_db.page.elements import Cell, Column, Fact, Facts, Rows, said
from trinity_db.page.forms import choice, one_of, whole
from trinity_db.page.pass_rates import Evaluated
from trinity_db.page.reader import Reader
from trinity_db.page.rights import visitor
from trinity_db.page.task import choose_versions, versions_of
from trinity_db.page.tasks import PROMPT, SOLVED, percent
from trinity_db.store.evaluations import metric_names

COLUMNS = (
    Column("evaluation"),
    Column("taskset"),
    Column("version", "number", "policy version"),
    Column("sampled", "number", "attempts at each task, which is k, and their temperature"),
    Column("mean@k", "number", "mean reward of an attempt"),
    Column("best@k", "number", "highest reward among k attempts, mean over tasks"),
    Column("pass@1", "number", "chance that one attempt solves a task"),
    Column("pass@k", "number", "chance that one of k attempts solves a task"),
    Column("tasks", "number"),
    Column("failed", "number", "attempts that failed, or could not be judged; they are in no mean"),
    Column("ended", "", "or how many attempts have not ended, or have no reward yet"),
)
EXPLAINED = (
    "As trinity-db evaluate says it, from the rewards of now. In brackets the interval at 95 %, clustered by "
    "task: how far another set of such tasks might be."
)
CURVES = (
    "By policy version, as each was measured when it ended; the last one where a version has several alike."
)
DIFFERENCES = (
    "Version B less version A, over the tasks that both attempted, with the same settings. In brackets the "
    "interval at 95 % of the differences between tasks."
)
DIFFERENCE_COLUMNS = (
    Column("taskset"),
    Column("k", "number", "attempts at each task"),
    Column("tasks", "number", "that both versions have"),
    Column("mean reward", "number"),
    Column("pass@1", "number"),
    Column("pass@k", "number"),
)
NO_RUN = "Choose a run above, to see how its versions were evaluated."
NOTHING = (
    "This run has no evaluation yet.\n"
    "evaluation: {taskset: NAME, every: 10} in its configuration evaluates versions while it trains.\n"
    "trinity-db evaluate RUN --taskset NAME evaluates those whose checkpoints are there."
)
EMPTY = "No evaluation meets these filters. Take one away."
NO_DIFFERENCE = (
    "These two versions have no evaluation alike. The table above has the versions; trinity-db evaluate RUN "
    "--taskset NAME --version A --version B evaluates both in the same way."
)
ONE_VERSION = "There is one version to look at. Two can be compared: choose another, or evaluate another."
TASK_COLUMNS = (
    Column("task", "long", "the beginning of its prompt"),
    Column("group"),
    Column("with a reward", "number", "attempts"),
    Column("solved", "number", "attempts"),
    Column("pass rate", "number", "share of the attempts with a reward that solved it"),
    Column("mean reward", "number"),
    Column("best reward", "number"),
    Column("failed", "number", "attempts"),
)
NO_TASKS = "No task of this evaluation meets the filter. Take it away."


def register(reader: Reader) -> None:
    """Add the pages."""

    @ui.page("/evaluation", response_timeout=layout.RESPONSE_SECONDS)
    async def evaluations_page(
        run: str = "", taskset: str = "", before: str = "", a: str = "", b: str = ""
    ) -> None:
        name, tasks = layout.text(run.strip()), layout.text(taskset.strip())
        with layout.frame("Evaluation"):
            try:
                chosen = versions_of(a, b)
                last = whole("evaluation's id", layout.MAX_ID)(before.strip()) if before.strip() else None
            except ConfigError as error:
                said("p", str(error), "notice", role="alert")
                said("a", "Without filters", "button", href=layout.place("evaluation", run=name))
                return
            await _Evaluations(reader, name, tasks, last, chosen).look.look()

    @ui.page("/evaluation/{evaluation_id}", response_timeout=layout.RESPONSE_SECONDS)
    async def evaluation_page(evaluation_id: str, after: str = "0", solved: str = "") -> None:
        with layout.frame(f"Evaluation {evaluation_id}"):
            id, start = layout.identifier(evaluation_id), layout.identifier(after)
            if id is None or start is None:
                said("p", "Evaluations and groups have whole numbers.", "notice", role="alert")
                return
            try:
                which = one_of("filter of tasks", SOLVED)(solved) if solved else None
            except ConfigError as error:
                said("p", str(error), "notice", role="alert")
                said("a", "Without filters", "button", href=layout.place("evaluation", id))
                return
            build = partial(_show_tasks, which, start)
            await layout.once(reader, pass_rates.evaluation(id, start, which), build).look()


class _Evaluations:
    """The list. What each evaluation says is read one by one, so that the page is there at once."""

    def __init__(
        self,
        reader: Reader,
        run: str,
        taskset: str,
        before: int | None,
        chosen: tuple[int | None, int | None],
    ) -> None:
        self._reader = reader
        self._run, self._taskset, self._before = run, taskset, before
        read = pass_rates.evaluated(run or None, taskset or None, before, chosen)
        self.look = layout.once(reader, read, self._show)

    def _show(self, found: Evaluated) -> None:
        with said("form", "", "filters", action="/evaluation", method="get", aria_label="Filters"):
            choice("run", "run", found.run_names, self._run, "choose one")
            names = list(dict.fromkeys(one["taskset"] for one in found.known))
            choice("taskset", "taskset", names, self._taskset)
            said("button", "Show", "main", type="submit")
        said("p", EXPLAINED, "explained")
        empty = NO_RUN if not self._run else EMPTY if found.known else NOTHING
        table = Rows("evaluations", COLUMNS, empty)
        self._fill(table, found.rows, pass_rates.figures, _row)
        self._pages(found)
        if not found.known:
            return
        layout.heading("Curves", CURVES)
        wanted = [one for one in found.known if self._taskset in ("", one["taskset"])]
        draw([chart for one in wanted for chart in _charts(one)], found.curves)
        self._differences(found)

    def _pages(self, found: Evaluated) -> None:
        kept = {"run": self._run, "taskset": self._taskset}
        with said("div", "", "more"):
            if found.before is not None:
                place = layout.place("evaluation", **kept, before=found.before)
                said("a", "Older", "button", href=place, rel="next")
            if self._before is not None:
                said("a", "Newest", "button", href=layout.place("evaluation", **kept))

    def _differences(self, found: Evaluated) -> None:
        layout.heading("Two versions", DIFFERENCES)
        kept = {"run": self._run} | ({"taskset": self._taskset} if self._taskset else {})
        choose_versions("/evaluation", kept, found.versions or ())
        empty = ONE_VERSION if found.versions is None else NO_DIFFERENCE
        table = Rows("differences", DIFFERENCE_COLUMNS, empty)
        self._fill(table, found.pairs, pass_rates.difference, _difference)

    def _fill(
        self,
        table: Rows,
        rows: Sequence[DictRow],
        read: Callable[[Mapping[str, Any]], Callable[[Database], dict[str, Any]]],
        row: Callable[[Mapping[str, Any]], list[Cell]],
    ) -> None:
        """Show rows, then what is read about each, while a person is there."""
        known, who = list[Mapping[str, Any]](rows), visitor()

        async def fill() -> None:
            for place, one in enumerate(rows):
                if table.is_deleted:
                    return
                try:
                    found = await self._reader.ask(read(one), who)
                except TrinityError as error:
                    found = {"unread": str(error)}
                known[place] = {**one, **found}
                table.show([row(each) for each in known])

        table.show([row(one) for one in rows])
        if rows:
            layout.later(fill)


def _charts(known: Mapping[str, Any]) -> list[Chart]:
    """The charts of a taskset and a number of attempts."""
    k = known["samples"]
    mean, first, best, every, _ = metric_names(known["taskset"], k)
    passes = {first: "pass@1"} | ({every: f"pass@{k}"} if k > 1 else {})
    rewards = {mean: f"mean@{k}"} | ({best: f"best@{k}"} if k > 1 else {})
    return [
        Chart(f"Solved: {known['taskset']}", f"chance, {k} attempts a task", passes),
        Chart(f"Reward: {known['taskset']}", f"{k} attempts a task", rewards),
    ]


def _row(row: Mapping[str, Any]) -> list[Cell]:
    rows = layout.place("evaluation", row["id"])
    return [
        Cell(str(row["id"]), rows),
        Cell(row["taskset"]),
        Cell(str(row["version"])),
        Cell(f"{row['samples']} at {row['temperature']:g}"),
        *_figures(row, ("mean", "best", "pass_1", "pass_k"), href=rows),
        *(Cell(f"{row[name]:,}" if name in row else "") for name in ("tasks", "failed")),
        Cell(_end(row)),
    ]


def _end(row: Mapping[str, Any]) -> str:
    if row["error"]:
        return f"given up: {row['error']}"
    if row.get("waiting"):
        return layout.count(row["waiting"], "attempt waits", "attempts wait")
    return "" if row["finished_at"] is None else moment(row["finished_at"])


def _difference(one: Mapping[str, Any]) -> list[Cell]:
    return [
        Cell(one["taskset"], layout.place("evaluation", one["after"])),
        Cell(str(one["samples"])),
        Cell(f"{one['tasks']:,}" if "tasks" in one else ""),
        *_figures(one, ("mean", "pass", "at_k_pass"), "+"),
    ]


def _figures(
    row: Mapping[str, Any], names: Sequence[str], sign: str = "", href: str | None = None
) -> list[Cell]:
    """Figures with their intervals; before they are read, and where they cannot be, a word in their place."""
    if names[0] in row:
        return [Cell(with_limits(row, name, sign), href) for name in names]
    return [Cell(row.get("unread", "being read")), *(Cell() for _ in names[1:])]


def _show_tasks(solved: str | None, start: int, found: dict[str, Any]) -> None:
    k, id = found["samples"], found["id"]
    Facts().show(
        [
            Fact("run", found["run"], layout.place("run", found["run"])),
            Fact("evaluations", "all of the run", layout.place("evaluation", run=found["run"])),
            Fact("taskset", found["taskset"]),
            Fact("policy version", str(found["version"])),
            Fact(f"mean@{k}", with_limits(found, "mean")),
            Fact(f"best@{k}", with_limits(found, "best")),
            Fact("pass@1", with_limits(found, "pass_1")),
            Fact(f"pass@{k}", with_limits(found, "pass_k") if k > 1 else ""),
            Fact(
                "attempts",
                f"{found['judged']:,} judged, {found['failed']:,} failed, {found['waiting']:,} wait",
            ),
            Fact(
                "sampled",
                f"at temperature {found['temperature']:g}, up to {found['max_new_tokens']:,} tokens",
            ),
            Fact("given up", found["error"] or ""),
        ]
    )
    layout.heading(
        "Tasks", "In the order of the taskset, with what their attempts earned, as rewards are now."
    )
    with said(
        "form", "", "filters", action=layout.place("evaluation", id), method="get", aria_label="Filters"
    ):
        choice("solved", "solved", SOLVED, solved or "")
        said("button", "Show", "main", type="submit")
    rows: Sequence[DictRow] = found["rows"]
    Rows("tasks", TASK_COLUMNS, NO_TASKS).show([_task(found["run"], row) for row in rows])
    with said("div", "", "more"):
        if found["after"] is not None:
            place = layout.place("evaluation", id, solved=solved, after=found["after"])
            said("a", "More", "button", href=place, rel="next")
        if start:
            said("a", "From the start", "button", href=layout.place("evaluation", id, solved=solved))


def _task(run: str, row: Mapping[str, Any]) -> list[Cell]:
    judged = row["judged"]
    prompt = layout.beginning(row["prompt"], PROMPT) or f"task {row['task_id']}"
    return [
        Cell(prompt, layout.place("task", row["task_id"], run=run)),
        Cell(str(row["group_id"]), layout.place("group", row["group_id"])),
        Cell(f"{judged:,}"),
        Cell(f"{row['solved']:,}"),
        Cell(percent(row["solved"] / judged if judged else None)),
        Cell(layout.number(row["reward"])),
        Cell(layout.number(row["best"])),
        Cell(f"{row['failed']:,}"),
    ]
