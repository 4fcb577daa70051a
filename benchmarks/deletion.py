"""The deletion of a run: what each part of it costs, and the claims of another run beside it.

The rows of a run that was trained are first deleted and vacuumed by table, against dropping a table that has
just these rows, as a partition would. Then, in turns, such a run is deleted as `trinity-db delete` does it:
alone, and by another process beside a run whose rows go from raw to trained, as in `hour`.
"""

import multiprocessing
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from multiprocessing.connection import Connection

import psycopg

from benchmarks.beside import QUIET, Seconds, keep, latencies
from benchmarks.context import Context
from benchmarks.filled import fill
from benchmarks.hour import Flow
from benchmarks.measure import OURS, Result, figure
from benchmarks.scene import Scene
from benchmarks.server import Server
from trinity_db.database import Database
from trinity_db.schema.states import RunKind, WorkerRole
from trinity_db.service import LEASE_SECONDS
from trinity_db.store import deletion, runs, workers

MEASURE = "deletion"
DELETED = "deleted"
ROWS = 51_200  # rollouts of the run that is deleted
BATCH_ROWS = 512
METRICS = 3  # a rollout: three times what 1,000 explorers write
FILLED = 2048  # new rows of the other run at a time
BESIDE = "beside a deletion"
DROPPED = "dropped as a partition"
TABLES = ("metric", "processing", "batch_item", "payload", "experience_text", "reward_event", "rollout")

EXPLAINED_ROWS = 5_000  # of one transaction of a deletion
EXPLAINED = f"""
EXPLAIN (ANALYZE, FORMAT JSON) DELETE FROM trinity.experience e
WHERE e.id IN (SELECT o.id FROM trinity.experience o ORDER BY o.id LIMIT {EXPLAINED_ROWS})
"""

# What roles would have written beside the rows. Keys hold by construction.
TRAINED = """
SET LOCAL session_replication_role = replica;
INSERT INTO trinity.processing (experience_id, processor, processor_version, attempt, outcome)
SELECT e.id, v.processor, 1, v.attempt, 'passed'
FROM trinity.experience e, (VALUES ('clean', 1), ('score', 2)) v (processor, attempt)
WHERE e.run_id = {run_id};
INSERT INTO trinity.reward_event (run_id, rollout_id, source, name, value)
SELECT e.run_id, e.rollout_id, 'score', 'exact_match', 1 FROM trinity.experience e WHERE e.run_id = {run_id};
INSERT INTO trinity.batch
    (run_id, step, state, worker_id, setting_id, policy_version, size, sampler, seed, query, committed_at)
SELECT s.run_id, n, 'committed', {worker_id}, s.id, 0, 64, 'fifo', 0, '', now()
FROM trinity.run_setting s, generate_series(1, {num_rows} / {batch_rows}) n WHERE s.run_id = {run_id};
INSERT INTO trinity.batch_item (batch_id, ordinal, experience_id)
SELECT b.id, e.number % {batch_rows}, e.id
FROM (SELECT e.id, row_number() OVER (ORDER BY e.id) - 1 AS number
      FROM trinity.experience e WHERE e.run_id = {run_id}) e
JOIN trinity.batch b ON b.run_id = {run_id} AND b.step = 1 + e.number / {batch_rows};
INSERT INTO trinity.metric (run_id, role, step, name, value)
SELECT {run_id}, 'train', n / 30, 'metric/' || n % 30, n FROM generate_series(1, {metrics} * {num_rows}) n;
"""


def run(context: Context) -> list[Result]:
    """By table; then alone and beside a run, in turns."""
    with context.server() as server:
        scene = Scene.open(server.new_store())
        num_rows = context.rows(ROWS)
        fill_trained(scene, DELETED, num_rows)
        context.say("by table")
        found = _by_table(server, scene, num_rows)
        found += _foreign_keys(scene)
        flow = Flow.open(scene)
        flow.move(FILLED)  # connections, plans and caches
        seconds: dict[str, Seconds] = {QUIET: {}, BESIDE: {}}
        alone: list[dict[str, Cost]] = []
        for number in range(context.repetitions):
            context.say(f"{num_rows} rows, {number + 1} of {context.repetitions}")
            if number:
                fill_trained(scene, DELETED, num_rows)
            server.settle()
            alone.append(_alone(flow.database))
            fill_trained(scene, DELETED, num_rows)
            moves = _beside(flow, seconds[BESIDE])
            flow.seconds.clear()
            for _ in range(moves):
                flow.move(FILLED)
            keep(flow, seconds[QUIET])
        return latencies(MEASURE, BESIDE, seconds) + _costs(num_rows, alone) + found


def fill_trained(scene: Scene, name: str, num_rows: int) -> int:
    """Make a run beside the scene's, whose rows were judged and trained on; its id."""
    with closing(Database(scene.url)) as database, database.transaction() as tx:
        runs.create(tx, name, RunKind.TRAIN, {"name": name}, "groups")
        made = runs.find(tx, name)
        worker = workers.register(tx, made, WorkerRole.TRAIN)
        workers.stop(tx, worker)
    fill(Scene(scene.url, made.id, scene.taskset_id), num_rows, state="trained")
    with closing(psycopg.connect(scene.url, autocommit=True)) as connection:
        with connection.transaction():
            statement = TRAINED.format(
                run_id=made.id, worker_id=worker, num_rows=num_rows, batch_rows=BATCH_ROWS, metrics=METRICS
            )
            connection.execute(statement.encode())
        connection.execute(b"VACUUM (ANALYZE)")
    return made.id


class Cost:
    """Seconds and bytes of WAL, which add up."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.wal = 0

    def measure(self, connection: psycopg.Connection, work: Callable[[], object]) -> None:
        begun, lsn = time.perf_counter(), wal_bytes(connection)
        work()
        self.seconds += time.perf_counter() - begun
        self.wal += wal_bytes(connection) - lsn


def _costs(num_rows: int, alone: Sequence[dict[str, Cost]]) -> list[Result]:
    """Of each part of the deletion that had rows, and of the whole."""
    found = []
    for part in ("all", *alone[0]):
        each = [
            (sum(c.seconds for c in one.values()), sum(c.wal for c in one.values()))
            if part == "all"
            else (one[part].seconds, one[part].wal)
            for one in alone
        ]
        variant = f"{num_rows} rollouts, {part}"
        found.append(figure(MEASURE, OURS, variant, "s", [seconds for seconds, _ in each]))
        found.append(figure(MEASURE, OURS, variant, "MB of WAL", [wal / 1e6 for _, wal in each]))
    return found


def _alone(database: Database) -> dict[str, Cost]:
    """Delete the run, measured by part; parts of no rows are left out."""
    parts: dict[str, Cost] = defaultdict(Cost)
    with closing(psycopg.connect(database.url, autocommit=True)) as connection:
        last = time.perf_counter(), wal_bytes(connection)

        def note(part: str, count: int) -> None:
            nonlocal last
            now = time.perf_counter(), wal_bytes(connection)
            if count:
                parts[part].seconds += now[0] - last[0]
                parts[part].wal += now[1] - last[1]
            last = time.perf_counter(), now[1]

        _delete(database, note)
    return dict(parts)


def _delete(database: Database, note: Callable[[str, int], None] = lambda part, count: None) -> None:
    with database.transaction() as tx:
        found = runs.find(tx, DELETED)
        deletion.begin(tx, found, LEASE_SECONDS)
    deletion.delete_rows(database, found, note)
    with database.transaction() as tx:
        deletion.finish(tx, found)


def _beside(flow: Flow, seconds: Seconds) -> int:
    """Move new rows until another process has deleted the run; how often."""
    process = multiprocessing.get_context("spawn")
    receiver, sender = process.Pipe(duplex=False)
    deleter = process.Process(target=_delete_beside, args=(flow.scene.url, sender))
    deleter.start()
    sender.close()
    receiver.recv()  # it begins
    flow.seconds.clear()
    moves = 0
    while deleter.is_alive():
        flow.move(FILLED)
        moves += 1
    deleter.join()
    assert deleter.exitcode == 0
    keep(flow, seconds)
    return moves


def _delete_beside(url: str, sender: Connection) -> None:
    with closing(Database(url, LEASE_SECONDS)) as database:
        sender.send("begins")
        _delete(database)


def _by_table(server: Server, scene: Scene, num_rows: int) -> list[Result]:
    """Each table's rows deleted and vacuumed, without foreign keys, or dropped with a table of their own."""
    found = []
    with closing(psycopg.connect(scene.url, autocommit=True)) as connection:
        for table in TABLES:
            for copy in ("kept", "own"):
                connection.execute(f"CREATE TABLE {copy} (LIKE trinity.{table} INCLUDING ALL)".encode())
                connection.execute(
                    f"INSERT INTO {copy} OVERRIDING SYSTEM VALUE TABLE trinity.{table}".encode()
                )
            connection.execute(b"VACUUM (ANALYZE) kept, own")
            server.settle()
            for who, statements in {
                OURS: (b"DELETE FROM kept", b"VACUUM kept"),
                DROPPED: (b"DROP TABLE own",),
            }.items():
                cost = Cost()
                for statement in statements:
                    cost.measure(connection, partial(connection.execute, statement))
                variant = f"{num_rows} rollouts, table {table}, without foreign keys"
                found.append(figure(MEASURE, who, variant, "ms", [1e3 * cost.seconds]))
                found.append(figure(MEASURE, who, variant, "MB of WAL", [cost.wal / 1e6]))
            connection.execute(b"DROP TABLE kept")
    return found


def _foreign_keys(scene: Scene) -> list[Result]:
    """What it takes to delete a row of `experience`, and what the foreign keys that name it take of this."""
    with closing(psycopg.connect(scene.url)) as connection:
        row = connection.execute(EXPLAINED.encode()).fetchone()
        connection.rollback()
    assert row is not None
    [explained] = row[0]
    keys = [trigger["Time"] for trigger in explained["Triggers"]]
    return [
        figure(MEASURE, OURS, variant, "µs", [1e3 * milliseconds / EXPLAINED_ROWS])
        for variant, milliseconds in {
            "a row of experience": explained["Execution Time"],
            f"a row of experience, {len(keys)} foreign keys": sum(keys),
        }.items()
    ]


def wal_bytes(connection: psycopg.Connection) -> int:
    """Bytes of WAL that the server has made since it is there."""
    row = connection.execute(b"SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").fetchone()
    assert row is not None
    return int(row[0])
