"""Rows judged again while a run goes on: rows a second, and what that costs the run's claims and draws.

A store holds rows that were judged and trained on. In turns, new rows go from raw to trained undisturbed, as
in `hour`, and beside a process that judges a part of the old rows again by `exact_match`, as `trinity-db
rescore` does. Then every old row must have one new reward event.
"""

import multiprocessing
import time
from contextlib import closing
from multiprocessing.connection import Connection

import psycopg

from benchmarks import data
from benchmarks.beside import QUIET, Seconds, keep, latencies
from benchmarks.context import Context
from benchmarks.filled import fill
from benchmarks.hour import Flow
from benchmarks.measure import OURS, Bar, Result, figure
from benchmarks.scene import RUN, Scene

MEASURE = "rescore"
ROWS = 102_400  # that are judged again, in as many parts as there are repetitions
FILLED = 2048  # new rows at a time
BESIDE = "beside a rescore"

# What another version of the step said of the old rows.
JUDGED = """
UPDATE trinity.rollout_group SET state = 'trained';
UPDATE trinity.experience SET reward = 1;
INSERT INTO trinity.reward_event (run_id, rollout_id, source, name, value, processor_version)
SELECT run_id, rollout_id, 'score', 'exact_match', 1, 1 FROM trinity.experience;
INSERT INTO trinity.processing (experience_id, processor, processor_version, attempt, outcome)
SELECT id, 'score', 1, 2, 'passed' FROM trinity.experience;
INSERT INTO trinity.step_list (run_id, processor, version, steps)
SELECT id, 'score', 1, '[{"name": "exact_match", "version": 0}]' FROM trinity.run;
"""
COUNTED = """
SELECT count(*) FILTER (WHERE judged = 0), count(*) FILTER (WHERE judged > 1)
FROM (SELECT (SELECT count(*) FROM trinity.reward_event v
              WHERE v.rollout_id = e.rollout_id AND v.source = 'rescore') AS judged
      FROM trinity.experience e WHERE e.id <= %s) e
"""


def run(context: Context) -> list[Result]:
    """Both in turns, on one store."""
    with context.server() as server:
        scene = Scene.open(server.new_store())
        num_rows = context.rows(ROWS)
        last, groups = _history(scene, num_rows)
        server.settle()
        flow = Flow.open(scene)
        flow.move(FILLED)  # connections, plans and caches
        seconds: dict[str, Seconds] = {QUIET: {}, BESIDE: {}}
        rates: list[float] = []
        size = -(-len(groups) // context.repetitions)
        for begin in range(0, len(groups), size):
            part = groups[begin : begin + size]
            context.say(f"{len(part) * data.GROUP_SIZE} rows")
            moves = _beside(flow, part, rates, seconds[BESIDE])
            flow.seconds.clear()
            for _ in range(moves):
                flow.move(FILLED)
            keep(flow, seconds[QUIET])
        found = [figure(MEASURE, OURS, f"{num_rows} rows, {BESIDE}", "rows/s", rates)]
        return found + latencies(MEASURE, BESIDE, seconds) + _lost(scene, last)


def _history(scene: Scene, num_rows: int) -> tuple[int, list[int]]:
    """Old rows; the id of the last one, and their groups."""
    fill(scene, num_rows, state="trained")
    with closing(psycopg.connect(scene.url)) as connection, connection:
        connection.execute(JUDGED.encode())
        rows = connection.execute(b"SELECT id FROM trinity.rollout_group ORDER BY id").fetchall()
        [(last,)] = connection.execute(b"SELECT max(id) FROM trinity.experience").fetchall()
    return last, [id for (id,) in rows]


def _beside(flow: Flow, groups: list[int], rates: list[float], seconds: Seconds) -> int:
    """Move new rows until another process has judged those of some groups; how often."""
    process = multiprocessing.get_context("spawn")
    receiver, sender = process.Pipe(duplex=False)
    rescorer = process.Process(target=_rescore, args=(flow.scene.url, groups, sender))
    rescorer.start()
    sender.close()
    receiver.recv()  # it begins
    flow.seconds.clear()
    moves = 0
    while not receiver.poll():
        flow.move(FILLED)
        moves += 1
    rates.append(receiver.recv())
    rescorer.join()
    keep(flow, seconds)
    return moves


def _rescore(url: str, groups: list[int], sender: Connection) -> None:
    """In a process of its own: judge the rows of groups again, and send how many a second."""
    from trinity_db.database import Database
    from trinity_db.processors import lists
    from trinity_db.processors.config import ProcessorsConfig
    from trinity_db.processors.rescore import Rescorer, Work
    from trinity_db.service import LEASE_SECONDS
    from trinity_db.store import runs

    with closing(Database(url, LEASE_SECONDS)) as database:
        with database.transaction() as tx:
            found = runs.find(tx, RUN)
        steps = lists.load(ProcessorsConfig())["score"]
        rescorer = Rescorer(database, found, Work(steps, is_whole=True, among=groups))
        sender.send("begins")
        begun = time.perf_counter()
        rescorer.serve()
        sender.send(rescorer.counted.rows / (time.perf_counter() - begun))


def _lost(scene: Scene, last: int) -> list[Result]:
    with closing(psycopg.connect(scene.url)) as connection:
        [(lost, twice)] = connection.execute(COUNTED.encode(), (last,)).fetchall()
    bar = Bar(0, at_most=True)
    counts = {"rows not judged": lost, "rows judged twice": twice}
    return [figure(MEASURE, OURS, "old rows", name, [float(value)], bar) for name, value in counts.items()]
