"""Experiences by filters. The filter is the link of the page, so that it can be kept and sent."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from nicegui import ui
from starlette.requests import Request

from trinity_db.errors import ConfigError
from trinity_db.page import layout, questions
from trinity_db.page.elements import Cell, Column, Rows, said
from trinity_db.page.forms import MAX_VERSION, choice, field, one_of, real, values, whole
from trinity_db.page.layout import Look
from trinity_db.page.questions import Experiences, Filter
from trinity_db.page.reader import Reader
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
    Column("text", "long", "the beginning of the prompt, then of the response"),
)
EMPTY = "No experience meets these filters. Take one away, or choose another run."
NOTHING = (
    "There are no experiences in this store yet.\n"
    "trinity-db demo makes some, trinity-db import brings data, trinity-db run samples them."
)
LONGEST = 2_000  # characters of a condition, which is a part of the link
PROMPT, RESPONSE = 110, 220  # characters of a text in the table
INPUTS = (
    ("version", "policy version", "number"),
    ("reward_from", "reward from", "text"),
    ("reward_to", "reward to", "text"),
    ("task", "task (its key)", "text"),
    ("reason", "reason of the drop", "text"),
)


def register(reader: Reader) -> None:
    """Add the page."""

    @ui.page("/experiences", response_timeout=layout.RESPONSE_SECONDS)
    async def experiences_page(request: Request) -> None:
        given = {name: value for name, value in request.query_params.items() if value.strip()}
        with layout.frame("Experiences", "Experiences"):
            try:
                wanted = read_filter(given)
            except ConfigError as error:
                said("p", str(error), "notice", role="alert")
                said("a", "Without filters", "button", href="/experiences")
                return
            page = _Experiences(reader, wanted, given)
            await page.look.look()


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
        read = questions.experiences(wanted)
        self.look = Look(reader, read, self.show, lambda: None, follows=False)
        empty = EMPTY if any(value is not None for value in asdict(wanted).values()) else NOTHING
        self._table = Rows("experiences", COLUMNS, empty)
        self._more = said("div", "", "more")
        with self._form:
            _form(given, [wanted.run] if wanted.run else [])

    def show(self, found: Experiences) -> None:
        self._form.clear()
        with self._form:
            _form(self._given, found.run_names)
        self._table.show([_row(row) for row in found.rows])
        self._more.clear()
        with self._more:
            if found.before is not None:
                rest = {**self._given, "before": found.before}
                said("a", "Older", "button", href=layout.place("experiences", **rest), rel="next")
            if self._wanted.before is not None:
                rest = {**self._given, "before": None}
                said("a", "Newest", "button", href=layout.place("experiences", **rest))
            if self._wanted.text or self._wanted.where:
                said("span", f"Looked for in {found.looked_at:,} rows that meet the other filters.")


def _form(given: Mapping[str, str], runs: list[str]) -> None:
    """Filters as a plain form: it works by keyboard, and its fields become the link."""
    with said("form", "", "filters", action="/experiences", method="get", aria_label="Filters"):
        choice("run", "run or data set", runs, given.get("run", ""))
        choice("state", "state", [state.value for state in ExperienceState], given.get("state", ""))
        for name, label, kind in INPUTS:
            field(name, label, kind, given)
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
    text = f"{layout.beginning(row['prompt'], PROMPT)}\n{layout.beginning(row['response'], RESPONSE)}"
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
        Cell(text.strip()),
    ]


def _condition(text: str) -> str:
    if len(text) > LONGEST:
        raise ConfigError(
            f"A condition has {LONGEST:,} characters at most; SQL takes longer ones on its page."
        )
    return layout.text(text)
