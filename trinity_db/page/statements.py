"""SQL statements that people run on the page: with a read-only login, and bounded in time and memory.

Each statement has a separate connection, which is closed afterwards, so that no session state remains.
"""

import asyncio
import secrets
import select
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from threading import BoundedSemaphore, Lock
from typing import Any

import psycopg
from psycopg import errors, pq
from psycopg.adapt import Transformer

from trinity_db.errors import DatabaseUnavailable, TrinityError
from trinity_db.insight import statements
from trinity_db.insight.columns import Column
from trinity_db.insight.formats import NUMBERS, csv_lines
from trinity_db.insight.words import cell
from trinity_db.page.reader import STATEMENT_SECONDS
from trinity_db.page.rights import Visitor
from trinity_db.page.shares import Shares
from trinity_db.postgres.connection import Transaction, connect, first_line, limit_statements
from trinity_db.postgres.logins import refuse_writer

AT_ONCE = 4  # statements, each with a connection; a reader's login has 20
DOWNLOADS = 2  # concurrent downloads, in addition
TRAVEL = 100  # rows per transfer
GRACE_SECONDS = 2.0  # wait beyond the server's limit; also the limit of a cancellation
LOOK_SECONDS = 0.2  # between checks whether the statement was cancelled
SHOWN_ROWS = 1_000
SHOWN_CELLS = 30_000  # per table; more make a browser slow
SHOWN_CHARACTERS = 1_000  # per cell
SHOWN_TEXT = 300_000  # characters of all cells together, for the same reason
TICKETS = 100  # statements whose rows can be downloaded
PART = 64 * 1024  # characters per part of a download
CANCELLED = "Cancelled."
UNREADABLE = (
    "A value cannot be read here: a number of more than 4,300 digits, or JSON that is nested too deep. "
    "Cast the column to text: value::text."
)
HINTS: Mapping[type[psycopg.Error], str] = {
    errors.QueryCanceled: f"the limit is {STATEMENT_SECONDS:.0f} s; trinity-db sql --timeout allows more",
    errors.ReadOnlySqlTransaction: "this page only reads",
    errors.InsufficientPrivilege: "this page uses a read-only login",
}
SHORT = NUMBERS | {"bool", "date", "time", "timetz", "timestamp", "timestamptz", "interval", "uuid"}
"""Types whose values are shown unchanged."""
ENDS = {pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK, pq.ExecStatus.EMPTY_QUERY}
PARTS = {pq.ExecStatus.TUPLES_CHUNK, pq.ExecStatus.SINGLE_TUPLE}


class Refused(TrinityError):
    """Error: the server rejected a statement; with the position in its text."""

    def __init__(self, message: str, position: statements.Place | None = None) -> None:
        super().__init__(message)
        self.position = position


@dataclass(frozen=True)
class Answer:
    """Result of a statement, limited to what is shown."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    """Values formatted for people."""
    is_all: bool
    seconds: float
    ticket: str
    """Ticket with which all rows can be downloaded."""


class Running:
    """A statement that runs until it ends or a person cancels it."""

    def __init__(self, url: str, text: str) -> None:
        self.text = text
        self._url = url
        self._lock = Lock()
        self._connection: Transaction | None = None
        self._is_cancelled = False

    def cancel(self) -> None:
        """Cancel the statement on the server, or prevent it from starting."""
        with self._lock:
            self._is_cancelled = True
            if self._connection is not None:
                _cancel(self._connection)

    @contextmanager
    def answered(self, is_shown: bool) -> Iterator[tuple[list[Column], Iterator[Sequence[Any]]]]:
        """Run the statement: yield its columns, and its rows as they arrive; unread rows are cancelled.

        Args:
            is_shown: limit the rows and values to what is shown.

        Raises:
            Refused: if the statement is wrong, is not allowed, takes too long, returns an unreadable value,
            or is
                cancelled.
            TrinityError: if the login may write.
            DatabaseUnavailable: if no database answers.
        """
        with closing(connect(self._url, autocommit=True)) as connection:
            refuse_writer(connection, "this statement")
            self._hold(connection)
            try:
                _begin(connection)
                columns = statements.described(connection, self.text)
                if is_shown and columns:
                    _cut(connection, self.text, columns)
                yield columns, self._rows(connection)
            except psycopg.Error as error:
                raise self._in_our_words(error, connection) from error
            except (ValueError, RecursionError) as error:
                raise Refused(UNREADABLE) from error
            finally:
                self._hold(None)
                if connection.info.transaction_status == pq.TransactionStatus.ACTIVE:
                    _cancel(connection)

    def _hold(self, connection: Transaction | None) -> None:
        with self._lock:
            self._connection = connection

    def _in_our_words(self, error: psycopg.Error, connection: Transaction) -> TrinityError:
        if self._is_cancelled:
            return Refused(CANCELLED)
        if connection.closed or connection.broken:
            return DatabaseUnavailable(f"The database went away: {first_line(error)}")
        position = statements.place_of(error, self.text)
        return Refused(statements.explain(error, self.text, HINTS), position)

    def _rows(self, connection: Transaction) -> Iterator[Sequence[Any]]:
        """Rows of the session's unnamed statement. At most TRAVEL of them are in memory."""
        end = time.monotonic() + STATEMENT_SECONDS + GRACE_SECONDS
        connection.pgconn.send_query_prepared(b"", [])
        if psycopg.capabilities.has_stream_chunked():
            connection.pgconn.set_chunked_rows_mode(TRAVEL)
        else:
            connection.pgconn.set_single_row_mode()
        values = Transformer(connection)
        is_first = True
        while (result := self._next(connection, end)) is not None:
            if result.status in PARTS:
                values.set_pgresult(result, set_loaders=is_first)
                is_first = False
                yield from values.load_rows(0, result.ntuples, tuple)
            elif result.status == pq.ExecStatus.FATAL_ERROR:
                raise errors.error_from_result(result)
            elif result.status not in ENDS:
                raise Refused("This page does not support COPY: download the rows of a SELECT as CSV.")

    def _next(self, connection: Transaction, end: float) -> pq.abc.PGresult | None:
        """Next result of the server; None after the last."""
        server = connection.pgconn
        looked = select.poll()
        looked.register(server.socket, select.POLLIN)
        while server.flush() or server.is_busy():
            if looked.poll(1000 * LOOK_SECONDS):
                server.consume_input()
            if time.monotonic() > end:
                raise Refused(f"It did not end within {STATEMENT_SECONDS:.0f} s and was cancelled.")
            if self._is_cancelled:
                _cancel(connection)
        return server.get_result()


class Statements:
    """Runs statements, a few at a time. Further ones wait their turn."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="sql")
        self._shares = Shares()
        self._downloads = BoundedSemaphore(DOWNLOADS)
        self._tickets: dict[str, str] = {}

    def running(self, text: str) -> Running:
        """Create a statement for `carry_out`."""
        return Running(self._url, text)

    async def carry_out(self, running: Running, visitor: Visitor | None = None) -> Answer:
        """Run a statement, and return its first rows. It takes a place in the visitor's share of the threads.

        Raises:
            TrinityError: see `Running.answered`; also if too many statements of the visitor wait.
        """
        async with self._shares.turn(visitor):
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._answer, running)

    def _answer(self, running: Running) -> Answer:
        begun = time.monotonic()
        with running.answered(is_shown=True) as (columns, rows):
            limit = min(SHOWN_ROWS, SHOWN_CELLS // max(len(columns), 1))
            shown, characters = [], 0
            for row in islice(rows, limit):
                shown.append([_shown(value) for value in row])
                characters += sum(map(len, shown[-1]))
                if characters > SHOWN_TEXT:
                    break
            is_all = next(rows, None) is None
        return Answer(columns, shown, is_all, time.monotonic() - begun, self._ticket(running.text))

    def _ticket(self, text: str) -> str:
        """Create a download ticket, so that a link from another site or an e-mail cannot run a statement."""
        ticket = secrets.token_urlsafe(16)
        self._tickets[ticket] = text
        while len(self._tickets) > TICKETS:
            del self._tickets[next(iter(self._tickets))]
        return ticket

    def download(self, ticket: str) -> Generator[str]:
        """Yield all rows of a statement as CSV, in parts, as they arrive.

        Raises:
            TrinityError: see `Running.answered`; also if the ticket is unknown or too many downloads run.
        """
        if (text := self._tickets.get(ticket)) is None:
            raise TrinityError("This link has expired: run the statement again.")
        if not self._downloads.acquire(blocking=False):
            raise TrinityError(f"{DOWNLOADS} downloads are in progress: wait for one to end.")
        try:
            with self.running(text).answered(is_shown=False) as (columns, rows):
                part = ""
                for line in csv_lines(columns, rows):
                    part += line
                    if len(part) >= PART:
                        yield part
                        part = ""
            yield part
        finally:
            self._downloads.release()


def _begin(connection: Transaction) -> None:
    connection.execute("BEGIN READ ONLY")
    connection.execute("SET LOCAL search_path TO trinity, public")
    limit_statements(connection, STATEMENT_SECONDS)


def _cancel(connection: Transaction) -> None:
    with suppress(psycopg.Error):  # without a server there is nothing to end
        connection.cancel_safe(timeout=GRACE_SECONDS)


def _cut(connection: Transaction, text: str, columns: Sequence[Column]) -> None:
    """Limit the unnamed statement to what is shown: a text may have 1 GB, and would be loaded here."""
    names = [f"c{index}" for index in range(len(columns))]
    values = ", ".join(
        name
        if column.type in SHORT and not column.is_array
        else f"left({name}::text, {SHOWN_CHARACTERS + 1})"
        for name, column in zip(names, columns, strict=True)
    )
    whole = f"(\n{text.rstrip().rstrip(';')}\n) AS answer ({', '.join(names)})"
    cut = f"SELECT {values} FROM {whole} LIMIT {SHOWN_ROWS + 1}"
    try:
        with connection.transaction():
            statements.described(connection, cut)
    except psycopg.Error:
        cut = text  # EXPLAIN and SHOW return no tables, and their output is short
    statements.described(connection, cut)


def _shown(value: Any) -> str:
    text = cell(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}… (the download has all)"
