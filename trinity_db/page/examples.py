"""Questions with the statements that answer them, from docs/guides/sql-cookbook.md (`make reference`)."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("examples.sql")
RUN = "larger"  # the run of the documents, in whose place a person has one of their own


@dataclass(frozen=True)
class Example:
    """A question with its statement."""

    part: str
    """What it is about."""
    question: str
    statement: str


def examples(run: str | None) -> Iterator[Example]:
    """The examples in their order, about a run; None: about that of the documents."""
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
