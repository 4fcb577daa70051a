"""SQL on the page: what it shows beside psql, what it refuses, and what ends when a person leaves."""

import csv
import io
import re
import subprocess
import time
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import psycopg
import pytest
from playwright.sync_api import Page, expect

from tests.others.page.browser import WAIT_SECONDS, Served, Visit
from tests.support.command_line import CommandLine
from tests.support.postgres import by_login
from tests.support.rows import Scene
from trinity_db.page.examples import examples
from trinity_db.postgres import embedded
from trinity_db.postgres.connection import connect
from trinity_db.postgres.logins import open_to_roles

MILLISECONDS = 1000 * WAIT_SECONDS
SLEEP = "SELECT pg_sleep(9.5), 'told apart'"
REFUSED = "permission denied|in a read-only transaction"
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module", autouse=True)
def store(scene: Scene) -> None:
    """A step that was trained, and rows that are ready."""
    scene.make_ready(2, rewards=(1.0, 0.0))
    scene.train(step=1, size=2)
    scene.publish(1, step=1)


def run(visit: Visit, statement: str) -> Page:
    """Write a statement and run it by keys."""
    field = visit.page.get_by_label("Statement")
    field.fill(statement)
    field.press("Control+Enter")
    return visit.page


def rows(visit: Visit, statement: str) -> list[list[str]]:
    """What a statement finds."""
    run(visit, statement)
    visit.page.get_by_text(re.compile(r"in \d+\.\d")).wait_for()
    return visit.rows("rows")


def refused(visit: Visit, statement: str) -> str:
    """Why a statement is refused."""
    run(visit, statement)
    notice = visit.page.get_by_role("alert").filter(visible=True)
    notice.wait_for()
    return notice.inner_text()


def running(scene: Scene, statement: str = "pg_sleep") -> int:
    """How many statements of others that have these words run now."""
    return int(
        scene.value(
            "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND pid <> pg_backend_pid() "
            "AND datname = current_database() AND query LIKE '%%' || %s || '%%'",
            statement,
        )
    )


def wait_until(scene: Scene, count: int) -> None:
    """Wait until so many statements sleep on the server."""
    deadline = time.monotonic() + WAIT_SECONDS
    while running(scene) != count:
        assert time.monotonic() < deadline, f"{running(scene)} run"
        time.sleep(0.02)


def test_a_statement_finds_what_psql_finds(scene: Scene, visit: Visit) -> None:
    visit.open("/sql")
    found = rows(visit, "select id, state, reward from experience_view order by id")
    assert found == [
        [str(id), state, str(reward)]
        for id, state, reward in scene.rows(
            "SELECT id, state::text, reward FROM trinity.experience ORDER BY id"
        )
    ]
    assert visit.page.locator("thead th").all_inner_texts() == ["id", "state", "reward"]


def test_the_statement_is_the_link_and_a_link_runs_nothing(scene: Scene, visit: Visit) -> None:
    visit.open(f"/sql?q={quote(SLEEP)}")
    assert visit.page.get_by_label("Statement").input_value() == SLEEP
    visit.page.get_by_text("experience_view", exact=True).first.wait_for()  # the page is whole
    assert running(scene) == 0
    assert visit.page.get_by_text("Running.", exact=True).count() == 0
    rows(visit, "select 'a+b & ü' as \"x\"\n-- and a comment")
    expected = ["select 'a+b & ü' as \"x\"\n-- and a comment"]
    visit.page.wait_for_function("location.search.includes('comment')")
    assert parse_qs(urlsplit(visit.page.url).query)["q"] == expected
    visit.page.reload()
    expect(visit.page.get_by_label("Statement")).to_have_value(expected[0])


@pytest.mark.parametrize(
    ("statement", "message", "wrong"),
    [
        ("select 1,\n  nope\nfrom experience", 'column "nope" does not exist (line 2: nope)', "nope"),
        ("select 'ä😀', rewrd from experience", 'column "rewrd" does not exist', "rewrd"),
        ("selec 1", 'syntax error at or near "selec" (line 1: selec 1)', "selec"),
        ("select", "", ""),
        ("select 1/0", "division by zero", ""),
        ("   ", "Write a statement first", ""),
        ("do $$ begin raise exception E'two\nlines %', repeat('x', 1000000); end $$", "two lines xxx", ""),
    ],
)
def test_an_error_is_one_line_and_its_place_is_marked(
    visit: Visit, statement: str, message: str, wrong: str
) -> None:
    visit.open("/sql")
    if statement == "select":  # PostgreSQL takes it: a row of no columns
        run(visit, statement)
        visit.page.get_by_text("It returned no rows").wait_for()
        return
    said = refused(visit, statement)
    assert said.startswith(message)
    assert "\n" not in said
    assert len(said) < 2_000
    assert visit.page.get_by_role("button", name="Cancel").count() == 0
    field = "document.querySelector('textarea')"
    if wrong:
        visit.page.wait_for_function(
            f"{field}.value.slice({field}.selectionStart, {field}.selectionEnd) === '{wrong}'"
        )
        assert visit.page.evaluate(f"document.activeElement === {field}")


def test_a_file_of_all_rows_is_what_psql_writes(
    scene: Scene, visit: Visit, page: Served, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    statement = (
        "select n, n + 0.5::float8 as half, nullif(n, 3) as gap, 'a \"quoted\", ü' || chr(10) || n as text, "
        "'a' || chr(13) || n as returned "
        "from generate_series(1, 2500) n order by n"
    )
    visit.open("/sql")
    run(visit, statement)
    visit.page.get_by_text("The first 1,000 rows").wait_for()
    assert visit.page.locator("tbody tr").count() == 1_000
    with visit.page.expect_download() as download:
        visit.page.get_by_role("link", name="All rows as CSV").click()
    assert download.value.suggested_filename == "rows.csv"
    written = Path(download.value.path()).read_bytes().decode()  # read_text would make "\r" to "\n"
    psql = embedded.cluster(Path("/nonexistent")).binaries.folder / "psql"
    told = subprocess.run(
        [psql, by_login(scene.database.url), "--csv", "-c", statement],
        capture_output=True,
        check=True,
    )
    assert written == told.stdout.decode()
    assert len(list(csv.reader(io.StringIO(written, newline="")))) == 2_501
    monkeypatch.setenv("TRINITY_DB_URL", by_login(scene.database.url))
    assert command_line("sql", statement, "--format", "csv").output == written


def test_a_number_that_no_file_can_have_is_told(visit: Visit, page: Served) -> None:
    visit.open("/sql")
    assert rows(visit, "select 10::numeric ^ 5000")[0][0].startswith("10000")
    link = visit.page.get_by_role("link", name="All rows as CSV").get_attribute("href")
    answer = visit.page.request.get(f"{page.origin}{link}")
    assert (answer.status, "Cast the column to text" in answer.text()) == (400, True)


def test_a_download_needs_a_run_of_this_page(visit: Visit, page: Served) -> None:
    answer = visit.page.request.get(f"{page.origin}/sql.csv?ticket=none")
    assert (answer.status, answer.text()) == (
        400,
        "This link has expired: run the statement again.\n",
    )


def test_a_download_that_a_person_breaks_off_ends_on_the_server(
    scene: Scene, visit: Visit, page: Served
) -> None:
    slow = "SELECT repeat('x', 10000), pg_sleep(0.001) FROM generate_series(1, 1000000)"
    visit.open("/sql")
    run(visit, slow)
    link = visit.page.get_by_role("link", name="All rows as CSV")
    link.wait_for()
    wait_until(scene, 0)
    [cookie] = visit.page.context.cookies()
    place = urlsplit(page.origin)
    connection = HTTPConnection(place.hostname or "", place.port)
    headers = {"Cookie": f"{cookie['name']}={cookie['value']}"}
    connection.request("GET", link.get_attribute("href") or "", headers=headers)
    answer = connection.getresponse()
    assert (answer.status, answer.headers["content-type"]) == (200, "text/csv; charset=utf-8")
    answer.read(1000)
    assert running(scene) == 1
    answer.close()
    connection.close()
    wait_until(scene, 0)


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("DELETE FROM experience", REFUSED),
        ("UPDATE run SET name = 'x'", REFUSED),
        ("CREATE TABLE mine (a int)", REFUSED),
        ("CREATE TEMP TABLE mine (a int)", REFUSED),
        ("SELECT nextval('trinity.run_id_seq')", "permission denied"),
        ("SELECT lo_creat(-1)", "read-only"),
        ("SELECT lo_export(1, '/tmp/out')", "permission denied"),
        ("SELECT pg_read_file('/etc/passwd')", "permission denied"),
        ("SELECT pg_reload_conf()", "permission denied"),
        ("COPY experience TO PROGRAM 'touch /tmp/out'", "permission denied"),
        ("COPY experience TO '/tmp/out'", "permission denied"),
        ("COPY experience TO STDOUT", "This page does not support COPY"),
        ("COPY run FROM STDIN", REFUSED),
        ("DO $$ BEGIN DELETE FROM trinity.experience; END $$", REFUSED),
        ("WITH gone AS (DELETE FROM experience RETURNING id) SELECT * FROM gone", REFUSED),
        ("SELECT 1; SELECT 2", "The query contains several statements"),
        ("COMMIT; DELETE FROM experience", "The query contains several statements"),
        ("SET ROLE postgres", "permission denied"),
        ("SET SESSION AUTHORIZATION postgres", "permission denied"),
        ("SELECT set_config('role', 'postgres', false)", "permission denied"),
    ],
)
def test_what_would_write_or_leave_the_login_is_refused(
    scene: Scene, visit: Visit, statement: str, why: str
) -> None:
    before = scene.rows("SELECT id, state::text FROM trinity.experience ORDER BY id")
    visit.open("/sql")
    said = refused(visit, statement)
    assert re.search(why, said)
    assert "\n" not in said
    assert scene.rows("SELECT id, state::text FROM trinity.experience ORDER BY id") == before
    assert not Path("/tmp/out").exists()


def test_the_session_of_another_login_cannot_be_ended(scene: Scene, visit: Visit) -> None:
    with psycopg.connect(scene.database.url, autocommit=True) as other:
        visit.open("/sql")
        assert "permission denied" in refused(visit, f"SELECT pg_terminate_backend({other.info.backend_pid})")
        assert other.execute("SELECT 1").fetchone() == (1,)


def test_no_visitor_ends_the_sessions_of_other_visitors(scene: Scene, visit: Visit) -> None:
    with closing(connect(scene.database.url)) as owner, owner.transaction():
        open_to_roles(owner)
    visit.open("/sql")
    of_the_page = "pid) FROM pg_stat_activity WHERE usename = current_user"
    for function in ("pg_terminate_backend", "pg_cancel_backend"):
        run(visit, f"SELECT {function}({of_the_page}")
        notice = visit.page.get_by_role("alert").filter(visible=True)
        expect(notice).to_contain_text(f"permission denied for function {function}", timeout=MILLISECONDS)


def test_a_commit_and_a_setting_do_not_outlive_their_statement(scene: Scene, visit: Visit) -> None:
    visit.open("/sql")
    for statement in ("COMMIT", "SET default_transaction_read_only = off", "SET search_path = pg_catalog"):
        run(visit, statement)
        visit.page.get_by_text("It returned no rows").wait_for()
        visit.page.get_by_label("Statement").fill("")
    assert rows(visit, "SELECT count(*) FROM run") == [[str(scene.value("SELECT count(*) FROM trinity.run"))]]
    assert re.search(REFUSED, refused(visit, "DELETE FROM experience"))


def test_cancel_ends_the_statement_on_the_server(scene: Scene, visit: Visit) -> None:
    visit.open("/sql")
    run(visit, SLEEP)
    wait_until(scene, 1)
    visit.page.get_by_text(re.compile(r"Running for [1-9]\d* s\.")).wait_for()
    visit.page.get_by_role("button", name="Cancel").click()
    expect(visit.page.get_by_role("alert").filter(visible=True)).to_have_text("Cancelled.")
    wait_until(scene, 0)
    assert visit.page.get_by_role("button", name="Cancel").count() == 0


@pytest.mark.parametrize("text", ["repeat('1', 5000)", "repeat('[', 5000) || repeat(']', 5000)"])
def test_json_that_python_cannot_read_is_shown(visit: Visit, text: str) -> None:
    visit.open("/sql")
    [[shown]] = rows(visit, f"select ({text})::jsonb as value")
    assert shown[:100] in ("1" * 100, "[" * 100)


def test_another_run_cancels_the_one_before(scene: Scene, visit: Visit) -> None:
    visit.open("/sql")
    run(visit, SLEEP)
    wait_until(scene, 1)
    assert rows(visit, "SELECT 'second'") == [["second"]]
    wait_until(scene, 0)


def test_who_leaves_the_page_cancels_what_runs(scene: Scene, visit: Visit) -> None:
    visit.open("/sql")
    begun = time.monotonic()
    run(visit, SLEEP)
    wait_until(scene, 1)
    visit.open("/")
    wait_until(scene, 0)
    assert time.monotonic() - begun < 9.5, "it slept to its end"


def test_a_statement_that_takes_too_long_is_ended_with_what_to_do(scene: Scene, visit: Visit) -> None:
    visit.open("/sql")
    said = refused(visit, "SELECT pg_sleep(60)")
    assert said.endswith("(the limit is 10 s; trinity-db sql --timeout allows more)")
    wait_until(scene, 0)


def test_hostile_texts_and_names_stay_text(visit: Visit) -> None:
    visit.open("/sql")
    found = rows(visit, f"SELECT '{HOSTILE}' AS \"{HOSTILE}\", ':x' AS \":onclick\", '=1+1' AS formula")
    assert found == [[HOSTILE, ":x", "=1+1"]]
    assert visit.page.locator("thead th").first.inner_text() == HOSTILE
    assert HOSTILE in refused(visit, f"SELECT '{HOSTILE}'::int")
    visit.open(f"/sql?q={quote('</textarea>' + HOSTILE)}")
    assert visit.page.get_by_label("Statement").input_value() == "</textarea>" + HOSTILE
    assert visit.page.locator("main img, .page img").count() == 0


def test_what_is_shown_of_a_million_rows_and_of_a_large_text_does_not_grow_the_process(
    visit: Visit, page: Served
) -> None:
    visit.open("/sql")
    rows(visit, "SELECT 1")
    before = memory(page)
    run(visit, "SELECT repeat('x', 10000) || n AS text FROM generate_series(1, 1000000) n")
    visit.page.get_by_text("The first 293 rows").wait_for()  # they have 300,000 characters
    assert visit.page.locator("tbody th").first.inner_text() == "x" * 1_000 + "… (the download has all)"
    run(visit, "SELECT repeat('x', 300000000) AS text; ")
    visit.page.get_by_text("1 row in").wait_for()
    assert visit.page.locator("tbody th").inner_text() == "x" * 1_000 + "… (the download has all)"
    assert memory(page) - before < 50 * 2**20


@pytest.mark.parametrize(
    ("statement", "first"),
    [
        ("SELECT * FROM (VALUES (1, 'b'), (2, 'a')) v (n, t) ORDER BY t; -- a comment", ["2", "a"]),
        ("VALUES (1, NULL), (2, 'x')", ["1", "NULL"]),
        ("TABLE trinity.taskset", ["1", "tasks"]),
        ("SHOW transaction_read_only", ["on"]),
        ("EXPLAIN SELECT 1", ["Result (cost=0.00..0.01 rows=1 width=4)"]),
        ("SELECT 1 AS a, 2 AS a", ["1", "2"]),
        (
            "SELECT '{\"k\": [1]}'::jsonb, ARRAY[1, 2], true, date '2026-01-02'",
            ['{"k": [1]}', "{1,2}", "true", "2026-01-02"],
        ),
        ("WITH t AS (SELECT 7 AS n) SELECT n FROM t", ["7"]),
    ],
)
def test_each_kind_of_statement_that_reads_is_shown(visit: Visit, statement: str, first: list[str]) -> None:
    visit.open("/sql")
    found = rows(visit, statement)[0]
    assert [" ".join(text.split()) for text in found][: len(first)] == first


def memory(page: Served) -> int:
    """The most bytes that the page's process ever held."""
    lines = Path(f"/proc/{page.process.pid}/status").read_text().splitlines()
    [peak] = [line for line in lines if line.startswith("VmHWM")]
    return int(peak.split()[1]) * 1024


def test_questions_of_the_cookbook_are_about_the_newest_run_and_run(visit: Visit) -> None:
    visit.open("/sql")
    visit.page.get_by_text("Is it learning?").click()
    visit.page.get_by_role("link", name="Does the reward rise from version to version?").click()
    first = next(examples("run"))
    expect(visit.page.get_by_label("Statement")).to_have_value(first.statement)
    visit.page.get_by_role("button", name="Run").click()
    visit.page.get_by_role("region", name="rows").wait_for()
    assert [row[0] for row in visit.rows("rows")] == ["0", "1"]


def test_tables_and_views_are_told_with_their_comments(scene: Scene, visit: Visit) -> None:
    visit.open("/sql")
    view = visit.page.locator(".relations summary").filter(has_text="policy_progress")
    view.focus()
    visit.page.keyboard.press("Enter")
    column, comment = scene.rows(
        """SELECT a.attname, col_description(a.attrelid, a.attnum) FROM pg_attribute a
           WHERE a.attrelid = 'trinity.policy_progress'::regclass AND a.attnum = 2"""
    )[0]
    assert comment
    opened = visit.page.locator(".relations details[open]")
    expect(opened).to_contain_text(column)
    expect(opened).to_contain_text(comment)
    names = [text.split()[0] for text in visit.page.locator(".relations summary").all_inner_texts()]
    assert names == scene.values(
        """SELECT relname::text FROM pg_class WHERE relnamespace = 'trinity'::regnamespace
           AND relkind IN ('r', 'v', 'p', 'm') ORDER BY relkind IN ('v', 'm') DESC, relname"""
    )
