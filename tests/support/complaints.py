"""What the doctor complains of, for tests of what it finds."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg

Findings = list[dict[str, Any]]
Examine = Callable[[str | None], Findings]


def one(found: Findings, what: str) -> dict[str, Any]:
    """The only complaint, which has to be about this."""
    [finding] = found
    assert finding["what"] == what
    return finding


@contextmanager
def session(url: str) -> Iterator[psycopg.Connection[Any]]:
    with closing(psycopg.connect(url, application_name="a-person")) as connection:
        yield connection
