"""Named SQL: every statement that moves a row.

A file holds the queries of one module: `batches.sql` those that `trinity_db/store/batches.py` runs,
`database.sql` those of `trinity_db/database.py`. Packages beside the store have a file of their name
(`diagnosis.sql`), and files of their modules' names where those have many queries (`show.sql`).
`-- name: claim_rows` begins a query, the comment below it says what it guarantees.

States stand as literals, so that partial indexes serve prepared statements. Where rows are found by id or
group, their state is asked with IS TRUE, which no partial index serves: by old statistics all rows of a state
may seem to cost less than a few look-ups.
"""

import re
from functools import cache
from importlib.resources import files

_HEADER = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


@cache
def queries() -> dict[str, str]:
    """Every query by name."""
    found: dict[str, str] = {}
    for path in sorted(files(__package__).iterdir(), key=lambda entry: entry.name):
        if path.name.endswith(".sql"):
            _, *parts = _HEADER.split(path.read_text(encoding="utf-8"))
            for name, text in zip(parts[::2], parts[1::2], strict=True):
                assert name not in found, f"two queries are named {name}"
                found[name] = text.strip()
    return found


@cache
def query(name: str, **states: str) -> str:
    """A named query as it is sent, with psycopg's %(name)s placeholders, without comments and indentation.

    Psycopg remembers how it reads a statement of up to 4,096 characters; a longer one is read anew each time.

    Args:
        states: Literals that take the place of placeholders. One statement serves all stages that way, and
            the partial index of each.
    """
    lines = (line.strip() for line in queries()[name].splitlines())
    text = "\n".join(line for line in lines if not line.startswith("--"))
    for key, state in states.items():
        placeholder = f"%({key})s"
        assert placeholder in text, f"{name} has no place for {key}"
        assert state.isidentifier(), f"{state} is no state"
        text = text.replace(placeholder, f"'{state}'")
    return text
