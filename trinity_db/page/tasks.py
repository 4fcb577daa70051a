"""The tasks of a run: which it solves, which never, and when it asked them last. The filter is the link."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nicegui import ui
from starlette.requests import Request

from trinity_db.errors import ConfigError
from trinity_db.inspection.words import moment
from trinity_db.page import layout, pass_rates
from trinity_db.page.elements import Cell, Column, Rows, said
from trinity_db.page.forms import choice, field, one_of, real, values, whole
from trinity_db.page.layout import Look
from trinity_db.page.pass_rates import Asked, Tasks
from trinity_db.page.reader import Reader

COLUMNS = (
    Column("task", "long", "the beginning of its prompt"),
    Column("taskset"),
    Column("pass rate", "number", "share of the attempts with a reward that solved it"),
    Column("solved", "number", "attempts that solved it, and all with a reward"),
    Column("groups", "number", "rollout groups that were started on it"),
    Column("mean reward", "number", f"of its {pass_rates.GROUPS} newest groups at most"),
    Column("difficulty", "number", "quarter of the estimated chance to fail, 1 is the easiest"),
    Column("last version", "number", "newest policy version that was asked"),
    Column("last asked"),
)
EXPLAINED = (
    "Attempts for training; evaluations have a page of their own. An attempt solved its task if its reward "
    "is at least processors.group.solved_reward. A group counts once it is ready or dropped. The mean reward "
    f"is of the {pass_rates.GROUPS} newest groups of a task at most."
)
SOLVED = ("never", "sometimes", "always")
SORTS = {
    "lowest": "lowest pass rate first",
    "highest": "highest pass rate first",
    "attempts": "most attempts first",
}
NEWEST = "last asked first"
EMPTY = "No task of this run meets these filters. Take one away."
NOT_YET = "None of the first {looked_at:,} tasks that meet the other filters. Others were not looked at."
NOTHING = (
    "This run has attempted no task yet.\n"
    "Its explorers do: trinity-db run CONFIG starts the roles again. A data set, and a run that learns "
    "from data, attempt none."
)
NO_RUN = "Choose a run above, to see the tasks that it attempts."
PROMPT = 160  # characters of a prompt in the table


def register(reader: Reader) -> None:
    """Add the page."""

    @ui.page("/tasks", response_timeout=layout.RESPONSE_SECONDS)
    async def tasks_page(request: Request) -> None:
        given = {name: value for name, value in request.query_params.items() if value.strip()}
        with layout.frame("Tasks"):
            try:
                wanted = read_asked(given)
            except ConfigError as error:
                said("p", str(error), "notice", role="alert")
                some = [[given[name]] if name in given else [] for name in ("run", "taskset")]
                _form(given, *some)
                return
            page = _Tasks(reader, wanted, given)
            await page.look.look()


def read_asked(given: Mapping[str, str]) -> Asked:
    """The tasks that a link names.

    Raises:
        ConfigError: a value is none of its kind; with what may stand there.
    """
    readers: dict[str, Callable[[str], Any]] = {
        "solved": one_of("filter of tasks", SOLVED),
        "sort": one_of("order of tasks", list(SORTS)),
        "rank": real("rank"),
        "below": whole("task's id", layout.MAX_ID),
    }
    asked = Asked(**values(Asked, readers, given))
    if (asked.rank is None) != (asked.below is None):
        raise ConfigError("A link to a later page names rank and below; leave out both for the first page.")
    return asked


class _Tasks:
    def __init__(self, reader: Reader, wanted: Asked, given: Mapping[str, str]) -> None:
        self._wanted, self._given = wanted, given
        self.look = Look(reader, pass_rates.tasks(wanted), self.show, lambda: None, follows=False)
        self._form = said("div")
        said("p", EXPLAINED, "explained")
        filters = (wanted.taskset, wanted.solved, wanted.text, wanted.below)
        empty = NO_RUN if wanted.run is None else EMPTY if any(filters) else NOTHING
        self._table = Rows("tasks", COLUMNS, empty)
        self._more = said("div", "", "more")
        with self._form:
            _form(given, [wanted.run] if wanted.run else [], [])

    def show(self, found: Tasks) -> None:
        self._form.clear()
        with self._form:
            _form(self._given, found.run_names, found.tasksets)
        self._table.show([_row(self._wanted.run, row) for row in found.rows])
        if not found.rows and found.next is not None:
            self._table.say_empty(NOT_YET.format(looked_at=found.looked_at))
        self._more.clear()
        with self._more:
            if found.next is not None:
                rank, below = found.next
                rest = {**self._given, "rank": repr(rank), "below": below}
                word = "More" if found.rows else "Look further"
                said("a", word, "button", href=layout.place("tasks", **rest), rel="next")
            if self._wanted.below is not None:
                rest = {**self._given, "rank": None, "below": None}
                said("a", "From the start", "button", href=layout.place("tasks", **rest))
            if self._wanted.text:
                said(
                    "span",
                    f"The text was looked for in {found.looked_at:,} tasks that meet the other filters.",
                )


def _form(given: Mapping[str, str], run_names: Sequence[str], tasksets: Sequence[str]) -> None:
    with said("form", "", "filters", action="/tasks", method="get", aria_label="Filters"):
        choice("run", "run", run_names, given.get("run", ""), "choose one")
        choice("taskset", "taskset", tasksets, given.get("taskset", ""))
        choice("solved", "solved", SOLVED, given.get("solved", ""))
        choice("sort", "order", SORTS, given.get("sort", ""), NEWEST)
        field("text", "text of the prompt", "search", given, "wide")
        said("button", "Show", "main", type="submit")
        if set(given) - {"run"}:
            said("a", "Without filters", "button", href=layout.place("tasks", run=given.get("run")))


def _row(run: str | None, row: Mapping[str, Any]) -> list[Cell]:
    rate = row["solved"] / row["scored"] if row["scored"] else None
    prompt = layout.beginning(row["prompt"], PROMPT) or f"task {row['id']}"
    return [
        Cell(prompt, layout.place("task", row["id"], run=run)),
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
    """A pass rate; "" where nothing was judged."""
    return "" if share is None else f"{share:.1%}"
