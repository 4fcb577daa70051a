"""Checks what pins the horizon: dead rows that a transaction might still see cannot be removed.

Claims and draws then wade through more and more of them: their latency grows with every update.
"""

from psycopg.rows import DictRow

from trinity_db.diagnosis.finding import Connection, Finding, ok, span, warn
from trinity_db.schema.queries import query

IDLE_SECONDS = 60.0  # no part of trinity-db stands still in a transaction for longer than its lease of 30 s
STATEMENT_SECONDS = 600.0  # an export or a dump of a large store takes minutes; what takes longer should know
MAX_AGE = 100_000  # transactions: a busy store makes as many in minutes, a reader that keeps up lags less


def sessions(connection: Connection) -> list[Finding]:
    """Sessions that stand still in a transaction, or whose statement has run for long."""
    limits = {"idle_seconds": IDLE_SECONDS, "statement_seconds": STATEMENT_SECONDS, "max_age": MAX_AGE}
    found = []
    for row in connection.execute(query("doctor_sessions"), limits):
        who = client(row)
        if row["is_standby"]:
            found.append(
                warn(
                    "horizon standby",
                    f"{who}, a standby with hot_standby_feedback, {_pins(row['transactions'])}",
                    "end the long query on the standby, or set hot_standby_feedback = off there",
                )
            )
            continue
        since = f"{row['since']:%Y-%m-%d %H:%M:%S %Z}"
        text = f"{who} has been {row['state']} since {since} ({span(row['seconds'])})"
        text += f", {_pins(row['transactions'])}"
        remedy = f"SELECT pg_terminate_backend({row['pid']})"
        if row["state"] != "active":
            remedy += "; for the future: ALTER DATABASE ... SET idle_in_transaction_session_timeout = '10min'"
        found.append(warn("horizon session", text, remedy))
    return found or [ok("horizon session", "no session stands still in a transaction, none runs for long")]


def prepared(connection: Connection) -> list[Finding]:
    """Prepared transactions that were never ended: they outlive sessions and restarts."""
    found = [
        warn(
            "horizon prepared",
            f"transaction '{row['gid']}' of {row['role']} was prepared {span(row['seconds'])} ago, "
            f"{_pins(row['transactions'])}",
            f"ROLLBACK PREPARED '{row['gid']}', or COMMIT PREPARED",
        )
        for row in connection.execute(query("doctor_prepared"), {"idle_seconds": IDLE_SECONDS})
    ]
    return found or [ok("horizon prepared", "no prepared transaction is left over")]


def slots(connection: Connection) -> list[Finding]:
    """Replication slots without a reader, or with one that is far behind."""
    found = [
        warn(
            "horizon slot",
            f"{row['kind']} slot '{row['slot']}' {'lags' if row['is_active'] else 'has no reader'}, "
            f"{_pins(row['transactions'])}",
            f"start its reader, or SELECT pg_drop_replication_slot('{row['slot']}')",
        )
        for row in connection.execute(query("doctor_slots"), {"max_age": MAX_AGE})
    ]
    return found or [ok("horizon slot", "no replication slot keeps old rows")]


def client(row: DictRow) -> str:
    """The process, login, program and address of a session."""
    address = f", {row['address']}" if row["address"] else ""
    return f"pid {row['pid']} ({row['role']}, {row['application'] or 'no name'}{address})"


def _pins(transactions: int | None) -> str:
    if transactions is None:
        return "pins no rows, but keeps its locks"
    return f"pins the rows of the last {transactions} transactions"
