"""Logins with fewer rights than the store's owner: creates them and checks their rights."""

import secrets
from importlib.resources import files

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from trinity_db.errors import TrinityError
from trinity_db.schema.queries import query

ROLES = ("explorer", "processor", "trainer", "labeller", "reader")
READERS = "trinity_reader"  # the group role that reads every table and writes none

# A reader holds no lock that a run waits for. But it can keep old row versions alive, use up connections and
# fill the disk with temporary files of large sorts. So its sessions are limited in time. Settings that a
# server lacks, or reserves for superusers, are skipped.
READER_LIMITS = {
    "default_transaction_read_only": "on",
    "statement_timeout": "10min",
    "idle_in_transaction_session_timeout": "1min",
    "transaction_timeout": "1h",  # PostgreSQL 17 or newer
    "temp_file_limit": "10GB",  # set by superusers only
}
READER_CONNECTIONS = 20
PASSWORD_BYTES = 24


def roles_sql() -> str:
    """Return the statements that create the group roles (ROLES, prefixed with `trinity_`) and their
    rights."""
    return f"{_statements('roles.sql')}\n{_statements('functions.sql')}"


def open_to_roles(connection: psycopg.Connection[psycopg.rows.DictRow]) -> None:
    """Create the group roles and grant them their rights to the store. Idempotent.

    Raises:
        TrinityError: if the login may not create roles, or does not own the tables.
    """
    try:
        with connection.transaction():
            connection.execute(roles_sql().encode())
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction) as error:
        raise TrinityError(
            f"Login '{connection.info.user}' may not do this ({error.diag.message_primary}): let a login "
            "that owns the tables and may make roles run it, or the output of: trinity-db db roles --print"
        ) from error


def make_groups(connection: psycopg.Connection[psycopg.rows.DictRow]) -> None:
    """Create the missing group roles, without rights.

    Raises:
        TrinityError: if the login may not create roles.
    """
    names = [f"trinity_{name}" for name in ROLES]
    try:
        with connection.transaction():
            for name in names:
                if not connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [name]).rowcount:
                    connection.execute(sql.SQL("CREATE ROLE {} NOLOGIN").format(sql.Identifier(name)))
    except psycopg.errors.InsufficientPrivilege as error:
        raise TrinityError(
            f"Login '{connection.info.user}' may not make roles, and the store needs {', '.join(names)}: let "
            "a login that may make them first"
        ) from error


def make_login(
    connection: psycopg.Connection[psycopg.rows.DictRow], login: str, group: str, password: str | None = None
) -> None:
    """Create a login as a member of a group role, with limits if it is a reader.

    An existing login keeps its password and becomes a member.

    Raises:
        psycopg.Error: if this session may not create roles.
    """
    names = {"login": sql.Identifier(login), "group": sql.Identifier(group)}
    with connection.transaction():
        roles = connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [login])
        if not roles.rowcount:
            connection.execute(sql.SQL("CREATE ROLE {login} LOGIN").format(**names))
            if password is not None:
                set_password(connection, login, password)
        connection.execute(sql.SQL("GRANT {group} TO {login}").format(**names))
    if group == READERS:
        _limit(connection, login)


def is_reader(connection: psycopg.Connection[psycopg.rows.DictRow], login: str) -> bool:
    """Whether the login exists and may read the store."""
    row = connection.execute(query("is_reader"), {"login": login, "group": READERS}).fetchone()
    assert row is not None
    return bool(row["is_so"])


def let_read(connection: psycopg.Connection[psycopg.rows.DictRow]) -> None:
    """Grant readers access to a store that was created without their group role, like views/access.sql."""
    group = sql.Identifier(READERS)
    for right in ("USAGE ON SCHEMA", "SELECT ON ALL TABLES IN SCHEMA", "SELECT ON ALL SEQUENCES IN SCHEMA"):
        connection.execute(sql.SQL(f"GRANT {right} trinity TO {{}}").format(group))


def may_call_restricted(connection: psycopg.Connection[psycopg.rows.DictRow], login: str) -> bool:
    """Whether a login may call functions that `restrict_functions` forbids for readers."""
    row = connection.execute(query("may_call_restricted"), {"login": login}).fetchone()
    assert row is not None
    return bool(row["is_so"])


def restrict_functions(connection: psycopg.Connection[psycopg.rows.DictRow]) -> None:
    """Forbid readers the functions in functions.sql. Has an effect only as superuser."""
    connection.execute(_statements("functions.sql").encode())


def new_login(
    connection: psycopg.Connection[psycopg.rows.DictRow], store_url: str, login: str, role: str
) -> str:
    """Create a login in one of ROLES; return its URL of the store, with its password.

    Raises:
        TrinityError: if the login exists already, or may not be created.
    """
    if connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [login]).rowcount:
        raise TrinityError(
            f"There is a login '{login}' already: GRANT trinity_{role} TO it, or name another."
        )
    password = secrets.token_urlsafe(PASSWORD_BYTES)
    try:
        make_login(connection, login, f"trinity_{role}", password)
    except psycopg.Error as error:
        raise TrinityError(f"The login was not made: {error.diag.message_primary}") from error
    return make_conninfo(store_url, user=login, password=password)


def check_labeller(connection: psycopg.Connection[psycopg.rows.DictRow]) -> None:
    """Refuse a session whose login may not give verdicts.

    Raises:
        TrinityError: with the remedy.
    """
    row = connection.execute(query("is_labeller")).fetchone()
    assert row is not None
    if not row["is_so"]:
        raise TrinityError(
            f"Login '{row['login']}' may give no verdicts: let the store's owner GRANT trinity_labeller TO "
            "it (trinity-db db roles), or name another login in TRINITY_DB_URL."
        )


def set_password(connection: psycopg.Connection[psycopg.rows.DictRow], login: str, password: str) -> None:
    """Set a login's password. The server receives only its hash."""
    secret = connection.pgconn.encrypt_password(password.encode(), login.encode(), b"scram-sha-256").decode()
    statement = sql.SQL("ALTER ROLE {login} PASSWORD {secret}")
    connection.execute(statement.format(login=sql.Identifier(login), secret=secret))


def refuse_writer(
    connection: psycopg.Connection[psycopg.rows.DictRow], reads: str, otherwise: str = ""
) -> None:
    """Refuse a session whose login can write, directly or by assuming another role.

    Args:
        reads: name of the reader in the error.
        otherwise: alternative remedy, at the end of the error.

    Raises:
        TrinityError: with the way to a read-only login.
    """
    row = connection.execute(query("login_rights")).fetchone()
    assert row is not None
    if row["can_write"]:
        right = "is a superuser" if row["is_superuser"] else "may write"
        raise TrinityError(
            f"Login '{row['login']}' {right}, so the server would not keep {reads} from writing: "
            "make one that may only read (trinity-db db roles --login NAME --as reader), and name it in "
            f"TRINITY_DB_READ_URL{otherwise}."
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


def _statements(file: str) -> str:
    return files("trinity_db.schema").joinpath(file).read_text(encoding="utf-8")
