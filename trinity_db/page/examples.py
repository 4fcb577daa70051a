"""Questions and their statements, from docs/guides/sql-cookbook.md (written by `make reference`)."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("examples.sql")
RUN = "larger"  # run name in the documents, replaced with a run of the store


@dataclass(frozen=True)
class Example:
    """A question with the statement that answers it."""

    part: str
    """Section of the cookbook."""
    question: str
    statement: str


def examples(run: str | None) -> Iterator[Example]:
    """Yield the examples in order, with the name of a run filled in; None keeps the documents' name."""
    part = ""
    for block in FILE.read_text(encoding="utf-8").split("\n\n"):
        if heading := re.fullmatch(r"-- (.+)", block.strip()):
            part = heading[1]
        elif question := re.match(r"-- \d+\. (.+)\n", block):
            statement = block[question.end() :].strip()
            yield Example(part, question[1], _about(statement, run or RUN))


def _about(statement: str, run: str) -> str:
    quoted = run.replace("'", "''")
    return statement.replace(f"'{RUN}'", f"'{quoted}'")
