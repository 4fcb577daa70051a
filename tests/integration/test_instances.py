"""Which store this is: the same one in the same place, another one where it was copied."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from tests.support.postgres import cluster_18, discard, execute, new_database, new_home, start
from tests.support.rows import Scene
from trinity_db.cli import db
from trinity_db.errors import TrinityError
from trinity_db.postgres import embedded
from trinity_db.postgres.connection import Database, connect
from trinity_db.postgres.embedded import presence
from trinity_db.postgres.embedded.cluster import Cluster
from trinity_db.postgres.opening import upgrade
from trinity_db.store import instances


def identify(url: str) -> instances.Instance:
    with closing(Database(url)) as database, database.transaction() as tx:
        return instances.identify(tx)


def declare_moved(url: str) -> bool:
    with closing(Database(url)) as database, database.transaction() as tx:
        return instances.declare_moved(tx)


@pytest.fixture
def copy_url(server: str, database_url: str) -> Iterator[str]:
    """A copy of the test's database, beside it, made after the original was used."""
    identify(database_url)
    with new_database(server, urlsplit(database_url).path.strip("/")) as url:
        yield url


def test_a_store_in_its_place_stays_the_same_instance(database_url: str) -> None:
    first = identify(database_url)
    assert identify(database_url) == first
    assert first.copy_of is None
    assert not declare_moved(database_url)


def test_a_copied_database_is_another_instance_from_its_first_use_on(
    database_url: str, copy_url: str
) -> None:
    original, copy = identify(database_url), identify(copy_url)
    assert copy.id != original.id
    assert copy.copy_of == original.id
    assert identify(copy_url) == copy
    assert identify(database_url) == original


def test_a_store_that_was_moved_is_the_same_instance_after_it_was_said(
    database_url: str, copy_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = identify(database_url)
    monkeypatch.setenv("TRINITY_DB_URL", copy_url)
    for line in ("The store continues here, with its folders.", "The store has not moved; nothing to do."):
        db.moved()
        assert capsys.readouterr().out == f"{line}\n"
    assert identify(copy_url) == original


def test_it_may_be_said_after_it_was_taken_for_a_copy(database_url: str, copy_url: str) -> None:
    original = identify(database_url)
    assert identify(copy_url).copy_of == original.id
    assert declare_moved(copy_url)
    assert identify(copy_url) == original


def test_a_copy_that_has_published_stays_a_copy(copy_url: str) -> None:
    copy = identify(copy_url)
    with closing(Database(copy_url)) as database:
        Scene.open(database)
    with pytest.raises(TrinityError, match="has published versions or archived arrays as a copy"):
        declare_moved(copy_url)
    assert identify(copy_url).id == copy.id


def test_two_roles_that_begin_at_once_are_of_one_instance(database_url: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert len({found.id for found in pool.map(identify, [database_url] * 8)}) == 1


def test_a_store_that_is_restored_on_another_server_is_a_copy(database_url: str, server15: str) -> None:
    original = identify(database_url)
    row = "TABLE trinity.store_instance"
    with (
        new_database(server15, "template0") as url,
        closing(connect(database_url)) as here,
        closing(connect(url, autocommit=True)) as there,
    ):
        upgrade(url)
        with here.cursor().copy(f"COPY ({row}) TO STDOUT".encode()) as dump:
            content = b"".join(dump)
        with there.cursor().copy("COPY trinity.store_instance FROM STDIN") as restore:
            restore.write(content)
        assert identify(url).copy_of == original.id


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = cluster_18()
    yield cluster
    discard(cluster)


def stopped_and_copied(cluster: Cluster) -> Cluster:
    """A cluster in a home of its own, with the files of one that is stopped for it."""
    cluster.stop()
    home = new_home()
    shutil.copytree(cluster.data, home / cluster.data.name)
    return embedded.cluster(home)


def test_a_copied_home_is_another_instance_and_a_moved_one_can_be_the_same(cluster: Cluster) -> None:
    start(cluster)
    upgrade(cluster.url())
    original = identify(cluster.url())
    other = stopped_and_copied(cluster)
    try:
        other.ensure_running()
        assert identify(other.url()).copy_of == original.id
        assert declare_moved(other.url())
        assert identify(other.url()) == original
    finally:
        discard(other)
    cluster.ensure_running()
    assert identify(cluster.url()) == original


def test_a_promoted_replica_is_the_same_instance(cluster: Cluster) -> None:
    start(cluster)
    upgrade(cluster.url())
    original = identify(cluster.url())
    replica = stopped_and_copied(cluster)
    (replica.data / "standby.signal").touch()
    try:
        with presence.locked(replica):
            replica._start()
        execute(replica.url("postgres"), "SELECT pg_promote()")
        for _ in range(2):
            assert identify(replica.url()) == original
    finally:
        discard(replica)
