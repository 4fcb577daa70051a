"""The figures of the rehearsal, at the end."""

import pytest

pytest.register_assert_rewrite("tests.chaos.promises")
FIGURES = pytest.StashKey[dict[str, float]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FIGURES] = {}


@pytest.fixture(scope="session")
def figures(pytestconfig: pytest.Config) -> dict[str, float]:
    """What was measured, in seconds."""
    return pytestconfig.stash[FIGURES]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    terminalreporter.section("seconds")
    for name, value in config.stash[FIGURES].items():
        terminalreporter.write_line(f"{name:60} {value}")
