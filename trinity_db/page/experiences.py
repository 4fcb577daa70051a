"""Experiences by filters. The filter is the link of the page, so that it can be kept and sent."""

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
from trinity_db.page.elements import Cell, Column, Rows, said
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
    Column("version", "number", "policy versions that wrote its tokens"),
    Column("reward", "number"),
    Column("prompt tokens", "number"),
    Column("response tokens", "number"),
    Column("uses", "number", "committed batches with it"),
    Column("question", "long", "the beginning of the last message of the user, or of the prompt"),
    Column("response", "long", "its beginning"),
)
UNAPPROVED = "The condition of this link was not run, since it did not come from this form: Show runs it."
NOT_YET = "No row found in those that were searched. Older rows were not looked at."
EMPTY = "No experience meets these filters. Take one away, or choose another run."
NOTHING = (
    "There are no experiences in this store yet.\n"
    "trinity-db demo makes some, trinity-db import brings data, trinity-db run samples them."
)
SEARCH_SECONDS = 20.0  # after which a person is asked whether to look further: some million rows
MAX_FORM = 64 * 1024  # bytes of a form
LONGEST = 2_000  # characters of a condition, which is a part of the link
QUESTION, RESPONSE = 160, 160  # characters of a text in the table
INPUTS = (
    ("version", "policy version"),
    ("reward_from", "reward from"),
    ("reward_to", "reward to"),
    ("task", "task (its key)"),
    ("reason", "reason of the drop"),
)


def register(reader: Reader) -> None:
    """Add the page."""

    @ui.page("/experiences", response_timeout=layout.RESPONSE_SECONDS)
    async def experiences_page(request: Request) -> None:
        given = {name: value for name, value in request.query_params.items() if value.strip()}
        with layout.frame("Experiences", "Experiences"):
            try:
                wanted = read_filter(given)
                if wanted.where is not None and not is_approved(
                    visitor().name, wanted.where, wanted.approved or ""
                ):
                    raise ConfigError(UNAPPROVED)
            except ConfigError as error:
                said("p", str(error), "notice", role="alert")
                _form(given, [given["run"]] if "run" in given else [])
                return
            page = _Experiences(reader, wanted, given)
            if wanted.is_search:
                layout.later(page.look.look)  # it goes on only while a browser shows the page
            else:
                await page.look.look()

    app.post("/experiences")(_send_on)


def read_filter(given: Mapping[str, str]) -> Filter:
    """The filter that a link names.

    Raises:
        ConfigError: a value is none of its kind; with what may stand there.
    """
    readers: dict[str, Callable[[str], Any]] = {
        "version": whole("policy version", MAX_VERSION),
        "before": whole("row's id", layout.MAX_ID),
        "reward_from": real("reward"),
        "reward_to": real("reward"),
        "state": one_of("state", list(ExperienceState)),
        "where": _condition,
    }
    return Filter(**values(Filter, readers, given))


class _Experiences:
    def __init__(self, reader: Reader, wanted: Filter, given: Mapping[str, str]) -> None:
        self._wanted = wanted
        self._given = given
        self._form = said("div")
        if wanted.is_search:
            self.look: Look[Experiences] = _Search(reader, wanted, self.show, self._tell, self._fail)
        else:
            read = questions.experiences(wanted)
            self.look = Look(reader, read, self.show, lambda: None, follows=False)
        is_filtered = any(value is not None for value in asdict(wanted).values())
        self._progress = said("p", "", "explained", role="status")
        self._table = Rows("experiences", COLUMNS, EMPTY if is_filtered else NOTHING)
        if wanted.is_search:
            self._tell(0, 0)
        self._more = said("div", "", "more")
        with self._form:
            _form(given, [wanted.run] if wanted.run else [])

    def show(self, found: Experiences) -> None:
        self._form.clear()
        with self._form:
            _form(self._given, found.run_names)
        self._table.show([_row(row) for row in found.rows])
        if self._wanted.is_search:
            self._progress.text = _looked(found)
            self._table.say_empty(EMPTY if found.before is None else NOT_YET)
        self._more.clear()
        with self._more:
            if found.before is not None:
                rest = {**self._given, "before": found.before}
                word = "Older" if found.rows or not self._wanted.is_search else "Look further"
                said("a", word, "button", href=layout.place("experiences", **rest), rel="next")
            if self._wanted.before is not None:
                rest = {**self._given, "before": None}
                said("a", "Newest", "button", href=layout.place("experiences", **rest))

    def _tell(self, looked_at: int, num_found: int) -> None:
        """Say how far the search is."""
        rows = layout.count(num_found, "row", "rows")
        self._progress.text = f"Searching: {rows} found in {looked_at:,} so far."
        self._table.say_empty("No row found yet.")

    def _fail(self) -> None:
        """A notice says why there are no rows."""
        self._progress.text = ""
        self._table.say_empty("The search did not end.")


class _Search(Look[Experiences]):
    """Looks for a text or a condition in window after window of rows, while the visitor is there."""

    def __init__(
        self,
        reader: Reader,
        wanted: Filter,
        show: Callable[[Experiences], None],
        tell: Callable[[int, int], None],
        fail: Callable[[], None],
    ) -> None:
        super().__init__(reader, questions.experiences(wanted), show, lambda: None, follows=False)
        self._searches, self._wanted = reader, wanted
        self._tell_progress, self._fail = tell, fail
        self._task: asyncio.Task[Any] | None = None
        ui.context.client.on_delete(self._leave)

    async def ask(self) -> Experiences:
        self._task = asyncio.current_task()
        begun = time.monotonic()
        rows: list[DictRow] = []
        before, looked_at = self._wanted.before, 0
        while True:
            part = await self._searches.search(
                questions.experiences(replace(self._wanted, before=before)), self._visitor
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


def _looked(found: Experiences) -> str:
    """How much a search has looked at, in a sentence."""
    if found.before is None:
        return f"Searched all {found.looked_at:,} rows that meet the other filters."
    return f"Searched the newest {found.looked_at:,} rows that meet the other filters, and no older ones yet."


async def _send_on(request: Request) -> Response:
    """The link of what a form says, with the approval of its condition."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_FORM:
            return PlainTextResponse("The filters are too long.\n", 413)
    given = {name: value for name, value in parse_qsl(body.decode("utf-8", "replace")) if value.strip()}
    given.pop("approved", None)
    if where := layout.text(given.get("where", "")).strip():
        given["approved"] = approval(request.scope[SCOPE]().name, where)
    return RedirectResponse(layout.place("experiences", **given), 303)


def _form(given: Mapping[str, str], runs: list[str]) -> None:
    """Filters as a plain form: it works by keyboard, and its fields become the link."""
    # Sent by POST: no other site can, and only then a condition is run.
    with said("form", "", "filters", action="/experiences", method="post", aria_label="Filters"):
        choice("run", "run or data set", runs, given.get("run", ""))
        choice("state", "state", [state.value for state in ExperienceState], given.get("state", ""))
        for name, label in INPUTS:
            field(name, label, "text", given)
        field("text", "text in prompt or response", "search", given, "wide")
        with said("label", "condition in SQL on experience_view", "wide"):
            said(
                "input",
                name="where",
                type="text",
                value=given.get("where", ""),
                autocomplete="off",
                maxlength=LONGEST,
                spellcheck="false",
                placeholder="response_length > 100 and not greedy",
            )
        said("button", "Show", "main", type="submit")
        if given:
            said("a", "Without filters", "button", href="/experiences")
        said("a", "Search by meaning", "button", href=layout.place("similar", run=given.get("run")))


def _row(row: Mapping[str, Any]) -> list[Cell]:
    group = row["group_id"]
    return [
        Cell(str(row["id"]), layout.place("experience", row["id"])),
        Cell(row["run"], layout.place("run", row["run"])),
        layout.state(row["state"]),
        Cell("" if group is None else str(group), None if group is None else layout.place("group", group)),
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
        raise ConfigError(
            f"A condition has {LONGEST:,} characters at most; SQL takes longer ones on its page."
        )
    return layout.text(text)
