"""What visitors cost: tabs that were closed leave nothing, and hidden ones ask nothing."""

from collections.abc import Iterator
from datetime import datetime

import pytest
from playwright.sync_api import Browser

from tests.others.page.browser import Served, Visit, home_of, served
from tests.support.postgres import by_login
from tests.support.rows import Scene
from tests.support.waiting import wait_until
from trinity_db.postgres.connection import Database
from trinity_db.postgres.embedded.home_paths import READER

NAME = "run"

# The command itself, in a process that says how many clients NiceGUI keeps whenever it reads a line.
COUNTING = """
import sys, threading
from nicegui import Client
from trinity_db.cli import main
def tell():
    for _ in sys.stdin:
        print('clients', len(Client.instances), flush=True)
threading.Thread(target=tell, daemon=True).start()
main()
"""

# In this tab what happens every 10 seconds happens a hundred times as often.
HASTE = """
const [now, every] = [Date.now, window.setInterval];
Date.now = () => 100 * now();
window.setInterval = (call, pause) => every(call, pause === 10_000 ? 100 : pause);
"""
SHOW = """state => {
    Object.defineProperty(document, "visibilityState", {value: state, configurable: true});
    document.dispatchEvent(new Event("visibilitychange"));
}"""
TWENTY_BEATS = """() => new Promise(end => {
    let beats = 0;
    const timer = setInterval(() => { if (++beats === 20) { clearInterval(timer); end(); } }, 10_000);
})"""


@pytest.fixture(scope="module")
def page(database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The page, which also tells how many clients it keeps."""
    home = home_of(tmp_path_factory.mktemp("home"))
    with served(home | {"TRINITY_DB_URL": by_login(database.url)}, program=("-c", COUNTING)) as page:
        yield page


def clients(page: Served) -> int:
    """How many the process keeps now."""
    assert page.process.stdin is not None
    assert page.process.stdout is not None
    page.process.stdin.write("\n")
    page.process.stdin.flush()
    # Other lines are what the server logs of a visitor that left in the middle of an answer.
    said = next(line for line in page.process.stdout if line.startswith("clients "))
    return int(said.split()[1])


def test_tabs_that_were_closed_leave_nothing_in_the_process(
    scene: Scene, browser: Browser, page: Served
) -> None:
    scene.explore(1)
    visits = [Visit.begin(browser, page) for _ in range(3)]
    id = scene.value("SELECT max(id) FROM trinity.experience")
    for visit in visits:
        for path in (f"/run/{NAME}", "/experiences", f"/experience/{id}"):
            visit.open(path)
    assert clients(page) >= len(visits)
    for visit in visits:
        visit.page.context.close()
    wait_until(lambda: clients(page) == 0, "no client is kept")


def test_a_hidden_tab_asks_the_database_nothing(scene: Scene, browser: Browser, page: Served) -> None:
    visit = Visit.begin(browser, page)
    visit.page.add_init_script(HASTE)
    visit.open(f"/run/{NAME}")
    before = last_asked(scene)
    wait_until(lambda: last_asked(scene) > before, "a tab that is seen asks again")
    visit.page.evaluate(SHOW, "hidden")
    visit.page.evaluate(TWENTY_BEATS)  # those under way end
    before = last_asked(scene)
    visit.page.evaluate(TWENTY_BEATS)
    assert last_asked(scene) == before
    visit.page.evaluate(SHOW, "visible")
    wait_until(lambda: last_asked(scene) > before, "a tab that is seen again asks")
    visit.page.context.close()


def last_asked(scene: Scene) -> datetime:
    """When a reader's session began its latest statement."""
    found: datetime = scene.value(
        "SELECT max(query_start) FROM pg_stat_activity WHERE usename = %s AND datname = current_database()",
        READER,
    )
    return found
