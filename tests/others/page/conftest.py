"""A store with rows that a file's tests share, the page on it, and a browser."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from playwright.sync_api import Browser

from tests.others.page.browser import Profile, Served, Visit, chromium, home_of, served
from tests.support.postgres import by_login, new_database
from tests.support.rows import Scene
from trinity_db.postgres.connection import Database


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def database(server: str, template: str) -> Iterator[Database]:
    with new_database(server, template) as url, closing(Database(url)) as database:
        yield database


@pytest.fixture(scope="module")
def scene(database: Database) -> Scene:
    """A run at version 0 over eight tasks."""
    return Scene.open(database)


@pytest.fixture(scope="module")
def page(database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The page, by a login that may only read."""
    home = home_of(tmp_path_factory.mktemp("home"))
    with served(home | {"TRINITY_DB_URL": by_login(database.url)}) as page:
        yield page


@pytest.fixture(scope="session")
def profile(browser: Browser) -> Profile:
    return Profile(browser)


@pytest.fixture
def visit(profile: Profile, page: Served) -> Iterator[Visit]:
    """A person who opened the printed address; in their browser nothing went wrong, and nothing left it."""
    visit = Visit.within(profile.context(), page)
    yield visit
    profile.leave()
    assert (visit.complaints, visit.elsewhere()) == ([], [])
