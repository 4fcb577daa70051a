"""Similar rows: experiences whose responses mean nearly what some words do, or what another response does."""

import asyncio
from collections.abc import Mapping
from typing import Any

from nicegui import ui
from psycopg.rows import DictRow

from trinity_db.page import layout, questions
from trinity_db.page.elements import Cell, Column, Rows, said
from trinity_db.page.experiences import RESPONSE
from trinity_db.page.reader import Reader
from trinity_db.processors.meaning import Models

COLUMNS = (
    Column("experience"),
    Column("likeness", "number", "cosine of the vectors of the two responses; 1: the same"),
    Column("run"),
    Column("state"),
    Column("version", "number", "newest policy version that wrote its tokens"),
    Column("reward", "number"),
    Column("response", "long", "its beginning"),
)
LONGEST = 2_000  # characters of what is looked for
LOOKING = "It looks at all vectors. A model that makes one of your words takes some seconds to load."
NO_VECTORS = (
    "There are no vectors to compare. The clean step embed makes them: put it into processors.clean of the "
    "run's configuration.\nWithout vectors, trinity-db search finds rows by their words."
)


def register(reader: Reader, models: Models) -> None:
    """Add the page. `models` make the vectors of words."""
    turn = asyncio.Lock()  # a search reads every vector, and is not to keep other pages waiting

    @ui.page("/similar", response_timeout=layout.RESPONSE_SECONDS)
    async def similar_page(to: str = "", words: str = "", run: str = "") -> None:
        words, run = layout.text(words).strip()[:LONGEST], layout.text(run).strip()
        with layout.frame("Similar rows", "Experiences"):
            _form(words, run)
            number = layout.identifier(to)
            if to and number is None:
                said("p", "Experiences have whole numbers.", "notice", role="alert")
            elif number is not None or words:
                if number is not None:
                    with said("p", "Responses that mean nearly what this one does: ", "explained"):
                        said("a", f"experience {number}", href=layout.place("experience", number))
                _look(reader, turn, words if number is None else number, run or None, models)


def _look(reader: Reader, turn: asyncio.Lock, wanted: int | str, run: str | None, models: Models) -> None:
    progress = said("p", LOOKING, "explained", role="status")
    look = layout.once(reader, questions.similar(wanted, run, models), _show)

    async def search() -> None:
        async with turn:
            await look.look()
        progress.set_visibility(False)

    layout.later(search)


def _form(words: str, run: str) -> None:
    with said("form", "", "filters", action="/similar", method="get", aria_label="Search by meaning"):
        with said("label", "what the response means, in words", "wide"):
            said("input", name="words", type="search", value=words, autocomplete="off", maxlength=LONGEST)
        with said("label", "run or data set (all if empty)"):
            said("input", name="run", type="text", value=run, autocomplete="off")
        said("button", "Search", "main", type="submit")


def _show(rows: list[DictRow] | None) -> None:
    if rows is None:
        said("p", NO_VECTORS, "empty")
        return
    Rows("similar rows", COLUMNS, "No other row has a vector.").show([_row(row) for row in rows])


def _row(row: Mapping[str, Any]) -> list[Cell]:
    return [
        Cell(str(row["experience"]), layout.place("experience", row["experience"])),
        Cell(layout.number(row["score"])),
        Cell(row["run"], layout.place("run", row["run"])),
        layout.state(row["state"]),
        Cell(layout.number(row["version"])),
        Cell(layout.number(row["reward"])),
        Cell(layout.beginning(row["response"], RESPONSE)),
    ]
