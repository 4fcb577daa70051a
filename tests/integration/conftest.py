"""A run to play with. The tests of a file share a database, as a new one takes longer than a test."""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.echo import Echo
from tests.support.explorers import Explore, Explorers, Says, publish
from tests.support.object_store import ObjectStore, new_object_store
from tests.support.postgres import new_database
from tests.support.rows import Scene
from trinity_db.explorer.attempt.workflow import Workflow
from trinity_db.explorer.service import Explorer
from trinity_db.postgres.connection import Database
from trinity_db.weights.bucket import Bucket


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
    for thread in threading.enumerate():  # a trainer that stops does not wait for the conversion of versions
        if thread.name == "deltas":
            thread.join()
    with shared_database.transaction() as tx:
        tx.execute("DELETE FROM trinity.run")
        tx.execute("DELETE FROM trinity.taskset")
        tx.execute("DELETE FROM trinity.sweep")


@pytest.fixture
def starting_model(scene: Scene, tmp_path: Path) -> Path:
    """Files of version 0, which an explorer holds to their hash."""
    folder = tmp_path / "version-0"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    publish(scene, 0, folder)
    return folder


@pytest.fixture
def explorer(scene: Scene, starting_model: Path) -> Iterator[Explorers]:
    """Makes explorers, and releases them at the end."""
    explorers = Explorers(scene)
    yield explorers
    explorers.release()


@pytest.fixture
def explore(explorer: Explorers) -> Explore:
    """Makes an explorer of one group by an engine that talks, and lets it work until nothing is under way."""

    def explore(
        workflow: Workflow, engine: Echo | None = None, *, size: int = 2, groups: int = 1, **options: Any
    ) -> Explorer:
        role = explorer(workflow, engine or Says(), group_size=size, groups=groups, **options)
        assert role.work()
        return role

    return explore


@pytest.fixture
def written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that a thread of the trainer writes are safe when the trainer looks at them."""
    from trinity_db.trainer.checkpoints.writing import Writing

    monkeypatch.setattr(Writing, "has_ended", property(lambda writing: writing.wait() is None))


@pytest.fixture(scope="module")
def server_of_objects(request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    """moto as an S3 server, unless a test names the scheme of another one."""
    with new_object_store(getattr(request, "param", "s3")) as found:
        yield found


@pytest.fixture
def objects(
    server_of_objects: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ObjectStore]:
    """A server whose bucket is empty, and a home that has fetched nothing."""
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path / "home"))
    for name, value in server_of_objects.environment.items():
        monkeypatch.setenv(name, value)
    yield server_of_objects
    server_of_objects.come_back()  # it may be away
    Bucket(server_of_objects.address).delete(server_of_objects.names())
