"""Private PostgreSQL servers for tests: the embedded 18, and a real 15 where the machine has one.

Both are Clusters in a temporary folder, without fsync. They stop with the tests' process, whatever ends it.
"""

import atexit
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from psycopg.sql import SQL, Identifier

from trinity_db.postgres import embedded
from trinity_db.postgres.embedded.binaries import Binaries
from trinity_db.postgres.embedded.cluster import Cluster
from trinity_db.postgres.embedded.home_paths import READER, SUPERUSER

_numbers = count(1)


def new_home() -> Path:
    """An empty folder with a short path, as sockets need it, that the server's user can reach."""
    home = Path(tempfile.mkdtemp(prefix="trinity-db-test-")).resolve()
    home.chmod(0o755)
    return home


def cluster_18() -> Cluster:
    """A cluster of the embedded binaries, in a new folder; nothing runs yet."""
    return embedded.cluster(new_home())


def cluster_15() -> Cluster | None:
    """The same with PostgreSQL 15; None where there is none."""
    binaries = _find_15()
    if binaries is None:
        return None
    # Its initdb knows neither the builtin locale nor --set.
    return replace(cluster_18(), binaries=Binaries(binaries, 15, ("--no-locale",)))


def start(cluster: Cluster) -> str:
    """Start it, fast rather than durable; the URL of its maintenance database."""
    atexit.register(discard, cluster)
    cluster.ensure_running()
    url = cluster.url("postgres")
    execute(url, "ALTER SYSTEM SET fsync = off")
    execute(url, "SELECT pg_reload_conf()")
    return url


def discard(cluster: Cluster) -> None:
    """Stop the server and remove its folder. Harmless when repeated."""
    cluster.stop()
    shutil.rmtree(cluster.home, ignore_errors=True)


@contextmanager
def new_database(server: str, template: str, strategy: str = "file_copy") -> Iterator[str]:
    """The URL of a copy of a template database, dropped at the end with the sessions that are left.

    On a server without fsync `file_copy` takes about half the time of `wal_log`.
    """
    name = f"test_{os.getpid()}_{next(_numbers)}"
    execute(server, f"CREATE DATABASE {{}} TEMPLATE {{}} STRATEGY {strategy}", name, template)
    try:
        yield on_database(server, name)
    finally:
        execute(server, "DROP DATABASE {} WITH (FORCE)", name)


def on_database(server: str, name: str) -> str:
    """The URL of another database of a server."""
    return urlsplit(server)._replace(path=f"/{name}").geturl()


def by_login(url: str, login: str = READER) -> str:
    """The superuser's URL of a database for another login, by itself the one that may only read."""
    return url.replace(f"//{SUPERUSER}@", f"//{login}@", 1)


def execute(url: str, statement: str, *names: str) -> None:
    """Run one statement with quoted names, outside a transaction."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute(SQL(statement).format(*map(Identifier, names)))


def _find_15() -> Path | None:
    candidates = [os.environ.get("TRINITY_TEST_PG15_BIN"), "/usr/lib/postgresql/15/bin"]
    if config := shutil.which("pg_config"):
        candidates.append(subprocess.run([config, "--bindir"], capture_output=True, text=True).stdout.strip())
    for folder in (Path(candidate) for candidate in candidates if candidate):
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            version = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True)
            if " 15." in version.stdout:
                return folder
    return None
