"""The page of a run's tasks: pass rates, and when each was last attempted. The filter is the link."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nicegui import ui
from starlette.requests import Request

from trinity_db.errors import ConfigError
from trinity_db.insight.words import moment
from trinity_db.page import layout, pass_rates
from trinity_db.page.elements import Cell, Column, Rows, element
from trinity_db.page.forms import choice, field, one_of, real, values, whole
from trinity_db.page.layout import Look
from trinity_db.page.pass_rates import TaskFilter, Tasks
from trinity_db.page.reader import Reader

COLUMNS = (
    Column("task", "long", "beginning of its prompt"),
    Column("taskset"),
    Column("pass rate", "number", "share of the attempts with a reward that solved it"),
    Column("solved", "number", "attempts that solved it, of those with a reward"),
    Column("groups", "number", "rollout groups started for it"),
    Column("mean reward", "number", f"over at most its {pass_rates.GROUPS} newest groups"),
    Column("difficulty", "number", "quarter of the estimated probability of failure; 1 is the easiest"),
    Column("last version", "number", "newest policy version that attempted it"),
    Column("last asked"),
)
EXPLAINED = (
    "Attempts for training; evaluations have a separate page. An attempt solved its task if its reward is at "
    "least processors.group.solved_reward. A group counts once it is ready or dropped. The mean reward "
    f"covers at most the {pass_rates.GROUPS} newest groups of a task."
)
SOLVED = ("never", "sometimes", "always")
SORTS = {
    "lowest": "lowest pass rate first",
    "highest": "highest pass rate first",
    "attempts": "most attempts first",
}
NEWEST = "last asked first"
EMPTY = "No task of this run meets these filters. Remove one."
NOT_YET = "No match in the first {looked_at:,} tasks that meet the other filters. The rest was not searched."
NOTHING = (
    "This run has not attempted a task yet.\n"
    "Its explorers attempt tasks: trinity-db run CONFIG restarts the roles. Data sets, and runs that learn "
    "from data, attempt no tasks."
)
NO_RUN = "Choose a run above to see its tasks."
PROMPT = 160  # characters of a prompt in the table


def register(reader: Reader) -> None:
    """Add the page."""

    @ui.page("/tasks", response_timeout=layout.RESPONSE_SECONDS)
    async def tasks_page(request: Request) -> None:
        parameters = {name: value for name, value in request.query_params.items() if value.strip()}
        with layout.frame("Tasks"):
            try:
                selected = read_filter(parameters)
            except ConfigError as error:
                element("p", str(error), "notice", role="alert")
                some = [[parameters[name]] if name in parameters else [] for name in ("run", "taskset")]
                _form(parameters, *some)
                return
            page = _Tasks(reader, selected, parameters)
            await page.look.look()


def read_filter(parameters: Mapping[str, str]) -> TaskFilter:
    """Parse a link into a filter of tasks.

    Raises:
        ConfigError: if a value is invalid; the message names valid ones.
    """
    readers: dict[str, Callable[[str], Any]] = {
        "solved": one_of("filter of tasks", SOLVED),
        "sort": one_of("order of tasks", list(SORTS)),
        "rank": real("rank"),
        "below": whole("task's id", layout.MAX_ID),
    }
    selected = TaskFilter(**values(TaskFilter, readers, parameters))
    if (selected.rank is None) != (selected.below is None):
        raise ConfigError("A link to a later page has rank and below; leave out both for the first page.")
    return selected


class _Tasks:
    def __init__(self, reader: Reader, selected: TaskFilter, parameters: Mapping[str, str]) -> None:
        self._selected, self._parameters = selected, parameters
        self.look = Look(reader, pass_rates.tasks(selected), self.show, lambda: None, follows=False)
        self._form = element("div")
        element("p", EXPLAINED, "explained")
        filters = (selected.taskset, selected.solved, selected.text, selected.below)
        empty = NO_RUN if selected.run is None else EMPTY if any(filters) else NOTHING
        self._table = Rows("tasks", COLUMNS, empty)
        self._more = element("div", "", "more")
        with self._form:
            _form(parameters, [selected.run] if selected.run else [], [])

    def show(self, page: Tasks) -> None:
        self._form.clear()
        with self._form:
            _form(self._parameters, page.run_names, page.tasksets)
        self._table.show([_row(self._selected.run, row) for row in page.rows])
        if not page.rows and page.next is not None:
            self._table.say_empty(NOT_YET.format(looked_at=page.looked_at))
        self._more.clear()
        with self._more:
            if page.next is not None:
                rank, below = page.next
                parameters = {**self._parameters, "rank": repr(rank), "below": below}
                word = "More" if page.rows else "Search further"
                element("a", word, "button", href=layout.link("tasks", **parameters), rel="next")
            if self._selected.below is not None:
                parameters = {**self._parameters, "rank": None, "below": None}
                element("a", "From the start", "button", href=layout.link("tasks", **parameters))
            if self._selected.text:
                element(
                    "span",
                    f"{page.looked_at:,} tasks that meet the other filters were searched.",
                )


def _form(parameters: Mapping[str, str], run_names: Sequence[str], tasksets: Sequence[str]) -> None:
    with element("form", "", "filters", action="/tasks", method="get", aria_label="Filters"):
        choice("run", "run", run_names, parameters.get("run", ""), "choose one")
        choice("taskset", "taskset", tasksets, parameters.get("taskset", ""))
        choice("solved", "solved", SOLVED, parameters.get("solved", ""))
        choice("sort", "order", SORTS, parameters.get("sort", ""), NEWEST)
        field("text", "text of the prompt", "search", parameters, "wide")
        element("button", "Show", "main", type="submit")
        if set(parameters) - {"run"}:
            element("a", "Without filters", "button", href=layout.link("tasks", run=parameters.get("run")))


def _row(run: str | None, row: Mapping[str, Any]) -> list[Cell]:
    rate = row["solved"] / row["scored"] if row["scored"] else None
    prompt = layout.beginning(row["prompt"], PROMPT) or f"task {row['id']}"
    return [
        Cell(prompt, layout.link("task", row["id"], run=run)),
        Cell(row["taskset"]),
        Cell(percent(rate)),
        Cell(f"{row['solved']:,} of {row['scored']:,}"),
        Cell(f"{row['issued']:,}"),
        Cell(layout.number(row["reward"])),
        Cell("" if row["difficulty"] is None else f"{row['difficulty']} of 4"),
        Cell(layout.number(row["version"])),
        Cell(moment(row["issued_at"]) if row["issued_at"] else ""),
    ]


def percent(share: float | None) -> str:
    """Format a pass rate; "" if nothing was judged."""
    return "" if share is None else f"{share:.1%}"
