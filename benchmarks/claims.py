"""Claims: rows per second that processors of empty work claim and finish, and how many came twice or never.

Ours calls what processors call: `processing.claim`, which also reads the columns to judge (text and arrays to
clean, text and task to score), and `processing.finish`, which records each verdict. The floors are statements
on a table of an id and a state. The bare claim takes rows for good, in one transaction. The bare cycle takes
and finishes them in two transactions, as a lease does. Rows are written after the checkpoint, as explorers
write them.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
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
from trinity_db.database import Database
from trinity_db.processors import lists
from trinity_db.processors.config import ProcessorsConfig
from trinity_db.processors.scan_position import ScanPosition
from trinity_db.schema.states import WorkerRole
from trinity_db.service import LEASE_SECONDS
from trinity_db.store import processing

MEASURE = "claims"
ROWS = 16_384  # of one repetition; about a second
PEER_ROWS = {"trinity_rft": 2048, "agent_lightning": 4096, "transfer_queue": 2048}  # filled slowly
VARIANTS = ((1, 64), (2, 64), (4, 64), (8, 64), (4, 256))  # claimers, and rows a claim
STAGES = {stage.processor: stage for stage in reversed(lists.stages(lists.load(ProcessorsConfig())))}
FLOOR = "bare SKIP LOCKED"
CYCLE = "bare claim and finish"
BARS = {
    FLOOR: Bar(0.5),
    "trinity_rft": Bar(1),
    "agent_lightning": Bar(1),
    "reverb": Bar(1),
    "transfer_queue": Bar(1),
}
BARRED = (4, 64)
PEER_VARIANTS = ((1, 64), BARRED)  # most of their time goes into starting them

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
FLOOR_FINISH = "UPDATE bare SET state = 2 WHERE id = ANY(%s) AND state = 1"


@dataclass(frozen=True)
class _Claimer:
    """The arguments of one process."""

    where: Any
    """A Scene, or the URL of the floor's database."""
    size: int
    """Rows a claim."""
    name: str
    """Of the stage, or of the floor."""


def run(context: Context) -> list[Result]:
    """All variants: ours and the floors in turns, then each peer."""
    found = []
    for claimers, size in VARIANTS:
        plain = f"{claimers} claimer{'s' * (claimers > 1)} of {size}"
        is_barred = (claimers, size) == BARRED
        with context.server() as server:
            context.say(f"{plain}: {OURS} and the floors")
            repetitions = _measure(context, server, claimers, size)
            rates = {name: [r["rows"] / r["seconds"] for r in them] for name, them in repetitions.items()}
            found += [figure(MEASURE, floor, plain, "rows/s", rates[floor]) for floor in (FLOOR, CYCLE)]
            for name in STAGES:
                variant = f"{name}, {plain}"
                found += _ours(variant, repetitions[name], rates[name])
                for floor in (FLOOR, CYCLE):
                    bar = BARS.get(floor) if is_barred else None
                    them = rates[floor]
                    found.append(ratio(MEASURE, variant, rates[name], them, floor, bar, alternated=True))
            for name in peer.NAMES if (claimers, size) in PEER_VARIANTS else ():
                context.say(f"{plain}: {name}")
                answer = _ask(context, server, name, claimers, size)
                bar = BARS.get(name) if is_barred else None
                ours = rates[processing.CLEAN.processor]  # peers hand out whole rows
                found += peer.compared(MEASURE, plain, answer, ours, bar)
    return found


def _measure(context: Context, server: Server, claimers: int, size: int) -> dict[str, list[dict[str, Any]]]:
    """The repetitions of each stage and of the floors, these in a database of their own."""
    num_rows = context.rows(ROWS)
    bare = {name: server.new_database() for name in (FLOOR, CYCLE)}
    for url in bare.values():
        with closing(psycopg.connect(url)) as connection, connection:
            connection.execute(FLOOR_TABLE.encode())
    scenes = {name: Scene.open(server.new_store()) for name in STAGES}
    repetitions: dict[str, list[dict[str, Any]]] = {name: [] for name in (*STAGES, *bare)}

    def claim(name: str) -> float:
        server.settle()
        if name in bare:
            fill_floor(bare[name], num_rows)
            outcomes = at_once(_prepare_floor, [_Claimer(bare[name], size, name)] * claimers)
        else:
            fill(scenes[name], num_rows, state=STAGES[name].state)
            outcomes = at_once(_prepare_ours, [_Claimer(scenes[name], size, name)] * claimers)
        seconds = elapsed(outcomes)
        keys = (key for outcome in outcomes for key in outcome.value)
        repetitions[name].append(counted(seconds, num_rows, keys))
        return seconds

    in_turns({name: partial(claim, name) for name in repetitions}, context.repetitions)
    return repetitions


def _prepare_ours(claimer: _Claimer) -> Callable[[], list[int]]:
    """One of our processors."""
    scene: Scene = claimer.where
    stage = STAGES[claimer.name]
    database = Database(scene.url, LEASE_SECONDS)
    worker_id = scene.new_worker(database, WorkerRole.PROCESS)

    position = ScanPosition()

    def claim(after: int) -> list[DictRow]:
        with database.transaction() as tx:
            return processing.claim(tx, stage, scene.run_id, worker_id, claimer.size, 3, after)

    def cycles() -> Iterator[int]:
        while found := position.look(claim) or claim(0):
            verdicts = [processing.Verdict(row["id"], row["attempt"]) for row in found]
            with database.transaction() as tx:
                yield from processing.finish(tx, stage, scene.run_id, worker_id, verdicts, max_attempts=3)

    return lambda: list(cycles())


def _prepare_floor(claimer: _Claimer) -> Callable[[], list[int]]:
    """A claimer of the floor."""
    connection = psycopg.connect(claimer.where)

    def cycles() -> Iterator[int]:
        while True:
            with connection.transaction():
                ids = [row[0] for row in connection.execute(FLOOR_CLAIM, (claimer.size,))]
            if not ids:
                return
            if claimer.name == CYCLE:
                with connection.transaction():
                    connection.execute(FLOOR_FINISH, (ids,))
            yield from ids

    return lambda: list(cycles())


def fill_floor(url: str, num_rows: int) -> None:
    """Rows for the floor's claims, after those that there are."""
    with closing(psycopg.connect(url)) as connection, connection:
        connection.execute(
            "INSERT INTO bare SELECT coalesce((SELECT max(id) FROM bare), 0) + n, 0"
            " FROM generate_series(1, %s) n",
            (num_rows,),
        )


def _ours(variant: str, repetitions: list[dict[str, Any]], rates: list[float]) -> list[Result]:
    found = [figure(MEASURE, OURS, variant, "rows/s", rates)]
    for name in ("duplicates", "lost"):
        counts = [float(repetition[name]) for repetition in repetitions]
        found.append(figure(MEASURE, OURS, variant, name, counts, Bar(0, at_most=True)))
    return found


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
