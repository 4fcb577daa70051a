"""Models to step with; and at the end of the run, how far each part is from each peer."""

import pytest

from tests.others.peers.cases import DIFFERENCES
from tests.others.peers.steps import Models, build_models


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "default")  # what peers warn of is no failure of ours


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("largest difference of loss and gradient")
    for (part, peer), largest in sorted(DIFFERENCES.items()):
        terminalreporter.write_line(f"{part:<50} {peer:<12} {largest:.1e}")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return build_models(tmp_path_factory.mktemp("models"))
