"""Claims: rows per second that processors without work claim and finish; doubled and lost rows.

Times `processing.claim`, which also reads the columns to judge (text and arrays to clean, text and task to
score), and `processing.finish`, which records each verdict. The floor claims rows of a table of an id and a
state with SKIP LOCKED in one transaction, without finishing them. Rows are written after the checkpoint.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import psycopg
from psycopg.rows import DictRow

from benchmarks import peer
from benchmarks.context import Context
from benchmarks.filled import fill
from benchmarks.measure import OURS, Bar, Result, figure, in_turns, ratio
from benchmarks.peers.frame import claimed as counted
from benchmarks.processes import at_once, elapsed
from benchmarks.scene import Scene
from benchmarks.server import Server
from trinity_db.postgres.connection import Database
from trinity_db.processors.config import ProcessorsConfig
from trinity_db.processors.jobs.scan_position import ScanPosition
from trinity_db.processors.lists import lists
from trinity_db.schema.states import WorkerRole
from trinity_db.store import processing
from trinity_db.worker.service import LEASE_SECONDS

MEASURE = "claims"
ROWS = 16_384  # per repetition; about a second
PEER_ROWS = {"trinity_rft": 2048, "transfer_queue": 2048}  # slow to fill
VARIANTS = ((1, 64), (4, 64))  # claimers, rows per claim
STAGES = {stage.processor: stage for stage in reversed(lists.stages(lists.load(ProcessorsConfig())))}
FLOOR = "bare SKIP LOCKED"
FLOOR_BAR, PEER_BAR = Bar(0.5), Bar(1)
BARRED = (4, 64)

FLOOR_TABLE = """
CREATE TABLE bare (id bigint PRIMARY KEY, state smallint NOT NULL) WITH (fillfactor = 70);
CREATE INDEX bare_open ON bare (id) WHERE state = 0;
"""
FLOOR_CLAIM = """
WITH picked AS MATERIALIZED (
    SELECT id FROM bare WHERE state = 0 ORDER BY id LIMIT %s FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE bare SET state = 1 FROM picked WHERE bare.id = picked.id RETURNING bare.id
"""


def run(context: Context) -> list[Result]:
    """Measure ours and the floor in turns, then each peer."""
    results = []
    for claimers, size in VARIANTS:
        plain = f"{claimers} claimer{'s' * (claimers > 1)} of {size}"
        floor_bar, peer_bar = (FLOOR_BAR, PEER_BAR) if (claimers, size) == BARRED else (None, None)
        with context.server() as server:
            context.say(f"{plain}: {OURS} and {FLOOR}")
            repetitions = _measure(context, server, claimers, size)
            rates = {name: [r["rows"] / r["seconds"] for r in them] for name, them in repetitions.items()}
            for name in STAGES:
                ours, floor, variant = rates[name], rates[FLOOR], f"{name}, {plain}"
                results.append(
                    ratio(MEASURE, variant, "rows/s", ours, floor, FLOOR, floor_bar, alternated=True)
                )
                counts = [
                    float(repetition["duplicates"] + repetition["lost"]) for repetition in repetitions[name]
                ]
                results.append(
                    figure(MEASURE, OURS, variant, "doubled or lost", counts, Bar(0, at_most=True))
                )
            for name in peer.NAMES:
                context.say(f"{plain}: {name}")
                answer = _ask(context, server, name, claimers, size)
                ours = rates[processing.CLEAN.processor]  # peers return whole rows
                results += peer.compared(MEASURE, plain, answer, ours, peer_bar)
    return results


def _measure(context: Context, server: Server, claimers: int, size: int) -> dict[str, list[dict[str, Any]]]:
    """Return the repetitions of each stage and of the floor, in separate databases."""
    num_rows = context.rows(ROWS)
    bare = server.new_database()
    with closing(psycopg.connect(bare)) as connection, connection:
        connection.execute(FLOOR_TABLE.encode())
    scenes = {name: Scene.open(server.new_store()) for name in STAGES}
    repetitions: dict[str, list[dict[str, Any]]] = {name: [] for name in (*STAGES, FLOOR)}

    def claim(name: str) -> float:
        server.settle()
        if name == FLOOR:
            _fill_floor(bare, num_rows)
            outcomes = at_once(_prepare_floor, [(bare, size)] * claimers)
        else:
            fill(scenes[name], num_rows, state=STAGES[name].state)
            outcomes = at_once(_prepare_ours, [(scenes[name], size, name)] * claimers)
        seconds = elapsed(outcomes)
        keys = (key for outcome in outcomes for key in outcome.value)
        repetitions[name].append(counted(seconds, num_rows, keys))
        return seconds

    in_turns({name: partial(claim, name) for name in repetitions}, context.repetitions)
    return repetitions


def _prepare_ours(part: tuple[Scene, int, str]) -> Callable[[], list[int]]:
    """Prepare one of our processors for a scene, rows per claim and the name of a stage."""
    scene, size, name = part
    stage = STAGES[name]
    database = Database(scene.url, LEASE_SECONDS)
    worker_id = scene.new_worker(database, WorkerRole.PROCESS)
    position = ScanPosition()

    def claim(after: int) -> list[DictRow]:
        with database.transaction() as tx:
            return processing.claim(tx, stage, scene.run_id, worker_id, size, 3, after)

    def cycles() -> Iterator[int]:
        while rows := position.look(claim) or claim(0):
            verdicts = [processing.StepVerdict(row["id"], row["attempt"]) for row in rows]
            with database.transaction() as tx:
                yield from processing.finish(tx, stage, scene.run_id, worker_id, verdicts, max_attempts=3)

    return lambda: list(cycles())


def _prepare_floor(part: tuple[str, int]) -> Callable[[], list[int]]:
    """Prepare a claimer of the floor for its database's URL and rows per claim."""
    url, size = part
    connection = psycopg.connect(url)

    def cycles() -> Iterator[int]:
        while True:
            with connection.transaction():
                ids = [row[0] for row in connection.execute(FLOOR_CLAIM, (size,))]
            if not ids:
                return
            yield from ids

    return lambda: list(cycles())


def _fill_floor(url: str, num_rows: int) -> None:
    """Append rows for the floor's claims."""
    with closing(psycopg.connect(url)) as connection, connection:
        connection.execute(
            "INSERT INTO bare SELECT coalesce((SELECT max(id) FROM bare), 0) + n, 0"
            " FROM generate_series(1, %s) n",
            (num_rows,),
        )


def _ask(context: Context, server: Server, name: str, claimers: int, size: int) -> peer.Answer:
    server.settle()
    return peer.ask(
        context,
        name,
        {
            "operation": MEASURE,
            "url": server.new_database(),
            "rows": context.rows(PEER_ROWS.get(name, ROWS)),
            "consumers": claimers,
            "size": size,
        },
    )
