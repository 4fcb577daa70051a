"""The page of experiences. Its filters are in the link, so that people can keep and send it."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any
from urllib.parse import parse_qsl

from nicegui import app, ui
from psycopg.rows import DictRow
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from trinity_db.errors import ConfigError
from trinity_db.page import layout, questions
from trinity_db.page.approval import approval, is_approved
from trinity_db.page.elements import Cell, Column, Rows, element
from trinity_db.page.forms import MAX_VERSION, choice, field, one_of, real, values, whole
from trinity_db.page.layout import Look
from trinity_db.page.questions import Experiences, Filter
from trinity_db.page.reader import Reader
from trinity_db.page.rights import SCOPE, visitor
from trinity_db.schema.states import ExperienceState

COLUMNS = (
    Column("experience"),
    Column("run"),
    Column("state"),
    Column("group"),
    Column("version", "number", "policy versions that sampled its tokens"),
    Column("reward", "number"),
    Column("prompt tokens", "number"),
    Column("response tokens", "number"),
    Column("uses", "number", "committed batches that used it"),
    Column("question", "long", "beginning of the last user message, or of the prompt"),
    Column("response", "long", "beginning of the response"),
)
UNAPPROVED = "The condition in this link was not run, as it did not come from this form: press Show to run."
NOT_YET = "No match in the rows searched so far. Older rows have not been searched."
EMPTY = "No experience meets these filters. Remove one, or choose another run."
NOTHING = (
    "There are no experiences in this store yet.\n"
    "trinity-db demo creates some, trinity-db import brings data, trinity-db run samples them."
)
SEARCH_SECONDS = 20.0  # seconds until the page asks whether to search further: some million rows
MAX_FORM = 64 * 1024  # bytes of a form
LONGEST = 2_000  # characters of a condition, which is part of the link
QUESTION, RESPONSE = 160, 160  # characters of each text in the table
INPUTS = (
    ("version", "policy version"),
    ("reward_from", "reward from"),
    ("reward_to", "reward to"),
    ("task", "task (its key)"),
    ("reason", "drop reason"),
)


def register(reader: Reader) -> None:
    """Add the page."""

    @ui.page("/experiences", response_timeout=layout.RESPONSE_SECONDS)
    async def experiences_page(request: Request) -> None:
        parameters = {name: value for name, value in request.query_params.items() if value.strip()}
        with layout.frame("Experiences", "Experiences"):
            try:
                filters = read_filter(parameters)
                if filters.where is not None and not is_approved(
                    visitor().name, filters.where, filters.approved or ""
                ):
                    raise ConfigError(UNAPPROVED)
            except ConfigError as error:
                element("p", str(error), "notice", role="alert")
                _form(parameters, [parameters["run"]] if "run" in parameters else [])
                return
            page = _Experiences(reader, filters, parameters)
            if filters.is_search:
                layout.later(page.look.look)  # it continues only while a browser shows the page
            else:
                await page.look.look()

    app.post("/experiences")(_send_on)


def read_filter(parameters: Mapping[str, str]) -> Filter:
    """Parse a link into a filter.

    Raises:
        ConfigError: if a value is invalid; the message names valid ones.
    """
    readers: dict[str, Callable[[str], Any]] = {
        "version": whole("policy version", MAX_VERSION),
        "before": whole("row's id", layout.MAX_ID),
        "reward_from": real("reward"),
        "reward_to": real("reward"),
        "state": one_of("state", list(ExperienceState)),
        "where": _condition,
    }
    return Filter(**values(Filter, readers, parameters))


class _Experiences:
    def __init__(self, reader: Reader, filters: Filter, parameters: Mapping[str, str]) -> None:
        self._filters = filters
        self._parameters = parameters
        self._form = element("div")
        if filters.is_search:
            self.look: Look[Experiences] = _Search(reader, filters, self.show, self._tell, self._fail)
        else:
            read = questions.experiences(filters)
            self.look = Look(reader, read, self.show, lambda: None, follows=False)
        is_filtered = any(value is not None for value in asdict(filters).values())
        self._progress = element("p", "", "explained", role="status")
        self._table = Rows("experiences", COLUMNS, EMPTY if is_filtered else NOTHING)
        if filters.is_search:
            self._tell(0, 0)
        self._more = element("div", "", "more")
        with self._form:
            _form(parameters, [filters.run] if filters.run else [])

    def show(self, page: Experiences) -> None:
        self._form.clear()
        with self._form:
            _form(self._parameters, page.run_names)
        self._table.show([_row(row) for row in page.rows])
        if self._filters.is_search:
            self._progress.text = _looked(page)
            self._table.say_empty(EMPTY if page.before is None else NOT_YET)
        self._more.clear()
        with self._more:
            if page.before is not None:
                parameters = {**self._parameters, "before": page.before}
                word = "Older" if page.rows or not self._filters.is_search else "Search further"
                element("a", word, "button", href=layout.link("experiences", **parameters), rel="next")
            if self._filters.before is not None:
                parameters = {**self._parameters, "before": None}
                element("a", "Newest", "button", href=layout.link("experiences", **parameters))

    def _tell(self, looked_at: int, num_found: int) -> None:
        """Show the progress of the search."""
        rows = layout.count(num_found, "row", "rows")
        self._progress.text = f"Searching: {rows} found in {looked_at:,} so far."
        self._table.say_empty("No row found yet.")

    def _fail(self) -> None:
        """Clear the progress; a notice explains why rows are missing."""
        self._progress.text = ""
        self._table.say_empty("The search did not finish.")


class _Search(Look[Experiences]):
    """Searches rows for a text or a condition, window after window, while the visitor is there."""

    def __init__(
        self,
        reader: Reader,
        filters: Filter,
        show: Callable[[Experiences], None],
        tell: Callable[[int, int], None],
        fail: Callable[[], None],
    ) -> None:
        super().__init__(reader, questions.experiences(filters), show, lambda: None, follows=False)
        self._searches, self._filters = reader, filters
        self._tell_progress, self._fail = tell, fail
        self._task: asyncio.Task[Any] | None = None
        ui.context.client.on_delete(self._leave)

    async def ask(self) -> Experiences:
        self._task = asyncio.current_task()
        begun = time.monotonic()
        rows: list[DictRow] = []
        before, looked_at = self._filters.before, 0
        while True:
            part = await self._searches.search(
                questions.experiences(replace(self._filters, before=before)), self._visitor
            )
            rows += part.rows
            looked_at += part.looked_at
            before = part.before
            if len(rows) > questions.ROWS:
                rows = rows[: questions.ROWS]
                before = rows[-1]["id"]
            is_over = len(rows) == questions.ROWS or time.monotonic() - begun > SEARCH_SECONDS
            if before is None or is_over:
                return Experiences(rows, before, looked_at, part.run_names)
            self._tell_progress(looked_at, len(rows))

    def _tell(self, text: str) -> None:
        super()._tell(text)
        self._fail()

    def _leave(self) -> None:
        if self._task is not None:
            self._task.cancel()


def _looked(page: Experiences) -> str:
    """Describe in a sentence how many rows a search has read."""
    if page.before is None:
        return f"Searched all {page.looked_at:,} rows that meet the other filters."
    return f"Searched the newest {page.looked_at:,} rows that meet the other filters, but no older ones yet."


async def _send_on(request: Request) -> Response:
    """Redirect to the link of a submitted form, with the approval of its condition."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_FORM:
            return PlainTextResponse("The filters are too long.\n", 413)
    parameters = {name: value for name, value in parse_qsl(body.decode("utf-8", "replace")) if value.strip()}
    parameters.pop("approved", None)
    if where := layout.text(parameters.get("where", "")).strip():
        parameters["approved"] = approval(request.scope[SCOPE]().name, where)
    return RedirectResponse(layout.link("experiences", **parameters), 303)


def _form(parameters: Mapping[str, str], runs: list[str]) -> None:
    """Show the filters as a plain HTML form: it works by keyboard, and its fields become the link."""
    # Sent with POST: no other site can do that, and a condition runs only then.
    with element("form", "", "filters", action="/experiences", method="post", aria_label="Filters"):
        choice("run", "run or data set", runs, parameters.get("run", ""))
        choice("state", "state", [state.value for state in ExperienceState], parameters.get("state", ""))
        for name, label in INPUTS:
            field(name, label, "text", parameters)
        field("text", "text in prompt or response", "search", parameters, "wide")
        with element("label", "condition in SQL on experience_view", "wide"):
            element(
                "input",
                name="where",
                type="text",
                value=parameters.get("where", ""),
                autocomplete="off",
                maxlength=LONGEST,
                spellcheck="false",
                placeholder="response_length > 100 and not greedy",
            )
        element("button", "Show", "main", type="submit")
        if parameters:
            element("a", "Without filters", "button", href="/experiences")
        element("a", "Search by meaning", "button", href=layout.link("similar", run=parameters.get("run")))


def _row(row: Mapping[str, Any]) -> list[Cell]:
    group = row["group_id"]
    return [
        Cell(str(row["id"]), layout.link("experience", row["id"])),
        Cell(row["run"], layout.link("run", row["run"])),
        layout.state(row["state"]),
        Cell("" if group is None else str(group), None if group is None else layout.link("group", group)),
        Cell(layout.versions(row["version_min"], row["version_max"])),
        Cell(layout.number(row["reward"])),
        Cell(layout.number(row["prompt_length"])),
        Cell(layout.number(row["response_length"])),
        Cell(str(row["use_count"])),
        Cell(layout.beginning(row["question"], QUESTION)),
        Cell(layout.beginning(row["response"], RESPONSE)),
    ]


def _condition(text: str) -> str:
    if len(text) > LONGEST:
        raise ConfigError(f"A condition may have at most {LONGEST:,} characters; the SQL page accepts more.")
    return layout.text(text)
