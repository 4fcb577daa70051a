"""Which rows of which tables are a run's, and which columns hold ids of which tables, by the models."""

from dataclasses import dataclass, field

from sqlalchemy import Column, Table

from trinity_db.schema.base import SCHEMA
from trinity_db.schema.models import metadata

SHARED = ("taskset", "task")
"""Tables that belong to no run. A copy takes along the tasksets that its runs use, each as a whole."""


class Uncovered(ValueError):
    """A table or a column whose place in a copy is not known; the message says what to declare."""


@dataclass(frozen=True)
class Copied:
    """A table as a copy of a run has it."""

    table: Table
    references: dict[str, str]
    """Column → the table whose ids it holds."""
    places: dict[str, str]
    """Column → the table in the order of whose ids it is a place."""
    columns: list[Column[object]] = field(init=False)
    """All but those that the server computes itself."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", [c for c in self.table.columns if c.computed is None])

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def has_ids(self) -> bool:
        """Whether its rows have ids that the server gives out."""
        return _identity(self.table) is not None


def copied_tables() -> list[Copied]:
    """Every table that has rows of runs, each after those that its foreign keys name.

    Raises:
        Uncovered: a table belongs to no run, and its `info` does not say that it need not.
    """
    found = [_describe(table) for table in metadata.sorted_tables if table.info.get("copied", True)]
    for copied in found:
        _condition(copied.table)
    return found


def condition(copied: Copied) -> str:
    """SQL that is true for the rows `t` of the runs in %(runs)s, and of the tasksets in %(tasksets)s."""
    return _condition(copied.table)


def run_of(copied: Copied) -> str | None:
    """SQL for the run that a row `t` is filed under in the copy, where that is not simply its own column.

    What is said of a shared row by way of a run that is not copied is filed under the run of that row.
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
    """The table's name for a statement."""
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
    """The table whose ids a column holds: by its own declaration, or along its foreign keys."""
    if "refers_to" in column.info:
        return str(column.info["refers_to"])
    for key in sorted(column.foreign_keys, key=lambda key: key.target_fullname):
        target = key.column
        found = target.table.name if target is _identity(target.table) else _target(target)
        if found is not None:
            return found
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
        f"Nothing says which rows of {table.name} are a run's: give it a run_id, a reference to a table that "
        'has one, or {"info": OF_THE_STORE}.'
    )


def _ids(name: str | None, seen: tuple[str, ...]) -> str:
    assert name is not None
    table = metadata.tables[f"{SCHEMA}.{name}"]
    return f"SELECT t.id FROM {_quoted(name)} t WHERE {_condition(table, seen)}"


def _quoted(name: str | None) -> str:
    return f'{SCHEMA}."{name}"'
