"""Experiences by a condition of a person in SQL, and rows that are similar by meaning."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from playwright.sync_api import Browser, expect

from tests.integration.test_embed import (
    ANY_GROUP,
    configuration,
    hostile_table,
    numbers,
    step,
    unit,
    write,
)
from tests.others.page.browser import WAIT_SECONDS, Visit, home_of, served
from tests.support.postgres import by_login, new_database
from tests.support.rows import Scene
from tests.support.steps import process
from tests.support.waiting import wait_until
from trinity_db.errors import ConfigError
from trinity_db.page.questions import ROWS, Filter, experiences
from trinity_db.page.shares import AT_ONCE
from trinity_db.postgres.connection import Database

MILLISECONDS = 1000 * WAIT_SECONDS
LOCKS_AND_FAILS = " and case when pg_advisory_lock(4711) is not null then 1/(id - id) = 1 end"
MAIN = "from trinity_db.cli import main; main()"
TEXTS = ["1 2 3 4", "1 2 3 5", "4 3 2 1", "-1 -2 -3 -4"]


def send(visit: Visit, condition: str) -> None:
    """Send a condition by the form."""
    visit.open("/experiences")
    visit.page.get_by_label("condition in SQL").evaluate("(field, text) => field.value = text", condition)
    visit.page.get_by_role("button", name="Show").click()
    visit.page.wait_for_url("**where=**")


def searched(visit: Visit) -> None:
    """Wait until a search is over."""
    visit.page.get_by_role("status").filter(has_text="Searched").wait_for()


@pytest.fixture(scope="module", autouse=True)
def store(scene: Scene) -> None:
    """More rows than a page has, with three rewards."""
    scene.make_ready(ROWS // 2 + 2, rewards=(1.0, 0.0, 0.25))


@pytest.mark.parametrize(
    "condition",
    [
        "reward > 0.5",
        "reward between 0.2 and 0.3 and response like '0%'",
        "run = 'run' and member = 2 -- and a comment",
        "staleness_now is null",
        "false",
    ],
)
def test_a_condition_finds_what_sql_finds(scene: Scene, visit: Visit, condition: str) -> None:
    ids = scene.values(
        f"SELECT id::text FROM trinity.experience_view v WHERE ({condition}\n) ORDER BY v.id DESC"
    )
    send(visit, condition)
    searched(visit)
    seen = [row[0] for row in visit.rows("experiences")]
    while visit.page.get_by_role("link", name="Older").count():
        visit.page.get_by_role("link", name="Older").click()
        visit.page.wait_for_url(f"**before={seen[-1]}**")
        visit.page.get_by_role("link", name="Newest").wait_for()
        seen += [row[0] for row in visit.rows("experiences")]
    assert seen == ids


def test_the_form_makes_a_condition_a_part_of_the_link(visit: Visit) -> None:
    visit.open("/experiences")
    field = visit.page.get_by_label("condition in SQL")
    field.fill("reward < 0.5 and prompt like '%'")
    field.press("Enter")
    visit.page.wait_for_url("**where=**")
    link = parse_qs(urlsplit(visit.page.url).query)
    assert set(link) == {"where", "approved"}
    assert link["where"] == ["reward < 0.5 and prompt like '%'"]
    searched(visit)
    assert field.input_value() == "reward < 0.5 and prompt like '%'"
    assert {row[5] for row in visit.rows("experiences")} == {"0.000", "0.250"}


@pytest.mark.parametrize(
    ("condition", "why"),
    [
        ("rewrd > 1", 'column "rewrd" does not exist'),
        ("reward >", "The condition reward >: it is not complete"),
        ("response = 'x", "it is not complete"),
        ("(reward > 1", "it is not complete"),
        ("reward > > 1", 'syntax error at or near ">"'),
        ("reward > 1]", "or a bracket closes too early"),
        ("reward = 'x'", "invalid input syntax"),
        ("reward", "a condition must be type boolean"),
        ("1/(id - id) = 1", "division by zero"),
        ("true); DELETE FROM trinity.experience; SELECT (true", "syntax error"),
        ("false) UNION ALL SELECT generate_series(1, 1000000000) WHERE (true", "syntax error"),
        ("true] UNION ALL SELECT ARRAY[true", "or a bracket closes too early"),
        ("repeat('x', 1000000)::int = 1", "invalid input syntax for type integer"),
        ("rewrd\n> 1", 'column "rewrd" does not exist'),
        ("nextval('trinity.run_id_seq') > 0", "permission denied"),
        ("lo_creat(-1) > 0", "read-only transaction"),
        ("pg_reload_conf()", "permission denied"),
        ("x" * 2_001, "at most 2,000 characters"),
        ("pg_sleep(11) is not null", "did not answer in 10 s"),
    ],
)
def test_a_condition_that_is_none_or_would_write_is_told(
    scene: Scene, visit: Visit, condition: str, why: str
) -> None:
    before = scene.value("SELECT count(*) FROM trinity.experience")
    send(visit, condition)
    notice = visit.page.get_by_role("alert").filter(visible=True)
    expect(notice).to_contain_text(why, timeout=MILLISECONDS)
    assert "\n" not in notice.inner_text()
    assert len(notice.inner_text()) < 1_000
    assert scene.value("SELECT count(*) FROM trinity.experience") == before
    assert visit.page.get_by_label("condition in SQL").input_value() == condition.replace("\n", "")


def test_a_link_runs_no_condition_and_the_form_does(visit: Visit) -> None:
    fails = "1/(id - id) = 1"
    send(visit, "reward < 0.5")
    approved = parse_qs(urlsplit(visit.page.url).query)["approved"][0]
    notice = visit.page.get_by_role("alert").filter(visible=True)
    for approval in ("", "&approved=x", f"&approved={approved}", "&approved=%00%ff"):
        visit.open(f"/experiences?state=ready&where={quote(fails)}{approval}")
        expect(notice).to_contain_text("was not run", timeout=MILLISECONDS)
        assert visit.page.get_by_role("region", name="experiences").count() == 0
    assert visit.page.get_by_label("condition in SQL").input_value() == fails
    assert visit.page.get_by_label("state", exact=True).input_value() == "ready"
    visit.page.get_by_role("button", name="Show").click()
    expect(notice).to_contain_text("division by zero", timeout=MILLISECONDS)
    visit.page.reload()  # the visitor's own link runs it again
    expect(notice).to_contain_text("division by zero", timeout=MILLISECONDS)


def test_a_visitor_has_a_share_of_the_threads_and_statements_end_with_their_page(
    scene: Scene, browser: Browser, database: Database, tmp_path: Path
) -> None:
    # Statements may take so long that only their cancellation ends them within the test.
    program = ("-c", f"from trinity_db.page import reader; reader.STATEMENT_SECONDS = 600.0; {MAIN}")
    with served(home_of(tmp_path) | {"TRINITY_DB_URL": by_login(database.url)}, program=program) as page:
        visit = Visit.begin(browser, page)
        send(visit, "pg_sleep(500) is not null")
        expect(visit.page.get_by_role("status").first).to_contain_text("Searching", timeout=MILLISECONDS)
        tabs = [visit.page.context.new_page() for _ in range(3)]
        for tab in tabs:
            tab.goto(visit.page.url)
        wait_until(lambda: sleeping(scene) == AT_ONCE, "the visitor's share is in use")
        assert len(tabs) + 1 > AT_ONCE
        visit.page.context.close()  # all of them
        wait_until(lambda: sleeping(scene) == 0, "the statements end with the pages")


def sleeping(scene: Scene) -> int:
    """How many statements sleep in this database; never more than a visitor's share of them."""
    found: int = scene.value(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
    )
    assert found <= AT_ONCE
    return found


def test_a_search_goes_on_until_it_has_looked_at_all_rows(
    scene: Scene, browser: Browser, database: Database, tmp_path: Path
) -> None:
    newest, oldest = scene.rows("SELECT max(id), min(id) FROM trinity.experience")[0]
    window = (newest - oldest) // 3
    mark = f"experiences.SEARCH_SECONDS, questions.WINDOW = float(os.environ['FOR']), {window}"
    program = ("-c", f"import os; from trinity_db.page import experiences, questions; {mark}; {MAIN}")
    reader = home_of(tmp_path) | {"TRINITY_DB_URL": by_login(database.url)}
    rows = scene.value("SELECT count(*) FROM trinity.experience")
    with served(reader | {"FOR": "60"}, program=program) as page:
        visit = Visit.begin(browser, page)
        send(visit, f"id = {oldest}")
        expect(visit.page.get_by_text(f"Searched all {rows} rows")).to_be_visible(timeout=MILLISECONDS)
        assert [row[0] for row in visit.rows("experiences")] == [str(oldest)]
        visit.open("/experiences?text=nowhere")
        expect(visit.page.get_by_text(f"Searched all {rows} rows")).to_be_visible(timeout=MILLISECONDS)
        assert visit.page.get_by_text("No experience meets these filters").is_visible()
        visit.page.context.close()
    with served(reader | {"FOR": "0"}, program=program) as page:  # out of time after each window
        visit = Visit.begin(browser, page)
        send(visit, f"id = {oldest}")
        seen = 0
        while not visit.page.get_by_role("region", name="experiences").count():
            searched(visit)
            assert visit.page.get_by_text("No experience meets these filters").count() == 0
            assert visit.page.get_by_text("Older rows have not been searched").is_visible()
            before, seen = visit.page.url, seen + 1
            visit.page.get_by_role("link", name="Search further").click()
            visit.page.wait_for_function("before => location.href !== before", arg=before)
            visit.page.get_by_role("link", name="Newest").wait_for()
        assert seen >= 2
        assert [row[0] for row in visit.rows("experiences")] == [str(oldest)]
        visit.page.context.close()


def test_what_was_typed_is_kept_if_a_value_is_wrong(visit: Visit) -> None:
    typed = {"policy version": "abc", "reward from": "x", "task (its key)": "t", "condition in SQL": "id > 1"}
    visit.open("/experiences")
    for label, value in typed.items():
        visit.page.get_by_label(label).fill(value)
    visit.page.get_by_role("button", name="Show").click()
    visit.page.wait_for_url("**version=abc**")
    notice = visit.page.get_by_role("alert").filter(visible=True)
    expect(notice).to_contain_text("policy version is a whole number", timeout=MILLISECONDS)
    assert {label: visit.page.get_by_label(label).input_value() for label in typed} == typed
    visit.open("/tasks?run=run&text=sum&rank=x&below=1")
    expect(notice).to_contain_text("rank is a number", timeout=MILLISECONDS)
    assert visit.page.get_by_label("text of the prompt").input_value() == "sum"


@pytest.mark.parametrize("fails", ["", LOCKS_AND_FAILS], ids=["meets", "fails"])
def test_a_condition_leaves_nothing_in_the_session_that_reads_other_pages(scene: Scene, fails: str) -> None:
    shown = "SELECT current_setting('statement_timeout') AS t, current_setting('TimeZone') AS z"
    locks = "SELECT count(*) AS n FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
    condition = (
        "set_config('TimeZone', 'Asia/Tokyo', false) is not null and pg_advisory_lock(4711) is not null "
        f"and set_config('statement_timeout', '0', false) is not null{fails}"
    )
    with closing(Database(by_login(scene.database.url), statement_seconds=10)) as database:
        with database.transaction() as tx:
            before = tx.execute(shown).fetchone()
        read = experiences(Filter(where=condition))
        if fails:
            with pytest.raises(ConfigError, match="division by zero"):
                read(database)
        else:
            assert read(database).rows
        with database.transaction() as tx:
            assert tx.execute(shown).fetchone() == before
            assert tx.execute(locks).fetchone() == {"n": 0}


def test_without_vectors_the_step_that_makes_them_is_told(scene: Scene, visit: Visit) -> None:
    visit.open(f"/experience/{scene.value('SELECT max(id) FROM trinity.experience')}")
    visit.page.get_by_role("link", name="Similar rows").click()
    visit.page.wait_for_url("**/similar?to=*")
    expect(visit.page.get_by_text("The clean step embed creates them")).to_be_visible(timeout=MILLISECONDS)


@pytest.fixture
def embedded(server: str, template: str) -> Iterator[Scene]:
    """A store of its own."""
    with new_database(server, template) as url, closing(Database(url)) as database:
        yield Scene.open(database)


def test_similar_rows_are_those_with_the_nearest_vectors(
    embedded: Scene, browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lance = {"TRINITY_DB_LANCE_URI": str(tmp_path / "lance")}
    monkeypatch.setenv("TRINITY_DB_LANCE_URI", lance["TRINITY_DB_LANCE_URI"])
    monkeypatch.setenv("TRINITY_DB_URL", embedded.database.url)
    reader = {"TRINITY_DB_URL": by_login(embedded.database.url)}
    with (
        numbers() as address,
        served(home_of(tmp_path) | reader | lance, "--config", configuration(tmp_path, address)) as page,
    ):
        ids = write(embedded, TEXTS)
        process(embedded, ANY_GROUP, {"clean": [step(embedded, address, threshold=1.0)]})
        visit = Visit.begin(browser, page)
        visit.open(f"/experience/{ids[0]}")
        visit.page.get_by_role("link", name="Similar rows").click()
        expect(visit.page.get_by_role("region", name="similar rows")).to_be_visible(timeout=MILLISECONDS)
        cosine = {id: float(unit(TEXTS[0]) @ unit(text)) for id, text in zip(ids, TEXTS, strict=True)}
        nearest = sorted(ids[1:], key=lambda id: -cosine[id])
        found = visit.rows("similar rows")
        assert [row[0] for row in found] == [str(id) for id in nearest]
        assert [float(row[1]) for row in found] == [pytest.approx(cosine[id], abs=2e-3) for id in nearest]
        visit.page.get_by_label("meaning of the response").fill(TEXTS[2])
        visit.page.get_by_role("button", name="Search").click()
        visit.page.wait_for_url("**words=**")
        expect(visit.page.get_by_role("region", name="similar rows")).to_be_visible(timeout=MILLISECONDS)
        assert visit.rows("similar rows")[0][:2] == [str(ids[2]), "1.000"]
        visit.open("/similar?words=x&run=none")
        expect(visit.page.get_by_role("alert").filter(visible=True)).to_contain_text("There is no run")
        visit.page.context.close()
    assert (visit.complaints, visit.elsewhere()) == ([], [])


def test_words_of_a_visitor_are_sent_to_no_model_that_only_a_table_of_vectors_names(
    embedded: Scene, browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lance = {"TRINITY_DB_LANCE_URI": str(tmp_path / "lance")}
    monkeypatch.setenv("TRINITY_DB_LANCE_URI", lance["TRINITY_DB_LANCE_URI"])
    reader = {"TRINITY_DB_URL": by_login(embedded.database.url)}
    requests: list[object] = []
    with numbers(requests) as thief, served(home_of(tmp_path) | reader | lance) as page:
        hostile_table(embedded, thief)
        visit = Visit.begin(browser, page)
        visit.open("/similar?words=hello")
        alert = visit.page.get_by_role("alert").filter(visible=True)
        expect(alert).to_contain_text("trinity-db page with --config FILE", timeout=MILLISECONDS)
        visit.page.context.close()
    assert requests == []
