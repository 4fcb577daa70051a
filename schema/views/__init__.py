"""Views and functions of the store, one file per topic. Each upgrade drops and recreates them.

Each CREATE has a comment above it, which becomes the comment of the object, and comments of columns below it.
Statements may use objects of any file: they are sorted by dependency. `drop.sql` lists what an upgrade drops.
"""

import re
from functools import cache
from graphlib import TopologicalSorter
from importlib.resources import files

_STATEMENT = re.compile(r"\n\n(?=(?:--.*\n)+CREATE )")
_OBJECT = re.compile(r"^CREATE (?:OR REPLACE )?(?:VIEW|FUNCTION)\s+trinity\.(\w+)", re.MULTILINE)
_FIXED = ("drop.sql", "access.sql")


@cache
def create_sql() -> str:
    """Return the statements that create all views and functions, each after the objects that it uses."""
    topics = sorted(
        (
            path
            for path in files(__package__).iterdir()
            if path.name.endswith(".sql") and path.name not in _FIXED
        ),
        key=lambda path: path.name,
    )
    statements: dict[str, str] = {}
    for path in topics:
        for statement in _STATEMENT.split(path.read_text(encoding="utf-8"))[1:]:
            [name] = _OBJECT.findall(statement)
            assert name not in statements, f"two statements create {name}"
            statements[name] = statement
    uses = {
        name: sorted({*re.findall(r"\btrinity\.(\w+)", statement)} & statements.keys() - {name})
        for name, statement in statements.items()
    }
    return "\n\n".join(statements[name] for name in TopologicalSorter(uses).static_order()) + _read(
        "access.sql"
    )


def drop_sql() -> str:
    """Return the statements that drop them."""
    return _read("drop.sql")


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
