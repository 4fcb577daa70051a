"""A database that goes away and comes back, and a run that is deleted, while a person looks."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.conftest import make_template
from tests.others.page.browser import Visit, home_of, served
from tests.support.postgres import by_login, cluster_18, discard, execute, on_database, start
from tests.support.rows import Scene
from trinity_db.postgres.connection import Database
from trinity_db.postgres.embedded.cluster import Cluster
from trinity_db.store import reviews
from trinity_db.store.reviews import Question


@pytest.fixture
def own_server() -> Iterator[tuple[Cluster, str]]:
    """A server that a test may stop, and a store on it."""
    cluster = cluster_18()
    server = start(cluster)
    execute(server, "CREATE DATABASE {}", "store")
    url = on_database(server, "store")
    make_template(url)
    yield cluster, url
    discard(cluster)


def test_a_stopped_database_is_told_and_its_return_is_seen(
    own_server: tuple[Cluster, str], browser: Browser, tmp_path: Path
) -> None:
    cluster, url = own_server
    with closing(Database(url)) as database:
        Scene.open(database).make_ready(1)
    with served(home_of(tmp_path) | {"TRINITY_DB_URL": by_login(url)}) as page:
        follows, once = Visit.begin(browser, page), Visit.begin(browser, page)
        cluster.stop()
        once.open("/experiences")
        for visit in (follows, once):
            notice = visit.page.get_by_role("alert")
            expect(notice).to_contain_text("retries every 10 seconds")
            expect(notice).to_contain_text("database")
        cluster.ensure_running()
        for visit in (follows, once):
            expect(visit.page.locator(".notice")).to_be_hidden()
        expect(once.page.get_by_role("region", name="experiences")).to_be_visible()
        assert len(once.rows("experiences")) == 2
        assert page.stop()[0] == 0


def test_a_verdict_waits_while_the_database_is_away_and_is_stored_once(
    own_server: tuple[Cluster, str], browser: Browser, tmp_path: Path
) -> None:
    cluster, url = own_server
    environment = {"TRINITY_DB_URL": url, "TRINITY_DB_READ_URL": by_login(url)}
    with closing(Database(url)) as database, served(home_of(tmp_path) | environment, "--by", "ann") as page:
        scene = Scene.open(database)
        scene.make_ready(2)
        with database.transaction() as tx:
            ids = scene.values("SELECT id FROM trinity.experience ORDER BY id")
            reviews.ask_rows(tx, scene.run.id, ids, Question())
        visit = Visit.begin(browser, page)
        visit.open("/verdicts/run")
        keys, claim = visit.page.locator(".keys"), visit.page.locator(".claim h2")
        expect(keys).to_have_attribute("data-takes", "true")
        cluster.stop()
        visit.page.keyboard.press("g")
        notice = visit.page.get_by_text("Your verdict is kept here")
        expect(notice).to_be_visible()
        expect(claim).to_have_text(f"Experience {ids[0]}")
        visit.page.keyboard.press("b")  # no key is taken meanwhile
        database.close()
        cluster.ensure_running()
        expect(visit.page.get_by_text("Your verdict: stored.")).to_be_visible()
        expect(claim).to_have_text(f"Experience {ids[1]}")
        expect(notice).to_be_hidden()
        expect(keys).to_have_attribute("data-takes", "true")
        visit.page.keyboard.press("b")
        expect(claim).to_have_text(f"Experience {ids[2]}")
        assert scene.values("SELECT value FROM trinity.label WHERE state = 'submitted' ORDER BY id") == [1, 0]
        assert page.stop()[0] == 0
        assert visit.complaints == []


def test_a_run_that_is_deleted_while_a_person_looks_is_told(scene: Scene, visit: Visit) -> None:
    other = scene.beside("short-lived")
    visit.open("/run/short-lived")
    assert visit.facts()["state"].startswith("active")
    with scene.database.transaction() as tx:
        tx.execute("DELETE FROM trinity.run WHERE id = %s", [other.run.id])
    expect(visit.page.get_by_role("alert")).to_contain_text("There is no run 'short-lived'")
    visit.page.get_by_role("link", name="All runs").click()
    visit.page.wait_for_url("**/")


def test_a_hidden_page_asks_nothing(scene: Scene, visit: Visit) -> None:
    """A tab that is not seen sends no beat; the one after it is seen again comes at once."""
    visit.page.clock.install()
    visit.open("/")
    hide = "state => Object.defineProperty(document, 'visibilityState', {value: state, configurable: true})"
    visit.page.evaluate(hide, "hidden")
    scene.beside("made-while-hidden")
    visit.page.clock.run_for(25_000)
    expect(visit.page.get_by_role("region", name="runs")).not_to_contain_text("made-while-hidden")
    visit.page.evaluate(hide, "visible")
    visit.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(visit.page.get_by_role("region", name="runs")).to_contain_text("made-while-hidden")
