"""Logins of a server: makes those that may do less than the owner of the store, and says what one may do."""

import psycopg
from psycopg import sql

from trinity_db.errors import TrinityError
from trinity_db.schema.queries import query

READERS = "trinity_reader"  # the group role that reads every table and writes none

# A reader holds no lock that a run waits for. What it can do is keep old row versions alive, take
# connections and fill the disk with files of large sorts. So each of its sessions ends in time. A server
# that does not know one of these settings, or lets only a superuser set it, goes without it.
READER_LIMITS = {
    "default_transaction_read_only": "on",
    "statement_timeout": "10min",
    "idle_in_transaction_session_timeout": "1min",
    "transaction_timeout": "1h",  # PostgreSQL 17 or newer
    "temp_file_limit": "10GB",  # set by superusers only
}
READER_CONNECTIONS = 20


def make_login(
    connection: psycopg.Connection[psycopg.rows.DictRow], login: str, group: str, password: str | None = None
) -> None:
    """Make a login that is a member of a group role, and limit it where it is a reader.

    A login that is there already stays, with its password, and is a member afterwards.

    Raises:
        psycopg.Error: this session may not make roles.
    """
    names = {"login": sql.Identifier(login), "group": sql.Identifier(group)}
    with connection.transaction():
        found = connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [login])
        if not found.rowcount:
            connection.execute(sql.SQL("CREATE ROLE {login} LOGIN").format(**names))
            if password is not None:
                set_password(connection, login, password)
        connection.execute(sql.SQL("GRANT {group} TO {login}").format(**names))
    if group == READERS:
        _limit(connection, login)


def set_password(connection: psycopg.Connection[psycopg.rows.DictRow], login: str, password: str) -> None:
    """Give a login a password, of which the server sees the hash alone."""
    secret = connection.pgconn.encrypt_password(password.encode(), login.encode(), b"scram-sha-256").decode()
    statement = sql.SQL("ALTER ROLE {login} PASSWORD {secret}")
    connection.execute(statement.format(login=sql.Identifier(login), secret=secret))


def refuse_writer(connection: psycopg.Connection[psycopg.rows.DictRow]) -> None:
    """Let a session pass whose login can change nothing, also not by taking on another role.

    Raises:
        TrinityError: it can, with the way to a login that cannot.
    """
    row = connection.execute(query("login_rights")).fetchone()
    assert row is not None
    if row["can_write"]:
        right = "is a superuser" if row["is_superuser"] else "may write"
        raise TrinityError(
            f"Login '{row['login']}' {right}, so the server would not keep this statement from writing: "
            f"make a login that may only read (member of {READERS}), and name it in TRINITY_DB_READ_URL; "
            "or give --write."
        )


def _limit(connection: psycopg.Connection[psycopg.rows.DictRow], login: str) -> None:
    statement = sql.SQL("ALTER ROLE {login} CONNECTION LIMIT {limit}")
    connection.execute(statement.format(login=sql.Identifier(login), limit=READER_CONNECTIONS))
    for name, value in READER_LIMITS.items():
        try:
            with connection.transaction():
                connection.execute(
                    sql.SQL("ALTER ROLE {login} SET {name} = {value}").format(
                        login=sql.Identifier(login), name=sql.Identifier(name), value=value
                    )
                )
        except (psycopg.errors.UndefinedObject, psycopg.errors.InsufficientPrivilege):
            continue
