"""One hour compressed: rows go from raw to trained for minutes, undisturbed and disturbed.

Every phase has the same flow: new groups are filled in, one processor cleans and scores them as in a run,
one trainer draws, commits and publishes. The first phase is quiet. In the second, four sessions read all of
the hot tables once a second, each in a transaction with one snapshot. In the third, they do so while
another session sits idle in a transaction that it began before the phase, so that no dead row of the phase
can be removed. Beside each claim, a bare claim is made on a table of an id and a state that has no readers:
it shows how much of the disturbance comes from the machine and the server.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg import IsolationLevel
from psycopg.rows import DictRow, dict_row

from benchmarks import data
from benchmarks.claims import FLOOR, FLOOR_CLAIM, FLOOR_TABLE, fill_floor
from benchmarks.context import Context
from benchmarks.filled import fill
from benchmarks.measure import OURS, Bar, Result, figure, percentile
from benchmarks.scene import Scene
from trinity_db.database import Database
from trinity_db.processors import lists
from trinity_db.processors.config import ProcessorsConfig
from trinity_db.processors.scan_position import ScanPosition
from trinity_db.schema.states import WorkerRole
from trinity_db.service import LEASE_SECONDS
from trinity_db.store import batches, draws, policies, processing, settling
from trinity_db.store.settling import Rules

MEASURE = "hour"
ROWS = 102_400  # of each phase: 307,200 in all, what 85 rollouts per second make in an hour
QUIET, AMONG_READERS, PINNED = "quiet", "four readers", "four readers, pinned horizon"
STAGES = lists.stages(lists.load(ProcessorsConfig()))
SLICES = 8  # of each phase
FILLED = 2048  # rows at a time
CLAIMED = 64
DRAWN = 8  # groups a batch
READERS = 4
READ_SECONDS = 1.0  # from one read to the next
BAR = Bar(1.2, at_most=True)
SIZES = """
SELECT c.relname AS name, pg_table_size(c.oid) / 1e6 AS table_mb, pg_indexes_size(c.oid) / 1e6 AS index_mb,
       s.n_dead_tup AS dead
FROM pg_class c JOIN pg_stat_user_tables s ON s.relid = c.oid
WHERE s.schemaname = 'trinity' AND c.relname IN ('experience', 'rollout_group') ORDER BY c.relname
"""
READS = (
    b"SELECT state, count(*), avg(reward) FROM trinity.experience GROUP BY state",
    b"SELECT state, count(*), avg(priority) FROM trinity.rollout_group GROUP BY state",
)

_Seconds = dict[tuple[str, str], list[float]]
"""By who and verb."""


def run(context: Context) -> list[Result]:
    """All phases, one after the other in one store."""
    with context.server() as server:
        scene = Scene.open(server.new_store())
        flow = Flow.open(scene)
        flow.move(FILLED)  # connections, plans and caches
        found: list[Result] = []
        quiet: dict[tuple[str, str], float] = {}
        for phase in (QUIET, AMONG_READERS, PINNED):
            context.say(phase)
            flow.seconds.clear()
            with _disturbances(scene, phase):
                for _ in range(context.rows(ROWS) // FILLED):
                    flow.move(FILLED)
                found += _latencies(phase, flow.seconds, quiet)
                found += _sizes(phase, scene)
            quiet = quiet or {timed: percentile(values, 99) for timed, values in flow.seconds.items()}
        return found


def _latencies(phase: str, seconds: _Seconds, quiet: Mapping[tuple[str, str], float]) -> list[Result]:
    """p50 and p99 of each verb, p99 by slices of the phase, and p99 as a multiple of the quiet one."""
    found = []
    for (who, verb), values in seconds.items():
        variant = f"{verb}, {phase}"
        size = -(-len(values) // SLICES)
        slices = [1e3 * percentile(values[i : i + size], 99) for i in range(0, len(values), size)]
        over_time = ", ".join(f"{value:.1f}" for value in slices)
        found.append(figure(MEASURE, who, variant, "ms p50", [1e3 * percentile(values, 50)]))
        p99 = percentile(values, 99)
        found.append(figure(MEASURE, who, variant, "ms p99", [1e3 * p99], note=f"over time: {over_time}"))
        if quiet:
            bar = BAR if (who, verb) == (OURS, "claim") and phase == PINNED else None
            found.append(figure(MEASURE, who, variant, "× quiet p99", [p99 / quiet[who, verb]], bar))
    return found


def _sizes(phase: str, scene: Scene) -> list[Result]:
    with closing(psycopg.connect(scene.url, row_factory=dict_row)) as connection:
        tables = connection.execute(SIZES.encode()).fetchall()
    return [
        figure(MEASURE, OURS, f"{table['name']}, {phase}", unit, [float(table[key])])
        for table in tables
        for key, unit in (("table_mb", "MB table"), ("index_mb", "MB indexes"), ("dead", "dead rows"))
    ]


@dataclass
class Flow:
    """A processor and a trainer in one process, and how long each of their verbs took."""

    scene: Scene
    database: Database
    processor: int
    trainer: int
    step: int = 0
    positions: dict[str, ScanPosition] = field(default_factory=lambda: defaultdict(ScanPosition))
    seconds: _Seconds = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def open(cls, scene: Scene) -> Self:
        database = Database(scene.url, LEASE_SECONDS)
        processor = scene.new_worker(database, WorkerRole.PROCESS)
        with database.transaction() as tx:
            tx.execute(FLOOR_TABLE.encode())
        return cls(scene, database, processor, scene.new_worker(database, WorkerRole.TRAIN))

    def move(self, num_rows: int) -> None:
        """New rows, all the way."""
        fill(self.scene, num_rows)
        fill_floor(self.scene.url, num_rows * len(STAGES))
        judged: set[int] = set()
        for stage in STAGES:
            for _ in range(num_rows // CLAIMED):
                judged |= self._judge(stage)
        with self.database.transaction() as tx:
            settling.settle_groups(tx, self.scene.run_id, Rules(2), len(judged), judged)
        for _ in range(num_rows // data.GROUP_SIZE // DRAWN):
            self._train()

    def _judge(self, stage: processing.Stage) -> set[int]:
        def claim(after: int) -> list[DictRow]:
            with self._timed("claim"), self.database.transaction() as tx:
                return processing.claim(tx, stage, self.scene.run_id, self.processor, CLAIMED, 3, after)

        with self._timed("claim", FLOOR), self.database.transaction() as tx:
            tx.execute(FLOOR_CLAIM.encode(), (CLAIMED,))
        found = self.positions[stage.processor].look(claim)
        verdicts = [processing.Verdict(row["id"], row["attempt"]) for row in found]
        with self._timed("finish"), self.database.transaction() as tx:
            processing.finish(tx, stage, self.scene.run_id, self.processor, verdicts, max_attempts=3)
        return {row["group_id"] for row in found}

    def _train(self) -> None:
        self.step += 1
        draw = batches.Draw(self.scene.run_id, self.trainer, self.step, DRAWN, 0)
        with self._timed("draw"), self.database.transaction() as tx:
            batch = draws.draw_groups(tx, draw, None, _no_advantage)
        assert batch is not None
        with self._timed("commit"), self.database.transaction() as tx:
            batches.commit(tx, batch, self.trainer, 1)
        version = policies.PolicyVersion(self.step, self.step, Path(f"version-{self.step}"), "hash")
        with self.database.transaction() as tx:
            policies.publish(tx, self.scene.run_id, version, self.trainer)

    @contextmanager
    def _timed(self, verb: str, who: str = OURS) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[who, verb].append(time.perf_counter() - start)


@contextmanager
def _disturbances(scene: Scene, phase: str) -> Iterator[None]:
    """Within this `with`, the other work of a phase runs beside the measured verbs."""
    ended = threading.Event()
    with ExitStack() as stack:
        if phase == PINNED:
            idle = stack.enter_context(closing(psycopg.connect(scene.url)))
            idle.isolation_level = IsolationLevel.REPEATABLE_READ
            idle.execute(b"SELECT count(*) FROM trinity.run")
        readers = [
            threading.Thread(target=_read, args=(scene, ended))
            for _ in range(READERS if phase != QUIET else 0)
        ]
        for reader in readers:
            reader.start()
        try:
            yield
        finally:
            ended.set()
            for reader in readers:
                reader.join()


def _read(scene: Scene, ended: threading.Event) -> None:
    """Read all there is, again and again."""
    with closing(psycopg.connect(scene.url)) as connection:
        connection.isolation_level = IsolationLevel.REPEATABLE_READ
        while not ended.wait(READ_SECONDS):
            with connection.transaction():
                for statement in READS:
                    connection.execute(statement).fetchall()


def _no_advantage(columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    return np.zeros(len(columns["rewards"]))
