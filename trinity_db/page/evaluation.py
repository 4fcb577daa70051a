"""Pages about a run's evaluations, and about one of them, with the figures of `trinity-db evaluate`."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from nicegui import ui
from psycopg.rows import DictRow

from trinity_db.errors import ConfigError, TrinityError
from trinity_db.insight.words import moment, with_limits
from trinity_db.page import layout, pass_rates
from trinity_db.page.charts import Chart, draw
from trinity_db.page.elements import Cell, Column, Fact, Facts, Rows, element
from trinity_db.page.forms import choice, one_of, whole
from trinity_db.page.pass_rates import Evaluated
from trinity_db.page.reader import Reader
from trinity_db.page.rights import visitor
from trinity_db.page.task import choose_versions, versions_of
from trinity_db.page.tasks import PROMPT, SOLVED, percent
from trinity_db.postgres.connection import Database
from trinity_db.store.evaluations import metric_names

COLUMNS = (
    Column("evaluation"),
    Column("taskset"),
    Column("version", "number", "policy version"),
    Column("sampled", "number", "attempts at each task (k), and their temperature"),
    Column("mean@k", "number", "mean reward per attempt"),
    Column("best@k", "number", "highest reward among k attempts, averaged over tasks"),
    Column("pass@1", "number", "probability that one attempt solves a task"),
    Column("pass@k", "number", "probability that one of k attempts solves a task"),
    Column("tasks", "number"),
    Column("failed", "number", "attempts that failed or could not be judged; not included in any mean"),
    Column("ended", "", "end time, or the attempts that have not ended or have no reward yet"),
)
EXPLAINED = (
    "The figures of trinity-db evaluate, from the current rewards. In brackets: the 95 % interval, clustered "
    "by task, that is, how far another set of such tasks might differ."
)
CURVES = (
    "By policy version, as measured when each evaluation ended; the last one if a version has several alike."
)
DIFFERENCES = (
    "Version B minus version A, over the tasks that both attempted with the same settings. In brackets: the "
    "95 % interval of the differences between tasks."
)
DIFFERENCE_COLUMNS = (
    Column("taskset"),
    Column("k", "number", "attempts at each task"),
    Column("tasks", "number", "tasks that both versions attempted"),
    Column("mean reward", "number"),
    Column("pass@1", "number"),
    Column("pass@k", "number"),
)
NO_RUN = "Choose a run above, to see how its versions were evaluated."
NOTHING = (
    "This run has no evaluation yet.\n"
    "Set evaluation: {taskset: NAME, every: 10} in its configuration to evaluate versions during training.\n"
    "Run trinity-db evaluate RUN --taskset NAME to evaluate versions that still have checkpoints."
)
EMPTY = "No evaluation meets these filters. Remove one."
NO_DIFFERENCE = (
    "These two versions have no comparable evaluation. The table above lists the versions; trinity-db "
    "evaluate RUN --taskset NAME --version A --version B evaluates both in the same way."
)
ONE_VERSION = "Only one version was evaluated. Choose another one, or evaluate another one, to compare two."
TASK_COLUMNS = (
    Column("task", "long", "beginning of its prompt"),
    Column("group"),
    Column("with a reward", "number", "attempts"),
    Column("solved", "number", "attempts"),
    Column("pass rate", "number", "share of the attempts with a reward that solved it"),
    Column("mean reward", "number"),
    Column("best reward", "number"),
    Column("failed", "number", "attempts"),
)
NO_TASKS = "No task of this evaluation meets the filter. Remove it."


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
                element("p", str(error), "notice", role="alert")
                element("a", "Without filters", "button", href=layout.link("evaluation", run=name))
                return
            await _Evaluations(reader, name, tasks, last, chosen).look.look()

    @ui.page("/evaluation/{evaluation_id}", response_timeout=layout.RESPONSE_SECONDS)
    async def evaluation_page(evaluation_id: str, after: str = "0", solved: str = "") -> None:
        with layout.frame(f"Evaluation {evaluation_id}"):
            id, start = layout.identifier(evaluation_id), layout.identifier(after)
            if id is None or start is None:
                element("p", "Evaluations and groups have whole numbers.", "notice", role="alert")
                return
            try:
                solved_filter = one_of("filter of tasks", SOLVED)(solved) if solved else None
            except ConfigError as error:
                element("p", str(error), "notice", role="alert")
                element("a", "Without filters", "button", href=layout.link("evaluation", id))
                return
            build = partial(_show_tasks, solved_filter, start)
            await layout.once(reader, pass_rates.evaluation(id, start, solved_filter), build).look()


class _Evaluations:
    """The list of evaluations. The figures of each are read one by one, so that the page appears at once."""

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

    def _show(self, evaluated: Evaluated) -> None:
        with element("form", "", "filters", action="/evaluation", method="get", aria_label="Filters"):
            choice("run", "run", evaluated.run_names, self._run, "choose one")
            names = list(dict.fromkeys(known["taskset"] for known in evaluated.known))
            choice("taskset", "taskset", names, self._taskset)
            element("button", "Show", "main", type="submit")
        element("p", EXPLAINED, "explained")
        empty = NO_RUN if not self._run else EMPTY if evaluated.known else NOTHING
        table = Rows("evaluations", COLUMNS, empty)
        self._fill(table, evaluated.rows, pass_rates.figures, _row)
        self._pages(evaluated)
        if not evaluated.known:
            return
        layout.heading("Curves", CURVES)
        shown = [known for known in evaluated.known if self._taskset in ("", known["taskset"])]
        draw([chart for known in shown for chart in _charts(known)], evaluated.curves)
        self._differences(evaluated)

    def _pages(self, evaluated: Evaluated) -> None:
        filters = {"run": self._run, "taskset": self._taskset}
        with element("div", "", "more"):
            if evaluated.before is not None:
                link = layout.link("evaluation", **filters, before=evaluated.before)
                element("a", "Older", "button", href=link, rel="next")
            if self._before is not None:
                element("a", "Newest", "button", href=layout.link("evaluation", **filters))

    def _differences(self, evaluated: Evaluated) -> None:
        layout.heading("Two versions", DIFFERENCES)
        filters = {"run": self._run} | ({"taskset": self._taskset} if self._taskset else {})
        choose_versions("/evaluation", filters, evaluated.versions or ())
        empty = ONE_VERSION if evaluated.versions is None else NO_DIFFERENCE
        table = Rows("differences", DIFFERENCE_COLUMNS, empty)
        self._fill(table, evaluated.pairs, pass_rates.difference, _difference)

    def _fill(
        self,
        table: Rows,
        rows: Sequence[DictRow],
        read: Callable[[Mapping[str, Any]], Callable[[Database], dict[str, Any]]],
        row: Callable[[Mapping[str, Any]], list[Cell]],
    ) -> None:
        """Show the rows, then read the figures of each while the visitor is there."""
        known, reading_visitor = list[Mapping[str, Any]](rows), visitor()

        async def fill() -> None:
            for index, record in enumerate(rows):
                if table.is_deleted:
                    return
                try:
                    figures = await self._reader.ask(read(record), reading_visitor)
                except TrinityError as error:
                    figures = {"unread": str(error)}
                known[index] = {**record, **figures}
                table.show([row(record) for record in known])

        table.show([row(record) for record in rows])
        if rows:
            layout.later(fill)


def _charts(known: Mapping[str, Any]) -> list[Chart]:
    """Charts of a taskset and a number of attempts."""
    k = known["samples"]
    mean, first, best, every, _ = metric_names(known["taskset"], k)
    passes = {first: "pass@1"} | ({every: f"pass@{k}"} if k > 1 else {})
    rewards = {mean: f"mean@{k}"} | ({best: f"best@{k}"} if k > 1 else {})
    return [
        Chart(f"Solved: {known['taskset']}", f"probability, {k} attempts per task", passes),
        Chart(f"Reward: {known['taskset']}", f"{k} attempts per task", rewards),
    ]


def _row(row: Mapping[str, Any]) -> list[Cell]:
    rows = layout.link("evaluation", row["id"])
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


def _difference(pair: Mapping[str, Any]) -> list[Cell]:
    return [
        Cell(pair["taskset"], layout.link("evaluation", pair["after"])),
        Cell(str(pair["samples"])),
        Cell(f"{pair['tasks']:,}" if "tasks" in pair else ""),
        *_figures(pair, ("mean", "pass", "at_k_pass"), "+"),
    ]


def _figures(
    row: Mapping[str, Any], names: Sequence[str], sign: str = "", href: str | None = None
) -> list[Cell]:
    """Figures with their intervals; a placeholder until they are read or if they cannot be."""
    if names[0] in row:
        return [Cell(with_limits(row, name, sign), href) for name in names]
    return [Cell(row.get("unread", "being read")), *(Cell() for _ in names[1:])]


def _show_tasks(solved: str | None, start: int, evaluation: dict[str, Any]) -> None:
    k, id, run = evaluation["samples"], evaluation["id"], evaluation["run"]
    Facts().show(
        [
            Fact("run", run, layout.link("run", run)),
            Fact("evaluations", "all of the run", layout.link("evaluation", run=run)),
            Fact("taskset", evaluation["taskset"]),
            Fact("policy version", str(evaluation["version"])),
            Fact(f"mean@{k}", with_limits(evaluation, "mean")),
            Fact(f"best@{k}", with_limits(evaluation, "best")),
            Fact("pass@1", with_limits(evaluation, "pass_1")),
            Fact(f"pass@{k}", with_limits(evaluation, "pass_k") if k > 1 else ""),
            Fact(
                "attempts",
                "{judged:,} judged, {failed:,} failed, {waiting:,} wait".format_map(evaluation),
            ),
            Fact(
                "sampled",
                "at temperature {temperature:g}, up to {max_new_tokens:,} tokens".format_map(evaluation),
            ),
            Fact("given up", evaluation["error"] or ""),
        ]
    )
    layout.heading("Tasks", "In the order of the taskset, with the current rewards of their attempts.")
    with element(
        "form", "", "filters", action=layout.link("evaluation", id), method="get", aria_label="Filters"
    ):
        choice("solved", "solved", SOLVED, solved or "")
        element("button", "Show", "main", type="submit")
    rows: Sequence[DictRow] = evaluation["rows"]
    Rows("tasks", TASK_COLUMNS, NO_TASKS).show([_task(run, row) for row in rows])
    with element("div", "", "more"):
        if evaluation["after"] is not None:
            link = layout.link("evaluation", id, solved=solved, after=evaluation["after"])
            element("a", "More", "button", href=link, rel="next")
        if start:
            element("a", "From the start", "button", href=layout.link("evaluation", id, solved=solved))


def _task(run: str, row: Mapping[str, Any]) -> list[Cell]:
    judged = row["judged"]
    prompt = layout.beginning(row["prompt"], PROMPT) or f"task {row['task_id']}"
    return [
        Cell(prompt, layout.link("task", row["task_id"], run=run)),
        Cell(str(row["group_id"]), layout.link("group", row["group_id"])),
        Cell(f"{judged:,}"),
        Cell(f"{row['solved']:,}"),
        Cell(percent(row["solved"] / judged if judged else None)),
        Cell(layout.number(row["reward"])),
        Cell(layout.number(row["best"])),
        Cell(f"{row['failed']:,}"),
    ]
