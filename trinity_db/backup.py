"""Backs a store up and restores one, by PostgreSQL's own programs.

A dump of any server is a file of pg_dump. A program older than the server refuses to work, and the server
that the wheel brings is newer than what most systems have installed. So the program is chosen by its version.
"""

import os
import re
import shutil
import subprocess
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from trinity_db import database, embedded, opening, privileges
from trinity_db.errors import DatabaseUnavailable, TrinityError
from trinity_db.schema.queries import query
from trinity_db.settings import home


def backup(url: str, file: Path) -> None:
    """Write the whole database to a file, as one snapshot of it shows it; the store may be used meanwhile.

    Raises:
        TrinityError: the file is there, no pg_dump fits the server, or pg_dump fails.
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
    """Bring a backup into an empty store, and its schema to this code's version. All of it, or nothing.

    Raises:
        TrinityError: the store holds rows, a pooler is between, no pg_restore fits the server, pg_restore
            fails, or the login may not do it.
    """
    with (
        closing(database.connect(url)) as connection,
        database.in_our_words(connection),
        connection.transaction(),
    ):
        if database.is_pooled(connection):  # pg_restore changes its session, which another client would get
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
        # Policies name their roles, which are the server's and in no backup.
        with closing(database.connect(url)) as connection:
            privileges.make_groups(connection)
    # Rights come with the upgrade.
    _run("pg_restore", url, "--single-transaction", "--no-owner", "--no-privileges", str(file))
    opening.upgrade(url)


def _check(url: str, file: Path) -> None:
    """Read the backup's table of contents before the empty schema is dropped for it."""
    listed = _contents(url, file)
    if listed.returncode or " SCHEMA - trinity " not in listed.stdout:
        raise TrinityError(f"{file} is no backup of a store: {_reason(listed.stderr) or 'it has no tables'}")


def _contents(url: str, file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [_program("pg_restore", url), "--list", file], capture_output=True, text=True, errors="replace"
    )


def _run(program: str, url: str, *arguments: str) -> None:
    """Run one of PostgreSQL's programs on the database; the password goes by environment, not by argument."""
    place = _program(program, url)  # connects: what is no address is refused there, without its password
    parts: dict[str, Any] = dict(conninfo_to_dict(url))
    password = parts.pop("password", None)
    kept = {name: value for name, value in os.environ.items() if name not in ("PGPASSWORD", "PGOPTIONS")}
    done = subprocess.run(
        [place, f"--dbname={make_conninfo(**parts)}", "--no-password", *arguments],
        env=kept | ({"PGPASSWORD": str(password)} if password else {}),
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode:
        raise TrinityError(f"{program} failed: {_reason(done.stderr)}")


def _program(name: str, url: str) -> Path:
    """The program of the server's major version or a newer one: on PATH, or the embedded server's."""
    with closing(database.connect(url)) as connection:
        server = connection.info.server_version // 10000
    candidates = [Path(found)] if (found := shutil.which(name)) else []
    with suppress(DatabaseUnavailable):  # the wheel is not installed
        candidates.append(embedded.cluster(home()).binaries.folder / name)
    fitting = sorted((major, place) for place in candidates if (major := _major(place)) >= server)
    if not fitting:
        raise TrinityError(
            f"The server is PostgreSQL {server}, and no {name} of that version is on PATH: install the "
            f"package postgresql-client-{server}."
        )
    return fitting[0][1]


def _major(program: Path) -> int:
    said = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"\) (\d+)", said)
    return int(found[1]) if found else 0


def _reason(output: str) -> str:
    """The first line that names an error."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((line for line in lines if "error:" in line), lines[0] if lines else "")
