"""SQL conditions that people write, with errors in terms of the condition."""

import psycopg

from trinity_db.errors import ConfigError
from trinity_db.page import layout
from trinity_db.postgres.connection import PASSING, Transaction, storable
from trinity_db.schema.queries import query

MESSAGE = 500  # characters of an error, which may quote a value of megabytes
QUOTED = 200  # characters of the condition that an error repeats
BEFORE = "SELECT ARRAY["  # precedes the condition when its syntax is checked
AFTER = "\n] FROM"
ENDS_EARLY = (
    "it is not complete: a value, a name, a closing parenthesis or a quote is missing at its end, or a "
    "bracket closes too early"
)


def meeting(tx: Transaction, condition: str, ids: list[int]) -> list[int]:
    """Return the experiences that meet an SQL condition on the columns of experience_view.

    Raises:
        ConfigError: if the server rejects the condition.
    """
    rows = f"({query('page_condition_rows')}) AS experience_view"
    escaped = condition.replace("%", "%%")
    # A condition that closes the parenthesis, to append UNION ALL and a billion rows, cannot close the
    # bracket.
    whole = storable(f"{BEFORE}{escaped}{AFTER} {rows} LIMIT 0").encode()
    select = storable(f"SELECT id FROM {rows} WHERE ({escaped}\n)").encode()
    try:
        # Rolled back: otherwise a setting changed by the condition would stay in the session, for other
        # pages.
        with tx.transaction(force_rollback=True):
            tx.execute(whole, {"ids": ids}, prepare=False)
            return [row["id"] for row in tx.execute(select, {"ids": ids}, prepare=False)]
    except psycopg.Error as error:
        if error.sqlstate is None or error.sqlstate.startswith((*PASSING, "53", "58")):
            raise  # a fault of the server
        why = layout.beginning(_reason(error, condition), MESSAGE)
        raise ConfigError(f"The condition {layout.beginning(condition, QUOTED)}: {why}.") from None
    finally:
        if not tx.closed:
            tx.execute("SELECT pg_advisory_unlock_all()")  # a rollback does not release them


def _reason(error: psycopg.Error, condition: str) -> str:
    """The server's message, without the SQL around the condition."""
    message = error.diag.message_primary or ""
    position = int(error.diag.statement_position or 0) - len(BEFORE)  # from 1, in characters
    is_syntax = error.sqlstate == "42601"
    if is_syntax and (position > len(condition.rstrip()) or AFTER in message):
        return ENDS_EARLY
    return message.replace("argument of WHERE", "a condition")
