"""The commands that look at a store, as processes: db, sql, status, show."""

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from types import TracebackType
from typing import Any, Self

import pyarrow.parquet as pq
import pytest

from tests.support.postgres import by_login, discard, execute, new_database, new_home, on_database
from tests.support.rows import Scene
from tests.support.waiting import wait_until
from trinity_db.postgres import embedded
from trinity_db.postgres.connection import Database

WAIT_SECONDS = 60.0


def environment(url: str) -> dict[str, str]:
    """Where the store is, for who writes and for who only looks. An empty URL means the embedded server."""
    return {"TRINITY_DB_URL": url, "TRINITY_DB_READ_URL": by_login(url) if url else ""}


def call(url: str, *arguments: str, stdin: str | None = None) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command on the database at a URL."""
    done = subprocess.run(
        [sys.executable, "-m", "trinity_db", *arguments],
        env=os.environ | environment(url),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    return done.returncode, done.stdout, done.stderr


def begin(url: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """A command that goes on beside the test."""
    return subprocess.Popen(
        [sys.executable, "-m", "trinity_db", *arguments],
        env=os.environ | environment(url) | {"TERM": "xterm", "COLUMNS": "200"},
        **options,
    )


class Terminal:
    """A command that speaks to a terminal."""

    def __init__(self, url: str, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        self.process = begin(url, *arguments, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        self._seen = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def wait_for(self, text: str) -> None:
        """Read until a text was printed."""
        deadline = time.monotonic() + WAIT_SECONDS
        while text not in self._seen:
            readable, _, _ = select.select([self._master], [], [], max(0, deadline - time.monotonic()))
            assert readable, f"no {text!r} in {self._seen!r}"
            self._seen += os.read(self._master, 4096).decode()


@pytest.fixture(scope="module")
def url(server: str, template: str) -> Iterator[str]:
    """A store for tests that read: one trained group of two."""
    with new_database(server, template) as url, closing(Database(url)) as database:
        scene = Scene.open(database, "first")
        scene.make_ready(1)
        scene.train(step=1, size=1)
        yield url


def test_init_makes_a_store_and_does_no_harm_when_repeated(server: str) -> None:
    execute(server, "CREATE DATABASE {}", "empty")
    empty = on_database(server, "empty")
    try:
        code, found, advice = call(empty, "db", "check")
        assert (code, found.splitlines()[1][:12]) == (1, "schema  none")
        assert advice == "error: The database has no trinity-db schema yet; run: trinity-db db init\n"
        made = call(empty, "db", "init")
        assert made[0] == 0
        assert call(empty, "db", "init") == made
        assert call(empty, "db", "check")[::2] == (0, "")
    finally:
        execute(server, "DROP DATABASE {} WITH (FORCE)", "empty")


def test_the_embedded_server_starts_when_it_is_needed_and_stops_when_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = new_home()
    monkeypatch.setenv("TRINITY_DB_HOME", str(home))
    try:
        # An empty TRINITY_DB_URL is none.
        assert call("", "status")[1].startswith("There are no runs yet")
        assert call("", "db", "stop") == (0, f"The embedded server has stopped ({home}).\n", "")
        assert call("", "db", "stop") == (0, f"The embedded server was not running ({home}).\n", "")
        assert call("", "db", "start") == (0, f"The embedded server is running ({home}).\n", "")
        assert embedded.running(home)
    finally:
        discard(embedded.cluster(home))


def test_a_statement_on_the_embedded_server_runs_no_program_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = new_home()
    monkeypatch.setenv("TRINITY_DB_HOME", str(home))
    program = home / "socket" / "program-ran"  # the server's user may write there
    attack = f"DO $$ BEGIN RESET ROLE; COPY (SELECT 1) TO PROGRAM 'touch {program}'; END $$"
    try:
        assert call("", "sql", "--write", "INSERT INTO taskset (name) VALUES ('kept')")[0] == 0
        code, _, line = call("", "sql", attack)
        assert (code, line.count("\n")) == (1, 1)
        assert "permission denied to COPY to or from an external program" in line
        for statement in ("SET SESSION AUTHORIZATION postgres", "SET ROLE postgres"):
            assert call("", "sql", f"DO $$ BEGIN {statement}; END $$")[0] == 1
        assert not program.exists()
        assert call("", "sql", "SELECT name FROM taskset", "--format", "csv")[1] == "name\nkept\n"
        # The same works for the login that sql had before.
        code, _, line = call("", "sql", "--write", attack)
        assert code == 0, line
        assert program.exists()
    finally:
        discard(embedded.cluster(home))


def test_a_query_prints_a_table(url: str) -> None:
    code, shown, _ = call(
        url, "sql", "-", stdin="SELECT id, state, reward FROM experience_view ORDER BY id;\n"
    )
    assert code == 0
    header, _, *lines = shown.splitlines()
    assert header.split() == ["id", "state", "reward"]
    assert [line.split() for line in lines] == [["1", "trained", "1.0"], ["2", "trained", "0.0"]]


def test_a_write_is_refused_in_one_line(url: str) -> None:
    refusal = "error: cannot execute DELETE in a read-only transaction (--write allows it)\n"
    assert call(url, "sql", "DELETE FROM experience") == (1, "", refusal)


def test_parquet_goes_to_a_pipe_but_not_to_a_terminal(url: str) -> None:
    query = ("sql", "SELECT id FROM experience ORDER BY id", "--format", "parquet")
    with begin(url, *query, stdout=subprocess.PIPE) as process:
        table = pq.read_table(io.BytesIO(process.communicate(timeout=WAIT_SECONDS)[0]))
    assert table.to_pydict() == {"id": [1, 2]}
    with Terminal(url, *query) as terminal:
        terminal.wait_for("parquet is binary")
        assert terminal.process.wait(WAIT_SECONDS) == 2


def test_ctrl_c_ends_the_statement_too(url: str) -> None:
    asleep = "SELECT count(*) AS n FROM pg_stat_activity WHERE wait_event = 'PgSleep'"

    def sessions_asleep() -> int:
        with database.transaction() as tx:
            [row] = tx.execute(asleep)
            return int(row["n"])

    with (
        closing(Database(url)) as database,
        begin(url, "sql", "SELECT pg_sleep(600)", "--timeout", "0", stderr=subprocess.PIPE) as process,
    ):
        wait_until(lambda: sessions_asleep() == 1, "its statement runs")
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=WAIT_SECONDS)[1] == b""
        assert process.returncode == 130
        wait_until(lambda: sessions_asleep() == 0, "its statement is ended")


def test_a_reader_that_has_seen_enough_ends_the_query(url: str) -> None:
    query = ("sql", "SELECT repeat('x', 1000) AS x FROM generate_series(1, 100000)", "--format", "csv")
    with begin(url, *query, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"x\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(WAIT_SECONDS) == 1


def test_status_prints_what_a_script_can_read(url: str) -> None:
    code, shown, _ = call(url, "status", "first", "--json")
    assert code == 0
    assert json.loads(shown)["experiences"] == {"trained": 2}


def test_watch_refreshes_until_ctrl_c(database_url: str) -> None:
    with closing(Database(database_url)) as database, Terminal(database_url, "status", "--watch") as terminal:
        terminal.wait_for("There are no runs yet")
        Scene.open(database, "second")
        terminal.wait_for("second")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(WAIT_SECONDS) == 0


def test_show_prints_one_experience(url: str) -> None:
    code, shown, _ = call(url, "show", "1")
    assert code == 0
    assert ["state", "trained"] in [line.split() for line in shown.splitlines()]
