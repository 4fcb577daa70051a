"""Checks of tables and indexes: missing or invalid objects, bloat, and planner statistics."""

import re

from psycopg.rows import DictRow

from trinity_db.insight.checks.finding import Connection, Finding, fail, ok, size, warn
from trinity_db.schema import views
from trinity_db.schema.queries import query

# Vacuum lags behind: this many times the dead rows that trigger it, and enough to matter.
BEHIND = 5
DEAD_ROWS = 10_000
# Files larger than their rows need; below 64 MB it does not matter.
BLOATED = 3
BLOATED_BYTES = 64_000_000
# The indexes contain two to four numbers: about 40 bytes per entry, twice that in half-empty pages.
ENTRY_BYTES = 400
# The planner needs statistics of a table, and new ones after half of it has changed.
ANALYZED_ROWS = 10_000
CHANGED = 0.5
# Transactions. A forced vacuum begins at 200 million; at 2,100 million the server rejects writes.
OLD_AGE = 1_000_000_000
LAST_AGE = 1_900_000_000

_VIEW = re.compile(r"^CREATE (?:VIEW|FUNCTION) trinity\.(\w+)", re.MULTILINE)


def dead_rows(connection: Connection) -> list[Finding]:
    """Check for tables that vacuum cannot keep up with, or may not clean."""
    findings = []
    for row in connection.execute(query("doctor_tables")):
        if row["is_unvacuumed"] and not row["is_toast"]:
            reset = f"ALTER TABLE trinity.{row['table']} RESET (autovacuum_enabled)"
            findings.append(warn("table vacuum", f"autovacuum is switched off for {row['table']}", reset))
        if row["dead"] and row["dead"] > max(DEAD_ROWS, BEHIND * row["trigger"]):
            vacuumed = f"{row['vacuumed_at']:%Y-%m-%d %H:%M %Z}" if row["vacuumed_at"] else "never"
            findings.append(
                warn(
                    "table vacuum",
                    f"{_name(row)} has {row['dead']} dead rows and {row['rows']} live ones; "
                    f"last vacuum: {vacuumed}",
                    f"fix the horizon findings, then VACUUM trinity.{row['table']}",
                )
            )
    return findings or [ok("table vacuum", "vacuum keeps up with the dead rows of every table")]


def sizes(connection: Connection) -> list[Finding]:
    """Check for files that are much larger than their contents."""
    findings = []
    for row in connection.execute(query("doctor_tables")):
        if row["row_bytes"] and row["rows"] and row["bytes"] > BLOATED_BYTES:
            needed = row["rows"] * row["row_bytes"]
            if row["bytes"] > BLOATED * max(needed, 1):
                findings.append(
                    warn(
                        "table size",
                        f"{_name(row)} takes {size(row['bytes'])}, "
                        f"its {row['rows']} rows need about {size(needed)}",
                        f"new rows reuse the space; VACUUM FULL trinity.{row['table']} frees it, "
                        "but locks the table meanwhile",
                    )
                )
    for row in connection.execute(query("doctor_indexes")):
        if row["bytes"] > max(BLOATED_BYTES, ENTRY_BYTES * row["entries"]):
            text = f"index {row['index']} takes {size(row['bytes'])} for {row['entries']} entries"
            findings.append(warn("table size", text, f"REINDEX INDEX CONCURRENTLY trinity.{row['index']}"))
    return findings or [ok("table size", "tables and indexes are as large as their rows need")]


def statistics(connection: Connection) -> list[Finding]:
    """Check for tables whose planner statistics are missing or outdated."""
    findings = []
    for row in connection.execute(query("doctor_tables")):
        remedy = f"ANALYZE trinity.{row['table']}"
        if row["is_toast"] or row["rows"] < ANALYZED_ROWS:
            continue
        if not row["has_statistics"]:
            text = f"{row['table']} has {row['rows']} rows and was never analyzed"
            findings.append(warn("table statistics", text, remedy))
        elif row["changed"] and row["changed"] > CHANGED * row["rows"]:
            text = (
                f"{row['table']}: {row['changed']} of {row['rows']} rows were changed since its last ANALYZE"
            )
            findings.append(warn("table statistics", text, remedy))
    return findings or [ok("table statistics", "the statistics of every large table are recent")]


def wraparound(connection: Connection) -> list[Finding]:
    """Check how close the database is to transaction id wraparound, when it rejects writes."""
    row = connection.execute(query("doctor_age")).fetchone()
    assert row is not None
    oldest = max(row["transactions"], row["multixacts"])
    text = f"the oldest row may be {oldest} transactions old; the server rejects writes at 2,100 million"
    if oldest > LAST_AGE:
        return [fail("table age", text, "fix the horizon findings, then VACUUM (FREEZE)")]
    if oldest > OLD_AGE:
        return [warn("table age", text, "fix the horizon findings, then VACUUM (FREEZE)")]
    return [ok("table age", f"the oldest row may be {oldest} transactions old")]


def broken_indexes(connection: Connection) -> list[Finding]:
    """Check for leftovers of a failed CREATE or REINDEX INDEX CONCURRENTLY: they slow down every write."""
    findings = []
    for row in connection.execute(query("doctor_indexes")):
        if not row["is_valid"]:
            is_copy = re.search(r"_cc(new|old)\d*$", row["index"])
            remedy = "DROP INDEX CONCURRENTLY" if is_copy else "REINDEX INDEX CONCURRENTLY"
            level = fail if row["is_unique"] and not is_copy else warn
            findings.append(
                level("index valid", f"{row['index']} is not valid", f"{remedy} trinity.{row['index']}")
            )
    return findings or [ok("index valid", "all indexes are valid")]


def missing_indexes(connection: Connection) -> list[Finding]:
    """Check for missing indexes. Without a unique index a constraint is not enforced."""
    there = {row["index"] for row in connection.execute(query("doctor_indexes"))}
    findings = [
        (fail if is_rule else warn)("index missing", f"{name} is missing", statement)
        for name, (statement, is_rule) in _wanted_indexes().items()
        if name not in there
    ]
    return findings or [ok("index missing", "none")]


def objects(connection: Connection) -> list[Finding]:
    """Check for missing tables, views and functions."""
    from trinity_db.schema.tables.models import metadata

    there = {row["name"] for row in connection.execute(query("doctor_objects"))}
    findings = []
    if lost := sorted({table.name for table in metadata.tables.values()} - there):
        findings.append(fail("schema tables", f"missing: {', '.join(lost)}", "restore a backup"))
    if missing := [name for name in _VIEW.findall(views.create_sql()) if name not in there]:
        findings.append(fail("schema views", f"missing: {', '.join(missing)}", "trinity-db db upgrade"))
    return findings or [ok("schema objects", "all tables, views and functions exist")]


def _wanted_indexes() -> dict[str, tuple[str, bool]]:
    """Indexes of the models by name: the statement that creates each, and whether it enforces a
    constraint."""
    from sqlalchemy import PrimaryKeyConstraint, UniqueConstraint
    from sqlalchemy.dialects import postgresql
    from sqlalchemy.schema import AddConstraint, CreateIndex

    from trinity_db.schema.tables.models import metadata

    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    statements = {}
    for table in metadata.sorted_tables:
        for index in table.indexes:
            statement = str(CreateIndex(index).compile(dialect=dialect))
            at_work = statement.replace(" INDEX ", " INDEX CONCURRENTLY ", 1)
            statements[str(index.name)] = (at_work, bool(index.unique))
        for rule in table.constraints:
            if isinstance(rule, PrimaryKeyConstraint | UniqueConstraint):
                # Not isolated: otherwise the models would create their tables without it from then on.
                addition = AddConstraint(rule, isolate_from_table=False)
                statements[str(rule.name)] = (str(addition.compile(dialect=dialect)), True)
    return statements


def _name(row: DictRow) -> str:
    return f"the TOAST of {row['table']}" if row["is_toast"] else str(row["table"])
