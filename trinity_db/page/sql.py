"""SQL: a field for a statement, what it can be about, and its rows as a table and a file.

The statement is the link of the page. A link fills in the field, and a person runs it: the link of a stranger
must not make the server work.
"""

import asyncio
from collections.abc import AsyncIterator, Generator
from threading import Lock
from urllib.parse import quote

from fastapi import Response
from fastapi.responses import PlainTextResponse, StreamingResponse
from nicegui import app, ui
from starlette.types import Receive, Scope, Send

from trinity_db.errors import TrinityError
from trinity_db.inspection.formats import NUMBERS
from trinity_db.page import layout, questions
from trinity_db.page.elements import Column, Editor, Relations, Rows, said
from trinity_db.page.examples import examples
from trinity_db.page.questions import Catalogue
from trinity_db.page.reader import STATEMENT_SECONDS, Reader
from trinity_db.page.rights import visitor
from trinity_db.page.statements import Answer, Refused, Running, Statements

LONGEST = 10_000  # characters of a statement
LONGEST_LINK = 16_000  # characters; servers and proxies refuse longer ones
NOTICE = 1_000  # characters of an error; it may quote a value of megabytes
EXPLAINED = (
    "One statement at a time, by a login that may only read. It finds tables and views without their schema. "
    f"It may take {STATEMENT_SECONDS:.0f} s; trinity-db sql takes longer ones."
)


def register(reader: Reader) -> None:
    """Add the page, and the download of rows."""
    statements = Statements(reader.url)

    @ui.page("/sql", response_timeout=layout.RESPONSE_SECONDS)
    async def sql_page(q: str = "") -> None:
        with layout.frame("SQL", "SQL"):
            said("p", EXPLAINED, "explained")
            with said("div", "", "sql"):
                with said("div"):
                    page = _Sql(statements, layout.text(q)[:LONGEST])
                with said("aside", "", aria_label="Questions and tables"):
                    look = layout.once(reader, questions.catalogue, _catalogue)
            ui.context.client.on_delete(page.cancel)
            await look.look()

    @app.get("/sql.csv")
    def rows_as_csv(ticket: str = "") -> Response:
        parts = statements.download(ticket)
        try:
            first = next(parts)
        except TrinityError as error:
            return PlainTextResponse(f"{error}\n", 400)
        headers = {"content-disposition": 'attachment; filename="rows.csv"', "cache-control": "no-store"}
        return _Download(first, parts, headers)


class _Sql:
    """One visitor's statement: none runs, or one."""

    def __init__(self, statements: Statements, text: str) -> None:
        self._statements = statements
        self._running: Running | None = None
        self._editor = Editor(text, LONGEST, self._run, self.cancel)
        layout.later(self._editor.listen)
        self._notice = said("p", "", "notice", role="alert")
        self._notice.set_visibility(False)
        self._progress = said("p", "", "explained", role="status")
        self._result = said("div")
        self._seconds = 0
        self._clock = ui.timer(1.0, self._tick, active=False)

    async def cancel(self) -> None:
        """End the statement that runs, if one does."""
        if self._running is not None:
            await asyncio.to_thread(self._running.cancel)

    async def _run(self, text: str) -> None:
        text = layout.text(text)[:LONGEST]
        await self.cancel()
        self._notice.set_visibility(False)
        self._result.clear()
        if not text.strip():
            self._tell("Write a statement first, or choose one of the questions.")
            return
        self._link(text)
        running = self._running = self._statements.running(text)
        self._begin()
        try:
            answer = await self._statements.carry_out(running, visitor())
        except TrinityError as error:
            if self._running is running:
                self._end("")
                self._refuse(error, text)
        else:
            if self._running is running:
                self._end(_summary(answer))
                with self._result:
                    _show(answer)

    def _begin(self) -> None:
        self._seconds = 0
        self._progress.text = "It runs."
        self._clock.activate()
        self._editor.show(runs=True)

    def _tick(self) -> None:
        self._seconds += 1
        self._progress.text = f"It runs for {self._seconds} s."

    def _end(self, said_of: str) -> None:
        self._running = None
        self._clock.deactivate()
        self._progress.text = said_of
        self._editor.show(runs=False)

    def _refuse(self, error: TrinityError, text: str) -> None:
        self._tell(str(error))
        if isinstance(error, Refused) and error.place is not None:
            first = _units(text[: error.place.character])
            wrong = text[error.place.character :].split(maxsplit=1)[:1]
            self._editor.show(runs=False, mark=(first, first + _units("".join(wrong))))

    def _tell(self, text: str) -> None:
        self._notice.text = layout.beginning(text, NOTICE)
        self._notice.set_visibility(True)

    def _link(self, text: str) -> None:
        link = layout.place("sql", q=text)
        ui.navigate.history.replace(link if len(link) <= LONGEST_LINK else "/sql")


def _units(text: str) -> int:
    """How many characters a browser counts in a text."""
    return len(text.encode("utf-16-le")) // 2


def _summary(answer: Answer) -> str:
    if not answer.columns:
        return "The statement is carried out. It has no rows."
    rows = layout.count(len(answer.rows), "row", "rows")
    took = f"in {answer.seconds:.2f} s"
    return f"{rows} {took}." if answer.is_all else f"The first {rows}, {took}; the download has all."


def _show(answer: Answer) -> None:
    if not answer.columns:
        return
    with said("div", "", "more").style("margin-bottom: 0.9rem"):
        place = layout.place("sql.csv", ticket=answer.ticket)
        said("a", "All rows as CSV", "button", href=place)
    columns = [
        Column(one.name, "number" if one.type in NUMBERS and not one.is_array else "", hint=one.type)
        for one in answer.columns
    ]
    Rows("rows", columns, "The statement has no rows.").show_texts(answer.rows)


class _Download(StreamingResponse):
    """The parts of a download. Its statement is ended if the visitor goes."""

    media_type = "text/csv; charset=utf-8"

    def __init__(self, first: str, rest: Generator[str], headers: dict[str, str]) -> None:
        self._first, self._rest = first, rest
        self._turn = Lock()  # the visitor may go while a thread waits for the next part
        super().__init__(self._parts(), headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            asyncio.get_running_loop().run_in_executor(None, self._end)

    async def _parts(self) -> AsyncIterator[str]:
        yield self._first
        while (part := await asyncio.to_thread(self._next)) is not None:
            yield part

    def _next(self) -> str | None:
        with self._turn:
            return next(self._rest, None)

    def _end(self) -> None:
        with self._turn:
            self._rest.close()


def _catalogue(found: Catalogue) -> None:
    said("h2", "Questions").style("margin-top: 0")
    said("p", "A question fills in its statement.", "explained")
    part = ""
    for one in examples(found.newest_run):
        if one.part != part:
            part = one.part
            opened = said("details")
            with opened:
                said("summary", part)
        with opened:
            said("a", one.question, "question", href=f"/sql?q={quote(one.statement)}")
    layout.heading("Tables and views", "What they hold, and each of their columns.")
    Relations([[one["name"], one["kind"], one["comment"], one["columns"]] for one in found.relations])
