"""The archive: what payloads cost on disk in Postgres and Lance, how fast they move, how fast they are read.

Reading is what offline training does with archived rows: batches of 512 at random, decoded. It is compared
with a plain scan of the same Lance table, in turns: decoded, as training needs the rows, and as Arrow data,
which reads everything in order and makes nothing of it.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lancedb
import numpy as np

from benchmarks import data
from benchmarks.context import Context
from benchmarks.measure import OURS, Bar, Result, figure, in_turns, ratio
from benchmarks.scene import Scene, rollouts
from trinity_db import arrays, settings
from trinity_db.database import Database
from trinity_db.processors.archive import Archiver
from trinity_db.processors.config import ArchiveConfig
from trinity_db.schema.states import WorkerRole
from trinity_db.service import LEASE_SECONDS
from trinity_db.store import groups, instances, payloads, runs

MEASURE = "archive"
ROWS, FULL_ROWS = 51_200, 1_024_000
WRITTEN_GROUPS = 64  # at a time
BATCH_SIZE = 512
BATCHES = 20  # in one measurement
ENOUGH = Bar(0.5)
ONCE = "sizes, and the speed of archiving, are of one run"
NOT_DECODED = "it reads everything in order, and leaves it encoded"
TABLES = ("payload", "experience", "experience_text", "rollout", "rollout_group")
SIZE = "SELECT pg_total_relation_size(%s::regclass) AS bytes"


@dataclass(frozen=True)
class _Store:
    """A run all of whose rows are trained."""

    database: Database
    run: runs.Run
    worker: int
    ids: list[int]
    raw_bytes: int

    def size(self, table: str) -> int:
        """In bytes, with TOAST and indexes."""
        with self.database.transaction() as tx:
            row = tx.execute(SIZE, [f"trinity.{table}"]).fetchone()
        assert row is not None
        return int(row["bytes"])

    def vacuum(self) -> None:
        with closing(self.database.listen("vacuum")) as connection:  # in autocommit
            connection.execute("VACUUM (ANALYZE)")


def run(context: Context) -> list[Result]:
    """Fill, archive, vacuum, read."""
    count = context.rows(FULL_ROWS if context.full else ROWS)
    with context.server() as server, _place(context.scratch) as place:
        scene = Scene.open(server.new_store())
        with closing(Database(scene.url, LEASE_SECONDS)) as database:
            store = _fill(database, scene, count, context)
            store.vacuum()
            server.settle()
            before = {table: store.size(table) for table in TABLES}
            started = time.monotonic()
            archiver = Archiver(database, store.run, ArchiveConfig(), stopping=lambda: False)
            assert archiver.finish(store.worker)
            rate = count / (time.monotonic() - started)
            context.say(f"archived {count} rows, {rate:.0f} rows/s")
            store.vacuum()
            return [
                figure(MEASURE, OURS, "append, flush, read back, let go", "rows/s", [rate], note=ONCE),
                *_sizes(store, before, place, count),
                *_reading(store, context),
            ]


def _fill(database: Database, scene: Scene, count: int, context: Context) -> _Store:
    explorer = scene.new_worker(database, WorkerRole.EXPLORE)
    raw_bytes = 0
    for first in range(0, count // data.GROUP_SIZE, WRITTEN_GROUPS):
        wanted = min(WRITTEN_GROUPS, count // data.GROUP_SIZE - first)
        claimed = scene.claim(database, explorer, wanted)
        made = [
            rollout
            for group, members in zip(claimed, data.groups(wanted, first), strict=True)
            for rollout in rollouts(group, members)
        ]
        raw_bytes += sum(len(arrays.encode(rollout.payload)) for rollout in made if rollout.payload)
        with database.transaction() as tx:
            groups.write_rollouts(tx, scene.run_id, explorer, made)
    context.say(f"wrote {count} rows")
    with database.transaction() as tx:
        tx.execute("UPDATE trinity.experience SET state = 'trained', use_count = 1")
        tx.execute("UPDATE trinity.rollout_group SET state = 'trained'")
        run = runs.find(tx, "benchmark")
        ids = [row["id"] for row in tx.execute("SELECT id FROM trinity.experience ORDER BY id")]
    return _Store(database, run, scene.new_worker(database, WorkerRole.PROCESS), ids, raw_bytes)


def _sizes(store: _Store, before: dict[str, int], place: Path, count: int) -> Iterator[Result]:
    """Bytes a row, and of its payload's raw bytes."""
    lance = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    for who, num_bytes in (
        ("Postgres, before", before["payload"]),
        ("Postgres, archived and vacuumed", store.size("payload")),
        ("Lance", lance),
    ):
        share = f"payloads in {who}: {num_bytes / store.raw_bytes:.3f} of the payloads' own bytes"
        yield figure(MEASURE, OURS, f"payloads on disk: {who}", "bytes/row", [num_bytes / count], note=share)
    for table in TABLES[1:]:
        yield figure(MEASURE, OURS, f"{table} on disk", "bytes/row", [store.size(table) / count])


def _reading(store: _Store, context: Context) -> list[Result]:
    chance = np.random.default_rng(0)
    with store.database.transaction() as tx:
        [(name, _)] = payloads.archives(tx, store.run.id, instances.identify(tx).id)
    table = lancedb.connect(settings.lance_uri()).open_table(name)
    size = min(BATCH_SIZE, len(store.ids))
    ways = {
        "random": partial(_read_at_random, store, chance, size),
        "scan": partial(_scan, table, decode=False),
        "decoded": partial(_scan, table, decode=True),
    }
    found = in_turns(ways, context.repetitions)
    variant = f"batches of {size} at random, decoded"
    scan, decoded = "a plain Lance scan", "a Lance scan, decoded too"
    return [
        figure(MEASURE, OURS, variant, "rows/s", found["random"]),
        figure(MEASURE, scan, "all columns, as Arrow", "rows/s", found["scan"], note=NOT_DECODED),
        figure(MEASURE, decoded, "all columns, as arrays", "rows/s", found["decoded"]),
        ratio(MEASURE, variant, found["random"], found["scan"], scan, alternated=True),
        ratio(MEASURE, variant, found["random"], found["decoded"], decoded, ENOUGH, alternated=True),
    ]


def _read_at_random(store: _Store, chance: np.random.Generator, size: int) -> float:
    chosen = [chance.choice(store.ids, size, replace=False).tolist() for _ in range(BATCHES)]
    started = time.monotonic()
    for ids in chosen:
        assert len(payloads.read(store.database, ids)) == size
    return BATCHES * size / (time.monotonic() - started)


def _scan(table: Any, decode: bool) -> float:
    count, started = 0, time.monotonic()
    for part in table.search().limit(None).to_batches():
        count += part.num_rows
        if decode:
            columns = (part.column(name).to_pylist() for name in ("codec", "data", "num_tokens"))
            for codec, packed, num_tokens in zip(*columns, strict=True):
                arrays.decode(codec, packed, num_tokens)
    return count / (time.monotonic() - started)


@contextmanager
def _place(scratch: Path) -> Iterator[Path]:
    """A folder for the archive, which the environment names meanwhile."""
    with tempfile.TemporaryDirectory(prefix="trinity-db-bench-lance-", dir=scratch) as folder:
        os.environ["TRINITY_DB_LANCE_URI"] = folder
        try:
            yield Path(folder)
        finally:
            del os.environ["TRINITY_DB_LANCE_URI"]
