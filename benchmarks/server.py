"""PostgreSQL for benchmarks: new, on a disk, as durable as the embedded server.

The store, bare statements and peers that use PostgreSQL have their own databases on one server.
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

from trinity_db.errors import TrinityError
from trinity_db.postgres import embedded, opening
from trinity_db.postgres.embedded.cluster import Cluster

IN_MEMORY = {"tmpfs", "ramfs"}
DURABLE = ("fsync", "synchronous_commit", "full_page_writes")


@dataclass(frozen=True)
class Server:
    """Running server and its databases."""

    cluster: Cluster
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def new_database(self) -> str:
        """Create an empty database. Returns its URL."""
        name = f"bench_{next(self._numbers)}"
        self.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        return urlsplit(self._maintenance)._replace(path=f"/{name}").geturl()

    def new_store(self) -> str:
        """Create a database with the store's empty schema. Returns its URL."""
        url = self.new_database()
        opening.upgrade(url)
        return url

    def settle(self) -> None:
        """Flush dirty pages, so that the next measurement does not pay for them."""
        self.execute(SQL("CHECKPOINT"))

    def facts(self) -> dict[str, str]:
        """Return the server's version and its settings of durability and memory."""
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
    """Run a new server in a folder under `scratch`; stop and remove it at the end.

    Raises:
        TrinityError: If the folder is in memory or the server is not durable.
    """
    refuse_memory(scratch)
    home = Path(tempfile.mkdtemp(prefix="trinity-db-bench-", dir=scratch)).resolve()
    home.chmod(0o755)  # readable by the server's user
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
    """Raise a TrinityError if a folder is in memory, where a commit costs nothing."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():  # not Linux
        return
    lines = [line.split() for line in mounts.read_text().splitlines()]
    kinds = {Path(mount): kind for _, mount, kind, *_ in lines}
    resolved = folder.resolve()
    kind = next((kinds[path] for path in (resolved, *resolved.parents) if path in kinds), "")
    if kind in IN_MEMORY:
        raise TrinityError(f"{folder} is in memory ({kind}); pass a folder on a disk with --scratch.")
