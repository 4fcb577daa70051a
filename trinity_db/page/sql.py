"""The SQL page: a field for a statement, the tables and views, and the rows as a table and a file.

The statement is part of the link. A link only fills in the field, and a person runs the statement: a link
from a stranger must not load the server.
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
from trinity_db.insight.formats import NUMBERS
from trinity_db.page import layout, questions
from trinity_db.page.elements import Column, Editor, Relations, Rows, element
from trinity_db.page.examples import examples
from trinity_db.page.questions import Catalogue
from trinity_db.page.reader import STATEMENT_SECONDS, Reader
from trinity_db.page.rights import visitor
from trinity_db.page.statements import Answer, Refused, Running, Statements

LONGEST = 10_000  # characters of a statement
LONGEST_LINK = 16_000  # characters; servers and proxies refuse longer ones
NOTICE = 1_000  # characters of an error, which may quote a value of megabytes
EXPLAINED = (
    "One statement at a time, with a read-only login. It finds tables and views without their schema. "
    f"A statement may take {STATEMENT_SECONDS:.0f} s; trinity-db sql allows more."
)


def register(reader: Reader) -> None:
    """Add the page, and the download of rows."""
    statements = Statements(reader.url)

    @ui.page("/sql", response_timeout=layout.RESPONSE_SECONDS)
    async def sql_page(q: str = "") -> None:
        with layout.frame("SQL", "SQL"):
            element("p", EXPLAINED, "explained")
            with element("div", "", "sql"):
                with element("div"):
                    page = _Sql(statements, layout.text(q)[:LONGEST])
                with element("aside", "", aria_label="Questions and tables"):
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
    """State of one visitor's statement; at most one runs."""

    def __init__(self, statements: Statements, text: str) -> None:
        self._statements = statements
        self._running: Running | None = None
        self._editor = Editor(text, LONGEST, self._run, self.cancel)
        layout.later(self._editor.listen)
        self._notice = element("p", "", "notice", role="alert")
        self._notice.set_visibility(False)
        self._progress = element("p", "", "explained", role="status")
        self._result = element("div")
        self._seconds = 0
        self._clock = ui.timer(1.0, self._tick, active=False)

    async def cancel(self) -> None:
        """Cancel the running statement, if any."""
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
        self._progress.text = "Running."
        self._clock.activate()
        self._editor.show(runs=True)

    def _tick(self) -> None:
        self._seconds += 1
        self._progress.text = f"Running for {self._seconds} s."

    def _end(self, said_of: str) -> None:
        self._running = None
        self._clock.deactivate()
        self._progress.text = said_of
        self._editor.show(runs=False)

    def _refuse(self, error: TrinityError, text: str) -> None:
        self._tell(str(error))
        if isinstance(error, Refused) and error.position is not None:
            first = _units(text[: error.position.character])
            wrong = text[error.position.character :].split(maxsplit=1)[:1]
            self._editor.show(runs=False, mark=(first, first + _units("".join(wrong))))

    def _tell(self, text: str) -> None:
        self._notice.text = layout.beginning(text, NOTICE)
        self._notice.set_visibility(True)

    def _link(self, text: str) -> None:
        link = layout.link("sql", q=text)
        ui.navigate.history.replace(link if len(link) <= LONGEST_LINK else "/sql")


def _units(text: str) -> int:
    """Length of a text in UTF-16 units, as a browser counts it."""
    return len(text.encode("utf-16-le")) // 2


def _summary(answer: Answer) -> str:
    if not answer.columns:
        return "The statement was executed. It returned no rows."
    rows = layout.count(len(answer.rows), "row", "rows")
    took = f"in {answer.seconds:.2f} s"
    return f"{rows} {took}." if answer.is_all else f"The first {rows}, {took}; the download has all."


def _show(answer: Answer) -> None:
    if not answer.columns:
        return
    with element("div", "", "more").style("margin-bottom: 0.9rem"):
        link = layout.link("sql.csv", ticket=answer.ticket)
        element("a", "All rows as CSV", "button", href=link)
    columns = [
        Column(
            column.name, "number" if column.type in NUMBERS and not column.is_array else "", hint=column.type
        )
        for column in answer.columns
    ]
    Rows("rows", columns, "The statement returned no rows.").show_texts(answer.rows)


class _Download(StreamingResponse):
    """Streams a download. Its statement is cancelled if the visitor leaves."""

    media_type = "text/csv; charset=utf-8"

    def __init__(self, first: str, parts: Generator[str], headers: dict[str, str]) -> None:
        self._first, self._rest = first, parts
        self._turn = Lock()  # the visitor may leave while a thread waits for the next part
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


def _catalogue(catalogue: Catalogue) -> None:
    element("h2", "Questions").style("margin-top: 0")
    element("p", "A question fills in its statement.", "explained")
    part = ""
    for example in examples(catalogue.newest_run):
        if example.part != part:
            part = example.part
            opened = element("details")
            with opened:
                element("summary", part)
        with opened:
            element("a", example.question, "question", href=f"/sql?q={quote(example.statement)}")
    layout.heading("Tables and views", "Their contents and columns.")
    Relations(
        [
            [relation["name"], relation["kind"], relation["comment"], relation["columns"]]
            for relation in catalogue.relations
        ]
    )
