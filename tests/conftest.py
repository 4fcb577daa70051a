"""Servers for the whole session, and a database of its own for each test that asks for one."""

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.command_line import CommandLine, Done
from tests.support.postgres import cluster_15, cluster_18, discard, execute, new_database, on_database, start
from trinity_db.worker import cores

TEMPLATE = "trinity_template"

# A shell starts what it runs in the background with Ctrl-C ignored, and children inherit that: those
# that the tests interrupt would never hear of it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# pytest-xdist gives its workers the width of a terminal. What tests read is as wide as in a pipe.
os.environ.pop("COLUMNS", None)

# Commands remember in which folders they made stores: not those of tests.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="trinity-db-test-state-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

# Threads that spin while they wait would take the cores from one another, and from processes under test.
cores.wait_passively()

# Workers side by side have a core each. With more threads they would wait for one another's.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Other processes may keep a test waiting, so time tells nothing about its inputs.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# While torch and transformers are imported, the garbage collector would look at a million objects again and
# again and find none to free: 5 s of each session, and later 0.7 s each time.
gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage again from here on, but not among what the imports made."""
    gc.freeze()
    gc.enable()


def make_template(url: str) -> None:
    """Give an empty database what every test's database starts with."""
    from trinity_db.postgres import opening

    opening.upgrade(url)


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The URL of the maintenance database of an embedded server."""
    cluster = cluster_18()
    yield start(cluster)
    discard(cluster)


@pytest.fixture(scope="session")
def server15() -> Iterator[str]:
    """The same of a PostgreSQL 15, the oldest that is supported."""
    cluster = cluster_15()
    if cluster is None:
        pytest.skip("no PostgreSQL 15 found; install it, or name its bin folder in TRINITY_TEST_PG15_BIN")
    yield start(cluster)
    discard(cluster)


@pytest.fixture(scope="session")
def template(server: str) -> str:
    return _with_template(server)


@pytest.fixture(scope="session")
def template15(server15: str) -> str:
    return _with_template(server15)


@pytest.fixture
def database_url(server: str, template: str) -> Iterator[str]:
    """The URL of a database that is this test's own, with the schema at head."""
    with new_database(server, template) as url:
        yield url


@pytest.fixture
def database_url_15(server15: str, template15: str) -> Iterator[str]:
    """The same on PostgreSQL 15."""
    with new_database(server15, template15) as url:
        yield url


@pytest.fixture(scope="module")
def terminal() -> Iterator[None]:
    """A terminal that closes ends this process and its children, also where the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Runs trinity-db with these arguments in this process."""

    def command_line(*arguments: str) -> Done:
        from trinity_db import cli

        monkeypatch.setattr(sys, "argv", ["trinity-db", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return Done(end.value.code, *capsys.readouterr())

    return command_line


def _with_template(server: str) -> str:
    execute(server, "CREATE DATABASE {}", TEMPLATE)
    make_template(on_database(server, TEMPLATE))
    return TEMPLATE
