"""Named SQL: every statement that changes a row.

A file contains the queries of one module: `batches.sql` for `trinity_db/store/batches.py`, `connection.sql`
for `trinity_db/postgres/connection.py`. Packages other than the store have a file of the same name
(`checks.sql`), and further files named after modules with many queries (`show.sql`). `-- name: claim_rows`
begins a query; the comment below it describes the result, the guarantees and the locked rows.

States are literals, so that prepared statements can use partial indexes. If rows are found by id or group,
their state is tested with IS TRUE, for which no partial index is used: with outdated statistics, scanning all
rows of a state may seem cheaper than a few look-ups.
"""

import re
from functools import cache
from importlib.resources import files

_HEADER = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


@cache
def queries() -> dict[str, str]:
    """Return all queries by name."""
    by_name: dict[str, str] = {}
    for path in sorted(files(__package__).iterdir(), key=lambda entry: entry.name):
        if path.name.endswith(".sql"):
            _, *parts = _HEADER.split(path.read_text(encoding="utf-8"))
            for name, text in zip(parts[::2], parts[1::2], strict=True):
                assert name not in by_name, f"two queries are named {name}"
                by_name[name] = text.strip()
    return by_name


@cache
def query(name: str, **states: str) -> str:
    """Return a query as sent, with psycopg's %(name)s placeholders, without comment lines and indentation.

    Psycopg caches the parsing of statements of up to 4,096 characters; longer ones are parsed each time.

    Args:
        states: literals to substitute for placeholders, so that all stages share a statement, each
            with its partial index.
    """
    lines = (line.strip() for line in queries()[name].splitlines())
    text = "\n".join(line for line in lines if not line.startswith("--"))
    for key, state in states.items():
        placeholder = f"%({key})s"
        assert placeholder in text, f"{name} has no place for {key}"
        assert state.isidentifier(), f"{state} is no state"
        text = text.replace(placeholder, f"'{state}'")
    return text
