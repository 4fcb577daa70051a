"""What a server spends while a fleet works: processor time, connections, and its log by cause."""

import os
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg.sql import SQL, Literal

from benchmarks.server import Server
from tests import pooler
from trinity_db.embedded.cluster import Cluster
from trinity_db.errors import TrinityError

POOL = 20  # server connections behind PgBouncer
KEPT_LOG = "24GB"  # so that the log of a whole measurement can be read at its end
_RECORD = re.compile(
    r"^(?P<kind>\S+)\s+\d+ \(\s*[\d.]+\)\s+(?P<bytes>\d+) \(\s*[\d.]+\)\s+(?P<images>\d+) \(", re.M
)
SIZES = """
SELECT sum(pg_table_size(c.oid))::float8 AS tables, sum(pg_indexes_size(c.oid))::float8 AS indexes,
       (SELECT count(*) FROM trinity.rollout)::float8 AS rollouts
FROM pg_class c WHERE c.relnamespace = 'trinity'::regnamespace AND c.relkind = 'r'
"""


def prepare(server: Server, connections: int) -> None:
    """Let a server take so many connections, and keep its log."""
    server.execute(SQL("ALTER SYSTEM SET max_connections = {}").format(Literal(connections)))
    server.execute(SQL("ALTER SYSTEM SET wal_keep_size = {}").format(Literal(KEPT_LOG)))
    server.cluster.stop()
    server.cluster.ensure_running()


def compress_images(server: Server, is_on: bool) -> None:
    """Whether the server compresses the images of pages in its log, from now on."""
    server.execute(SQL("ALTER SYSTEM SET wal_compression = {}").format(Literal("on" if is_on else "off")))
    server.execute(SQL("SELECT pg_reload_conf()"))


@dataclass(frozen=True)
class Moment:
    """What a server had spent at a time."""

    lsn: str
    seconds: float
    """Of processor time, by all of its processes."""


@dataclass(frozen=True)
class Spent:
    """What it spent between two moments."""

    seconds: float
    images: float
    """Bytes of its log that are images of whole pages."""
    heap: float
    indexes: float
    other: float


def now(cluster: Cluster) -> Moment:
    """What the server has spent so far."""
    with closing(psycopg.connect(cluster.url("postgres"), autocommit=True)) as connection:
        row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None
    return Moment(row[0], _processor_seconds(cluster))


def between(cluster: Cluster, start: Moment, end: Moment) -> Spent:
    """What the server spent from one moment to another, its log by cause."""
    limits = ("--start", start.lsn, "--end", end.lsn)
    place = ("--path", str(cluster.data / "pg_wal"))
    dump = cluster.binaries.run("pg_waldump", "--stats=record", *place, *limits, data=cluster.data)
    bytes_of: dict[str, int] = {"heap": 0, "indexes": 0, "other": 0}
    images = 0
    for found in _RECORD.finditer(dump.stdout):
        manager = found["kind"].partition("/")[0]
        if manager == "Total":
            continue
        kind = {"Heap": "heap", "Heap2": "heap", "Btree": "indexes", "Gin": "indexes"}.get(manager, "other")
        bytes_of[kind] += int(found["bytes"])
        images += int(found["images"])
    if not sum(bytes_of.values()):
        raise TrinityError(f"pg_waldump says nothing of {start.lsn} to {end.lsn}: {dump.stdout[-300:]}")
    return Spent(end.seconds - start.seconds, images, **bytes_of)


def connections(url: str) -> int:
    """Client connections to the server of this database, this one not counted."""
    with closing(psycopg.connect(url)) as connection:
        row = connection.execute(
            "SELECT count(*) - 1 FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND datname = current_database()"
        ).fetchone()
    assert row is not None
    return int(row[0])


def bytes_on_disk(url: str) -> tuple[float, float]:
    """Bytes of tables and of indexes for each rollout of a store."""
    with closing(psycopg.connect(url)) as connection:
        row = connection.execute(SIZES.encode()).fetchone()
    assert row is not None
    return row[0] / row[2], row[1] / row[2]


@contextmanager
def pooled(url: str, clients: int) -> Iterator[str]:
    """The URL of a database through a PgBouncer of this block, in transaction mode.

    Raises:
        TrinityError: there is no PgBouncer.
    """
    if pooler.installed() is None:
        raise TrinityError("PgBouncer is not installed (Debian's package pgbouncer).")
    with pooler.pooled(url, size=POOL, clients=clients) as through:
        yield through


def _processor_seconds(cluster: Cluster) -> float:
    """Of the postmaster, its children, and the children that have ended; Linux tells them in /proc."""
    postmaster = int(cluster.pid_file.read_text().split()[0])
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()  # from the state on; a name may have blanks
        except OSError:  # it ended in this moment
            continue
        if int(stat.parent.name) == postmaster:
            ticks += sum(map(int, fields[11:15]))
        elif int(fields[1]) == postmaster:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
