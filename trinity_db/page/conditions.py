"""Conditions in SQL that people write, and what is wrong with them in the words of the condition."""

import psycopg

from trinity_db.database import PASSING, Transaction, storable
from trinity_db.errors import ConfigError
from trinity_db.page import layout
from trinity_db.schema.queries import query

MESSAGE = 500  # characters of what is wrong; it may quote a value of megabytes
QUOTED = 200  # characters of the condition that an error repeats
BEFORE = "SELECT ARRAY["  # what stands before the condition where its syntax is checked
AFTER = "\n] FROM"
ENDS_EARLY = (
    "it is not complete: a value, a name, a closing parenthesis or a quote is missing at its end, or a "
    "bracket closes too early"
)


def meeting(tx: Transaction, condition: str, ids: list[int]) -> list[int]:
    """Those of some experiences that meet a condition in SQL on the columns of experience_view.

    Raises:
        ConfigError: the condition is none that the server understands.
    """
    rows = f"({query('page_condition_rows')}) AS experience_view"
    given = condition.replace("%", "%%")
    # What closes the parenthesis, as to go on with UNION ALL and a billion rows, does not close the bracket.
    whole = storable(f"{BEFORE}{given}{AFTER} {rows} LIMIT 0").encode()
    found = storable(f"SELECT id FROM {rows} WHERE ({given}\n)").encode()
    try:
        # Rolled back: a setting that the condition makes would stay in the session, for other pages.
        with tx.transaction(force_rollback=True):
            tx.execute(whole, {"ids": ids}, prepare=False)
            return [row["id"] for row in tx.execute(found, {"ids": ids}, prepare=False)]
    except psycopg.Error as error:
        if error.sqlstate is None or error.sqlstate.startswith((*PASSING, "53", "58")):
            raise  # the server's own trouble
        why = layout.beginning(_reason(error, condition), MESSAGE)
        raise ConfigError(f"The condition {layout.beginning(condition, QUOTED)}: {why}.") from None
    finally:
        if not tx.closed:
            tx.execute("SELECT pg_advisory_unlock_all()")  # a rollback keeps them


def _reason(error: psycopg.Error, condition: str) -> str:
    """What the server says, without the words that stand around the condition."""
    said = error.diag.message_primary or ""
    place = int(error.diag.statement_position or 0) - len(BEFORE)  # from 1, in characters
    is_syntax = error.sqlstate == "42601"
    if is_syntax and (place > len(condition.rstrip()) or AFTER in said):
        return ENDS_EARLY
    return said.replace("argument of WHERE", "a condition")
