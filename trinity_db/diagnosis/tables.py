"""Checks of our tables and indexes: what is missing or broken, what has grown, what the planner lacks."""

import re
from importlib.resources import files

from psycopg.rows import DictRow

from trinity_db.diagnosis.finding import Connection, Finding, fail, ok, size, warn
from trinity_db.schema.queries import query

# A vacuum that is behind: this many times the dead rows that start one, and enough to be felt.
BEHIND = 5
DEAD_ROWS = 10_000
# A file that is larger than its rows need; below 64 MB it does not matter.
BLOATED = 3
BLOATED_BYTES = 64_000_000
# Our indexes hold two to four numbers: about 40 bytes an entry, twice that in half-empty pages.
ENTRY_BYTES = 400
# The planner knows nothing of a table without statistics, and too little of one that has changed by half.
ANALYZED_ROWS = 10_000
CHANGED = 0.5
# Transactions. A vacuum that cannot be avoided begins at 200 million; at 2,100 the server takes no writes.
OLD_AGE = 1_000_000_000
LAST_AGE = 1_900_000_000

_VIEW = re.compile(r"^CREATE (?:VIEW|FUNCTION) trinity\.(\w+)", re.MULTILINE)


def dead_rows(connection: Connection) -> list[Finding]:
    """Tables that vacuum does not keep up with, or is not allowed to clean."""
    found = []
    for row in connection.execute(query("doctor_tables")):
        if row["is_unvacuumed"] and not row["is_toast"]:
            reset = f"ALTER TABLE trinity.{row['table']} RESET (autovacuum_enabled)"
            found.append(warn("table vacuum", f"autovacuum is switched off for {row['table']}", reset))
        if row["dead"] and row["dead"] > max(DEAD_ROWS, BEHIND * row["trigger"]):
            vacuumed = f"{row['vacuumed_at']:%Y-%m-%d %H:%M %Z}" if row["vacuumed_at"] else "never"
            found.append(
                warn(
                    "table vacuum",
                    f"{_name(row)} has {row['dead']} dead rows beside {row['rows']} live ones; "
                    f"last vacuum: {vacuumed}",
                    f"what the lines about the horizon say, then VACUUM trinity.{row['table']}",
                )
            )
    return found or [ok("table vacuum", "no table has more dead rows than vacuum keeps up with")]


def sizes(connection: Connection) -> list[Finding]:
    """Files that are much larger than what is in them."""
    found = []
    for row in connection.execute(query("doctor_tables")):
        if row["row_bytes"] and row["rows"] and row["bytes"] > BLOATED_BYTES:
            needed = row["rows"] * row["row_bytes"]
            if row["bytes"] > BLOATED * max(needed, 1):
                found.append(
                    warn(
                        "table size",
                        f"{_name(row)} takes {size(row['bytes'])}, "
                        f"its {row['rows']} rows need about {size(needed)}",
                        f"new rows use the room again; VACUUM FULL trinity.{row['table']} gives it back, "
                        "and locks the table meanwhile",
                    )
                )
    for row in connection.execute(query("doctor_indexes")):
        if row["bytes"] > max(BLOATED_BYTES, ENTRY_BYTES * row["entries"]):
            text = f"index {row['index']} takes {size(row['bytes'])} for {row['entries']} entries"
            found.append(warn("table size", text, f"REINDEX INDEX CONCURRENTLY trinity.{row['index']}"))
    return found or [ok("table size", "tables and indexes are as large as their rows need")]


def statistics(connection: Connection) -> list[Finding]:
    """Tables whose statistics for the planner are missing or old."""
    found = []
    for row in connection.execute(query("doctor_tables")):
        remedy = f"ANALYZE trinity.{row['table']}"
        if row["is_toast"] or row["rows"] < ANALYZED_ROWS:
            continue
        if not row["has_statistics"]:
            text = f"{row['table']} has {row['rows']} rows and was never analyzed"
            found.append(warn("table statistics", text, remedy))
        elif row["changed"] and row["changed"] > CHANGED * row["rows"]:
            text = (
                f"{row['table']}: {row['changed']} of {row['rows']} rows were changed since its last ANALYZE"
            )
            found.append(warn("table statistics", text, remedy))
    return found or [ok("table statistics", "every large table was analyzed since most of it was written")]


def wraparound(connection: Connection) -> list[Finding]:
    """How far the database is from having to be frozen before it takes another write."""
    row = connection.execute(query("doctor_age")).fetchone()
    assert row is not None
    oldest = max(row["transactions"], row["multixacts"])
    found = f"the oldest row may be {oldest} transactions old; the server takes no writes at 2,100 million"
    if oldest > LAST_AGE:
        return [fail("table age", found, "VACUUM (FREEZE), after what the lines about the horizon say")]
    if oldest > OLD_AGE:
        return [warn("table age", found, "VACUUM (FREEZE), after what the lines about the horizon say")]
    return [ok("table age", f"the oldest row may be {oldest} transactions old")]


def broken_indexes(connection: Connection) -> list[Finding]:
    """What a failed CREATE or REINDEX INDEX CONCURRENTLY left: it costs every write and serves no query."""
    found = []
    for row in connection.execute(query("doctor_indexes")):
        if not row["is_valid"]:
            is_copy = re.search(r"_cc(new|old)\d*$", row["index"])
            remedy = "DROP INDEX CONCURRENTLY" if is_copy else "REINDEX INDEX CONCURRENTLY"
            level = fail if row["is_unique"] and not is_copy else warn
            found.append(
                level("index valid", f"{row['index']} is not valid", f"{remedy} trinity.{row['index']}")
            )
    return found or [ok("index valid", "all indexes can be used")]


def missing_indexes(connection: Connection) -> list[Finding]:
    """Indexes of our tables that are not there. Without a unique one a rule is not kept."""
    there = {row["index"] for row in connection.execute(query("doctor_indexes"))}
    found = [
        (fail if is_rule else warn)("index missing", f"{name} is not there", statement)
        for name, (statement, is_rule) in _wanted_indexes().items()
        if name not in there
    ]
    return found or [ok("index missing", "none")]


def objects(connection: Connection) -> list[Finding]:
    """Tables, views and functions that are not there."""
    from trinity_db.schema.models import metadata

    text = files("trinity_db.schema").joinpath("views.sql").read_text(encoding="utf-8")
    there = {row["name"] for row in connection.execute(query("doctor_objects"))}
    found = []
    if lost := sorted({table.name for table in metadata.tables.values()} - there):
        found.append(fail("schema tables", f"not there: {', '.join(lost)}", "restore a backup"))
    if missing := [name for name in _VIEW.findall(text) if name not in there]:
        found.append(fail("schema views", f"not there: {', '.join(missing)}", "trinity-db db upgrade"))
    return found or [ok("schema objects", "all tables, views and functions are there")]


def _wanted_indexes() -> dict[str, tuple[str, bool]]:
    """The indexes of the models by name: the statement that makes one, and whether it keeps a rule."""
    from sqlalchemy import PrimaryKeyConstraint, UniqueConstraint
    from sqlalchemy.dialects import postgresql
    from sqlalchemy.schema import AddConstraint, CreateIndex

    from trinity_db.schema.models import metadata

    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    wanted = {}
    for table in metadata.sorted_tables:
        for index in table.indexes:
            statement = str(CreateIndex(index).compile(dialect=dialect))
            at_work = statement.replace(" INDEX ", " INDEX CONCURRENTLY ", 1)
            wanted[str(index.name)] = (at_work, bool(index.unique))
        for rule in table.constraints:
            if isinstance(rule, PrimaryKeyConstraint | UniqueConstraint):
                # Not isolated: the models would make their tables without it from then on.
                addition = AddConstraint(rule, isolate_from_table=False)
                wanted[str(rule.name)] = (str(addition.compile(dialect=dialect)), True)
    return wanted


def _name(row: DictRow) -> str:
    return f"the TOAST of {row['table']}" if row["is_toast"] else str(row["table"])
