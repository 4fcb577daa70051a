"""A store with the demo's task in it, the model that the demo's warm start leaves, and a table of results."""

from collections.abc import Iterator

import pytest

from tests.acceptance.command import Store, new_store
from tests.others.learning import task

RESULTS = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[RESULTS] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    terminalreporter.section("learning")
    for line in config.stash[RESULTS]:
        terminalreporter.write_line(line)


@pytest.fixture
def results(pytestconfig: pytest.Config) -> list[str]:
    """Where a test leaves what it measured."""
    return pytestconfig.stash[RESULTS]


@pytest.fixture(scope="session")
def store(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with new_store(server, template, tmp_path_factory.mktemp("learning")) as store:
        store.import_rows("reverse-tasks", "tasks", task.TRAINING)
        store.import_rows("reverse-demonstrations", "demonstrations", task.DEMONSTRATIONS)
        task.train(store, "run", {**task.WARMUP, "name": task.WARM_START, "seed": 0})
        yield store
