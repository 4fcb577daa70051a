"""A PostgreSQL of the benchmarks' own: new, on a disk, as durable as the embedded server always is.

Its databases serve one measure each: the store's, those of bare statements, and those of peers that keep
their rows in PostgreSQL, so that all of them share one server and its settings.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from psycopg.sql import SQL, Identifier

from trinity_db import embedded, opening
from trinity_db.embedded.cluster import Cluster
from trinity_db.errors import TrinityError

IN_MEMORY = {"tmpfs", "ramfs"}
DURABLE = ("fsync", "synchronous_commit", "full_page_writes")


@dataclass(frozen=True)
class Server:
    """A server that runs, and the databases on it."""

    cluster: Cluster
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = f"bench_{next(self._numbers)}"
        self.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        return urlsplit(self._maintenance)._replace(path=f"/{name}").geturl()

    def new_store(self) -> str:
        """The URL of a database with the store's schema, and nothing in it."""
        url = self.new_database()
        opening.upgrade(url)
        return url

    def settle(self) -> None:
        """Write out what others left dirty, so that the next measurement does not pay for it."""
        self.execute(SQL("CHECKPOINT"))

    def facts(self) -> dict[str, str]:
        """The server's version, and the settings that say what a commit promises."""
        with closing(psycopg.connect(self._maintenance)) as connection:
            names = ("server_version", *DURABLE, "shared_buffers", "max_wal_size")
            return {name: str(connection.execute(f"SHOW {name}".encode()).fetchall()[0][0]) for name in names}

    def execute(self, statement: SQL | psycopg.sql.Composed) -> None:
        with closing(psycopg.connect(self._maintenance, autocommit=True)) as connection:
            connection.execute(statement)

    @property
    def _maintenance(self) -> str:
        return self.cluster.url("postgres")


@contextmanager
def running(scratch: Path) -> Iterator[Server]:
    """A new server in a folder under `scratch`; stopped and removed at the end.

    Raises:
        TrinityError: the folder lies in memory, or the server does not promise that commits last.
    """
    refuse_memory(scratch)
    home = Path(tempfile.mkdtemp(prefix="trinity-db-bench-", dir=scratch)).resolve()
    home.chmod(0o755)  # the server's user must pass
    server = Server(embedded.cluster(home))
    try:
        server.cluster.ensure_running()
        if unsafe := [name for name, value in server.facts().items() if name in DURABLE and value != "on"]:
            raise TrinityError(f"The server is not durable: {', '.join(unsafe)} must be on.")
        yield server
    finally:
        server.cluster.stop()
        shutil.rmtree(home, ignore_errors=True)


def refuse_memory(folder: Path) -> None:
    """Raise a TrinityError where a folder's files lie in memory: a commit there costs nothing."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():  # not Linux: nothing is mounted in memory by default
        return
    lines = [line.split() for line in mounts.read_text().splitlines()]
    kinds = {Path(mount): kind for _, mount, kind, *_ in lines}
    place = folder.resolve()
    kind = next((kinds[path] for path in (place, *place.parents) if path in kinds), "")
    if kind in IN_MEMORY:
        raise TrinityError(f"{folder} lies in memory ({kind}); name a folder on a disk with --scratch.")
