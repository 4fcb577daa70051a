"""What the GPU computes against the CPU in float32: `make gpu`. Without a GPU every test here is skipped.

With `--device cpu` the same tests run on the CPU, so that they are tested themselves.
"""

from pathlib import Path

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gpu")
    group.addoption("--device", default="cuda", choices=("cuda", "cpu"), help="where models are held")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--device") == "cuda" and not torch.cuda.is_available():
        here = str(Path(__file__).parent)
        for item in items:
            if str(item.path).startswith(here):
                item.add_marker(pytest.mark.skip(reason="no GPU that torch can use"))


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> str:
    """cuda, or cpu on request."""
    return str(pytestconfig.getoption("--device"))
