"""Derives from the models which rows of which tables belong to a run, and which columns refer to which
tables."""

from dataclasses import dataclass, field

from sqlalchemy import Column, Table

from trinity_db.schema.tables.base import SCHEMA
from trinity_db.schema.tables.models import metadata

SHARED = ("taskset", "task")
"""Tables that belong to no run. A copy includes every taskset that its runs use, as a whole."""


class Uncovered(ValueError):
    """A table or column whose role in a copy is undefined; the message explains what to declare."""


@dataclass(frozen=True)
class Copied:
    """A table as part of a copy."""

    table: Table
    references: dict[str, str]
    """Columns that hold ids, with the table that they refer to."""
    places: dict[str, str]
    """Columns that hold positions in the order of a table's ids, with that table."""
    columns: list[Column[object]] = field(init=False)
    """All columns except generated ones."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", [c for c in self.table.columns if c.computed is None])

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def has_ids(self) -> bool:
        """Whether the server assigns ids to its rows."""
        return _identity(self.table) is not None


def copied_tables() -> list[Copied]:
    """Return every table with rows of runs, after the tables that its foreign keys refer to.

    Raises:
        Uncovered: if a table belongs to no run, and its `info` does not exclude it.
    """
    described = [_describe(table) for table in metadata.sorted_tables if table.info.get("copied", True)]
    for copied in described:
        _condition(copied.table)
    return described


def condition(copied: Copied) -> str:
    """Return SQL that is true for rows `t` of the runs in %(runs)s and of the tasksets in %(tasksets)s."""
    return _condition(copied.table)


def run_of(copied: Copied) -> str | None:
    """Return SQL for the run that a row `t` is assigned to in the copy, unless it is simply its own column.

    Rows about a shared row that come from a run outside the copy are assigned to the run of that row.
    """
    subjects = copied.table.info.get("goes_with")
    if not subjects or "run_id" not in copied.table.columns:
        return None
    owners = [
        f"(SELECT o.run_id FROM {_quoted(_target(copied.table.columns[name]))} o WHERE o.id = t.{name})"
        for name in subjects
    ]
    return f"CASE WHEN t.run_id = ANY(%(runs)s) THEN t.run_id ELSE coalesce({', '.join(owners)}) END"


def quoted(copied: Copied) -> str:
    """Return the table's quoted name."""
    return _quoted(copied.name)


def _describe(table: Table) -> Copied:
    references, places = {}, {}
    for column in table.columns:
        if "lies_among" in column.info:
            places[column.name] = column.info["lies_among"]
        elif (target := _target(column)) is not None and column is not _identity(table):
            references[column.name] = target
    return Copied(table, references, places)


def _target(column: Column[object]) -> str | None:
    """Return the table whose ids a column holds: as declared, or derived from its foreign keys."""
    if "refers_to" in column.info:
        return str(column.info["refers_to"])
    for key in sorted(column.foreign_keys, key=lambda key: key.target_fullname):
        target = key.column
        table_name = target.table.name if target is _identity(target.table) else _target(target)
        if table_name is not None:
            return table_name
    return None


def _identity(table: Table) -> Column[object] | None:
    return next((column for column in table.columns if column.identity is not None), None)


def _condition(table: Table, seen: tuple[str, ...] = ()) -> str:
    if table.name in SHARED:
        return "t.id = ANY(%(tasksets)s)" if table.name == "taskset" else "t.taskset_id = ANY(%(tasksets)s)"
    if table.name == "run":
        return "t.id = ANY(%(runs)s)"
    if subjects := table.info.get("goes_with"):
        among = [
            f"SELECT x.id FROM {_quoted(table.name)} x WHERE x.{name} IN ({_ids(_target(column), seen)})"
            for name, column in ((name, table.columns[name]) for name in subjects)
        ]
        return f"t.id IN ({' UNION ALL '.join(among)})"
    for column in table.columns:
        if _target(column) == "run" and not column.nullable:
            return f"t.{column.name} = ANY(%(runs)s)"
    for column in table.columns:
        target = _target(column)
        if target is None or column.nullable or target in (*SHARED, table.name, *seen):
            continue
        return f"t.{column.name} IN ({_ids(target, (*seen, table.name))})"
    raise Uncovered(
        f"It is undefined which rows of {table.name} belong to a run: give it a run_id, a reference to a "
        'table that has one, or {"info": OF_THE_STORE}.'
    )


def _ids(name: str | None, seen: tuple[str, ...]) -> str:
    assert name is not None
    table = metadata.tables[f"{SCHEMA}.{name}"]
    return f"SELECT t.id FROM {_quoted(name)} t WHERE {_condition(table, seen)}"


def _quoted(name: str | None) -> str:
    return f'{SCHEMA}."{name}"'
