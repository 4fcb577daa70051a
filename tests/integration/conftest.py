"""A run to play with. The tests of a file share a database, as a new one takes longer than a test."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.postgres import new_database
from tests.rows import Scene
from trinity_db.database import Database


@pytest.fixture(scope="module")
def shared_database(server: str, template: str) -> Iterator[Database]:
    """A store that is empty before each scene."""
    with new_database(server, template) as url, closing(Database(url)) as database:
        yield database


@pytest.fixture
def database(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """A store that is this test's own, with a home of its own."""
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path / "home"))
    with closing(Database(database_url)) as database:
        yield database


@pytest.fixture
def scene(shared_database: Database) -> Iterator[Scene]:
    """A run at version 0 over eight tasks."""
    yield Scene.open(shared_database)
    with shared_database.transaction() as tx:
        tx.execute("DELETE FROM trinity.run")
        tx.execute("DELETE FROM trinity.taskset")
