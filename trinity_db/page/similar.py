"""The page of similar rows: responses similar in meaning to words or to another response."""

import asyncio
from collections.abc import Mapping
from typing import Any

from nicegui import ui
from psycopg.rows import DictRow

from trinity_db.page import layout, questions
from trinity_db.page.elements import Cell, Column, Rows, element
from trinity_db.page.experiences import RESPONSE
from trinity_db.page.reader import Reader
from trinity_db.processors.jobs.semantic_search import Models

COLUMNS = (
    Column("experience"),
    Column("likeness", "number", "cosine of the vectors of the two responses; 1: the same"),
    Column("run"),
    Column("state"),
    Column("version", "number", "newest policy version that sampled its tokens"),
    Column("reward", "number"),
    Column("response", "long", "beginning of the response"),
)
LONGEST = 2_000  # characters of the search text
LOOKING = "Searching all vectors. The model for a search by words takes a few seconds to load."
NO_VECTORS = (
    "There are no vectors to compare. The clean step embed creates them: add it to processors.clean in the "
    "run's configuration.\nWithout vectors, trinity-db search finds rows by their words."
)


def register(reader: Reader, models: Models) -> None:
    """Add the page. `models` create the vectors of words."""
    turn = asyncio.Lock()  # a search reads every vector, and must not block other pages

    @ui.page("/similar", response_timeout=layout.RESPONSE_SECONDS)
    async def similar_page(to: str = "", words: str = "", run: str = "") -> None:
        words, run = layout.text(words).strip()[:LONGEST], layout.text(run).strip()
        with layout.frame("Similar rows", "Experiences"):
            _form(words, run)
            number = layout.identifier(to)
            if to and number is None:
                element("p", "Experience ids are whole numbers.", "notice", role="alert")
            elif number is not None or words:
                if number is not None:
                    with element("p", "Responses similar in meaning to that of ", "explained"):
                        element("a", f"experience {number}", href=layout.link("experience", number))
                _look(reader, turn, words if number is None else number, run or None, models)


def _look(reader: Reader, turn: asyncio.Lock, sought: int | str, run: str | None, models: Models) -> None:
    progress = element("p", LOOKING, "explained", role="status")
    look = layout.once(reader, questions.similar(sought, run, models), _show)

    async def search() -> None:
        async with turn:
            await look.look()
        progress.set_visibility(False)

    layout.later(search)


def _form(words: str, run: str) -> None:
    with element("form", "", "filters", action="/similar", method="get", aria_label="Search by meaning"):
        with element("label", "meaning of the response, in words", "wide"):
            element("input", name="words", type="search", value=words, autocomplete="off", maxlength=LONGEST)
        with element("label", "run or data set (all if empty)"):
            element("input", name="run", type="text", value=run, autocomplete="off")
        element("button", "Search", "main", type="submit")


def _show(rows: list[DictRow] | None) -> None:
    if rows is None:
        element("p", NO_VECTORS, "empty")
        return
    Rows("similar rows", COLUMNS, "No other row has a vector.").show([_row(row) for row in rows])


def _row(row: Mapping[str, Any]) -> list[Cell]:
    return [
        Cell(str(row["experience"]), layout.link("experience", row["experience"])),
        Cell(layout.number(row["score"])),
        Cell(row["run"], layout.link("run", row["run"])),
        layout.state(row["state"]),
        Cell(layout.number(row["version"])),
        Cell(layout.number(row["reward"])),
        Cell(layout.beginning(row["response"], RESPONSE)),
    ]
