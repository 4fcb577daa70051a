"""The options of the chaos suite, and its summary at the end.

make chaos MINUTES=10 SEED=7 REPORT=chaos.json
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("tests.chaos.promises")

SHORT_MINUTES = 1.5
SUMMARIES = pytest.StashKey[list[dict[str, Any]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("chaos")
    group.addoption(
        "--minutes",
        type=float,
        default=SHORT_MINUTES,
        help="of disturbance on PostgreSQL 18; on 15 two thirds of it",
    )
    group.addoption("--seed", type=int, help="of what happens when, and to which role; a new one by default")
    group.addoption("--report", type=Path, help="write the summary as JSON to this file")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SUMMARIES] = []
    if config.getoption("--seed") is None:
        config.option.seed = random.SystemRandom().randrange(10**6)


@pytest.fixture(scope="session")
def summaries(pytestconfig: pytest.Config) -> list[dict[str, Any]]:
    """Where runs leave their summary."""
    return pytestconfig.stash[SUMMARIES]


def pytest_report_header(config: pytest.Config) -> str:
    return f"chaos: seed {config.getoption('--seed')}, {config.getoption('--minutes')} minutes"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for summary in config.stash[SUMMARIES]:
        terminalreporter.section(f"chaos: {summary['server']}")
        for name, value in summary.items():
            terminalreporter.write_line(f"{name:32} {value}")
    path: Path | None = config.getoption("--report")
    if path is not None:
        path.write_text(json.dumps(config.stash[SUMMARIES], indent=2) + "\n")
