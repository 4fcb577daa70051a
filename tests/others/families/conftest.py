"""`--write` lets the families' tests write their table, in place of comparing it."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write", action="store_true", help="write the table of families into the documents")
