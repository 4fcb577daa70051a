"""Checks for what holds back the xmin horizon: dead rows that a transaction might still see cannot be
removed.

Claims and draws then have to skip more and more dead rows: their latency grows with every update.
"""

from psycopg.rows import DictRow

from trinity_db.insight.checks.finding import Connection, Finding, ok, span, warn
from trinity_db.schema.queries import query

IDLE_SECONDS = 60.0  # no part of trinity-db idles in a transaction for longer than its lease of 30 s
STATEMENT_SECONDS = 600.0  # exports and dumps of a large store take minutes; anything longer is reported
MAX_AGE = 100_000  # transactions: a busy store runs as many in minutes; a reader that keeps up lags less


def sessions(connection: Connection) -> list[Finding]:
    """Check for sessions that idle in a transaction, and for long-running statements."""
    limits = {"idle_seconds": IDLE_SECONDS, "statement_seconds": STATEMENT_SECONDS, "max_age": MAX_AGE}
    findings = []
    for row in connection.execute(query("doctor_sessions"), limits):
        session = client(row)
        if row["is_standby"]:
            findings.append(
                warn(
                    "horizon standby",
                    f"{session}, a standby with hot_standby_feedback, {_pins(row['transactions'])}",
                    "end the long query on the standby, or set hot_standby_feedback = off there",
                )
            )
            continue
        since = f"{row['since']:%Y-%m-%d %H:%M:%S %Z}"
        text = f"{session} has been {row['state']} since {since} ({span(row['seconds'])})"
        text += f", {_pins(row['transactions'])}"
        remedy = f"SELECT pg_terminate_backend({row['pid']})"
        if row["state"] != "active":
            remedy += "; to prevent it:  ALTER DATABASE ... SET idle_in_transaction_session_timeout = '10min'"
        findings.append(warn("horizon session", text, remedy))
    return findings or [ok("horizon session", "no session idles in a transaction or runs a long statement")]


def prepared(connection: Connection) -> list[Finding]:
    """Check for orphaned prepared transactions: they outlive sessions and restarts."""
    findings = [
        warn(
            "horizon prepared",
            f"transaction '{row['gid']}' of {row['role']} was prepared {span(row['seconds'])} ago, "
            f"{_pins(row['transactions'])}",
            f"ROLLBACK PREPARED '{row['gid']}', or COMMIT PREPARED",
        )
        for row in connection.execute(query("doctor_prepared"), {"idle_seconds": IDLE_SECONDS})
    ]
    return findings or [ok("horizon prepared", "no orphaned prepared transactions")]


def slots(connection: Connection) -> list[Finding]:
    """Check for replication slots without a reader, or with a reader that lags far behind."""
    findings = [
        warn(
            "horizon slot",
            f"{row['kind']} slot '{row['slot']}' {'lags' if row['is_active'] else 'has no reader'}, "
            f"{_pins(row['transactions'])}",
            f"start its reader, or SELECT pg_drop_replication_slot('{row['slot']}')",
        )
        for row in connection.execute(query("doctor_slots"), {"max_age": MAX_AGE})
    ]
    return findings or [ok("horizon slot", "no replication slot holds back the horizon")]


def client(row: DictRow) -> str:
    """Describe the process, login, program and address of a session."""
    address = f", {row['address']}" if row["address"] else ""
    return f"pid {row['pid']} ({row['role']}, {row['application'] or 'no name'}{address})"


def _pins(transactions: int | None) -> str:
    if transactions is None:
        return "holds back no rows, but keeps its locks"
    return f"prevents the removal of dead rows of the last {transactions} transactions"
