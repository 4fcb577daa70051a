"""Retention: what a processor takes to remove old rows of a run, and the claims of another run beside it.

The processor's turn runs in a process of its own, with the share of time that processors give to it.
"""

import multiprocessing
import time
from contextlib import closing
from multiprocessing.connection import Connection

import psycopg

from benchmarks.beside import QUIET, Seconds, keep, latencies
from benchmarks.context import Context
from benchmarks.deletion import ROWS, fill_trained, wal_bytes
from benchmarks.hour import Flow
from benchmarks.measure import OURS, Result, figure
from benchmarks.scene import Scene
from trinity_db.database import Database
from trinity_db.processors.retention import SHARE, Remover
from trinity_db.service import LEASE_SECONDS
from trinity_db.store import retention, runs

MEASURE = "retention"
OLD = "old"
FILLED = 2048  # new rows of the other run at a time
BESIDE = "beside removals"
CONFIG = '{"processors": {"retention": {"payloads": "1h", "metrics": "1h", "processing": "1h"}}}'

# All rows are two hours old, and of batches that the oldest checkpoint includes.
AGED = """
UPDATE trinity.run SET config = '{config}' WHERE id = {run_id};
INSERT INTO trinity.policy_version
    (run_id, version, step, checkpoint_hash, checkpoint, resume_from, resume_hash)
VALUES ({run_id}, 1, 1, '', 'x', 'x', '');
UPDATE trinity.batch SET included_version = 1 WHERE run_id = {run_id};
UPDATE trinity.experience SET created_at = now() - interval '2 hours' WHERE run_id = {run_id};
UPDATE trinity.metric SET created_at = now() - interval '2 hours' WHERE run_id = {run_id};
UPDATE trinity.processing SET created_at = now() - interval '2 hours'
WHERE experience_id IN (SELECT id FROM trinity.experience WHERE run_id = {run_id});
DELETE FROM trinity.sweep;
"""
ARE_LOOKING = "SELECT count(*) FROM trinity.sweep WHERE after_id > 0 OR ended_at IS NULL"


def run(context: Context) -> list[Result]:
    """Old rows removed alone, without pauses, and beside a run, in turns."""
    with context.server() as server:
        scene = Scene.open(server.new_store())
        num_rows = context.rows(ROWS)
        flow = Flow.open(scene)
        flow.move(FILLED)  # connections, plans and caches
        seconds: dict[str, Seconds] = {QUIET: {}, BESIDE: {}}
        alone, idle = list[tuple[float, float, float]](), list[float]()
        for number in range(context.repetitions):
            context.say(f"{num_rows} rows, {number + 1} of {context.repetitions}")
            _fill(scene, f"{OLD} {number}", num_rows)
            server.settle()
            alone.append(_alone(scene))
            idle.append(_idle(scene))
            _fill(scene, f"{OLD} {number} beside", num_rows)
            flow.seconds.clear()
            for _ in range(_beside(flow, seconds[BESIDE])):
                flow.move(FILLED)
            keep(flow, seconds[QUIET])
        variant = f"{num_rows} rollouts"
        found = [
            figure(MEASURE, OURS, variant, "s without pauses", [one[0] for one in alone]),
            figure(MEASURE, OURS, variant, "ms the longest transaction", [1e3 * one[1] for one in alone]),
            figure(MEASURE, OURS, variant, "MB of WAL", [one[2] / 1e6 for one in alone]),
            figure(MEASURE, OURS, f"{variant}, a look that finds nothing", "s without pauses", idle),
        ]
        return latencies(MEASURE, BESIDE, seconds) + found


def _fill(scene: Scene, name: str, num_rows: int) -> None:
    """A run whose rows were judged and trained on, long ago, and whose processors have started since."""
    run_id = fill_trained(scene, name, num_rows)
    with closing(psycopg.connect(scene.url, autocommit=True)) as connection:
        connection.execute(AGED.format(run_id=run_id, config=CONFIG).encode())
        connection.execute(b"VACUUM (ANALYZE)")
    with closing(Database(scene.url)) as database, database.transaction() as tx:
        retention.enter(tx, runs.find(tx, name).id)


def _alone(scene: Scene) -> tuple[float, float, float]:
    """Seconds of all transactions, of the longest one, and bytes of WAL."""
    with closing(Database(scene.url)) as database, closing(psycopg.connect(scene.url)) as connection:
        connection.autocommit = True
        lsn, taken = wal_bytes(connection), list[float]()
        more = True
        while more:
            begun = time.perf_counter()
            with database.transaction() as tx:
                more = retention.remove_next(tx)
            taken.append(time.perf_counter() - begun)
        return sum(taken), max(taken), wal_bytes(connection) - lsn


def _idle(scene: Scene) -> float:
    """Seconds of a look at rows that are all removed."""
    with closing(psycopg.connect(scene.url, autocommit=True)) as connection:
        connection.execute(b"UPDATE trinity.sweep SET ended_at = NULL")
    return _alone(scene)[0]


def _beside(flow: Flow, seconds: Seconds) -> int:
    """Move new rows until another process has removed all old ones; how often."""
    process = multiprocessing.get_context("spawn")
    receiver, sender = process.Pipe(duplex=False)
    remover = process.Process(target=_remove, args=(flow.scene.url, sender))
    remover.start()
    sender.close()
    receiver.recv()  # it begins
    flow.seconds.clear()
    moves = 0
    while remover.is_alive():
        flow.move(FILLED)
        moves += 1
    remover.join()
    assert remover.exitcode == 0
    keep(flow, seconds)
    return moves


def _remove(url: str, sender: Connection) -> None:
    """Give the turn to a processor's remover until no look is due."""
    with closing(Database(url, LEASE_SECONDS)) as database, closing(psycopg.connect(url)) as connection:
        connection.autocommit = True
        remover = Remover(database)
        sender.send("begins")
        while True:
            remover.work()
            row = connection.execute(ARE_LOOKING.encode()).fetchone()
            assert row is not None
            if not row[0]:
                return
            time.sleep(SHARE / 10)
