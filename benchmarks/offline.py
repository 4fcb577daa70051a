"""Offline steps: draw, read and commit of a batch of adopted rows or pairs, as a store grows.

What trainers call, in the transactions in which they call it. The floor is a bare SELECT of as many
other payloads, chosen at random, nothing leased or recorded. Rows are adopted by the store's own verb; their
tokens, which a tokenizer would make, are written by SQL: one payload for all, of the length that is usual.
"""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from benchmarks import data
from benchmarks.context import Context
from benchmarks.measure import OURS, Result, figure, percentile, ratio
from benchmarks.scene import payload
from benchmarks.server import Server
from trinity_db import arrays
from trinity_db.database import Database, Transaction, connect
from trinity_db.schema.states import WorkerRole
from trinity_db.service import LEASE_SECONDS
from trinity_db.store import batches, draws, policies, runs, workers

Value = TypeVar("Value")

MEASURE = "offline"
FLOOR = "bare SELECT"
ADOPTED = (10_240, 102_400)
FULL_ADOPTED = (*ADOPTED, 1_024_000)
BATCHES = (64, 512)  # rows, or pairs
STEPS = 40  # of one repetition
EPOCHS = 10_000  # the smallest data set is used many times over; rows never end as trained

IMPORTED = """
INSERT INTO trinity.run (name, kind, config) VALUES ('set', 'data', '{{}}');
INSERT INTO trinity.experience (run_id, state, import_key)
SELECT r.id, 'ready', gen_random_uuid() FROM trinity.run r, generate_series(1, {rows}) WHERE r.name = 'set';
INSERT INTO trinity.experience_text (experience_id, prompt, response)
SELECT id, 'prompt ' || id, 'response' FROM trinity.experience;
INSERT INTO trinity.preference (run_id, chosen_id, rejected_id, source)
SELECT run_id, id - 1, id, 'import' FROM trinity.experience WHERE {pairs} AND id % 2 = 0 ORDER BY id;
ANALYZE trinity.experience, trinity.experience_text, trinity.preference;
"""
PAYLOADS = """
INSERT INTO trinity.payload (experience_id, codec, num_tokens, data)
SELECT id, %(codec)s, %(num_tokens)s, %(data)s FROM trinity.experience WHERE run_id = %(run_id)s ORDER BY id
"""
TOKENS = """
UPDATE trinity.experience SET prompt_length = 1, response_length = 1, ready_xact = 3 WHERE run_id = %(run_id)s
"""
BARE = "SELECT p.codec, p.data, p.num_tokens FROM trinity.payload p WHERE p.experience_id = ANY(%s)"


@dataclass
class _Trainer:
    """One run over adopted rows, and what each of its steps took."""

    database: Database
    run: runs.Run
    worker_id: int
    pairs: bool
    ids: NDArray[np.int64]
    """Of all experiences, for the floor."""
    chance: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    steps: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)
    """Of draw, read, commit, and all three, since they were last forgotten."""

    def step(self, size: int) -> None:
        """Draw, read and commit."""
        self.steps += 1
        draw = batches.Draw(self.run.id, self.worker_id, self.steps, size, self.run.seed)
        verb = draws.draw_pairs if self.pairs else draws.draw_rows
        start = time.perf_counter()
        batch = self._timed("draw", lambda tx: verb(tx, draw))
        assert batch is not None, "the data set is too small"
        begun = time.perf_counter()
        batches.read(self.database, batch.id)
        self._note("read", begun)
        self._timed("commit", lambda tx: batches.commit(tx, batch, self.worker_id, EPOCHS))
        self._note("step", start)

    def select(self, count: int) -> None:
        """The floor: as many payloads, decoded as well."""
        ids = self.chance.choice(self.ids, count, replace=False).tolist()
        self._timed(
            FLOOR,
            lambda tx: [arrays.decode(*row.values()) for row in tx.execute(BARE, [ids], binary=True)],
        )

    def _timed(self, what: str, verb: Callable[[Transaction], Value]) -> Value:
        start = time.perf_counter()
        with self.database.transaction() as tx:
            result = verb(tx)
        self._note(what, start)
        return result

    def _note(self, what: str, start: float) -> None:
        self.seconds.setdefault(what, []).append(time.perf_counter() - start)


def run(context: Context) -> list[Result]:
    """Rows and pairs, at each number of adopted rows; the set-up of a million takes minutes."""
    found = []
    for adopted in FULL_ADOPTED if context.full else ADOPTED:
        for kind in ("sft", "dpo"):
            with context.server() as server:
                rows = context.rows(adopted)
                context.say(f"{kind}, {rows:,} adopted rows")
                trainer = _prepare(server, rows, pairs=kind == "dpo")
                for size in BATCHES:
                    found += _measure(context, trainer, f"{kind}, {rows:,} adopted, batches of {size}", size)
    return found


def _prepare(server: Server, rows: int, pairs: bool) -> _Trainer:
    """A run that has adopted a data set, and its trainer."""
    url = server.new_store()
    with closing(connect(url, autocommit=True)) as connection:
        connection.execute(IMPORTED.format(rows=rows, pairs=pairs).encode())
        database = Database(url, LEASE_SECONDS)
        with database.transaction() as tx:
            run = runs.open_run(tx, "benchmark", {"seed": 7}, "rows", ["set"], holdout=0.0)
            worker_id = workers.register(tx, run, WorkerRole.TRAIN)
            policies.publish(tx, run.id, policies.PolicyVersion(0, 0, Path("version-0"), "hash"), worker_id)
            tokens = payload(data.rows(data.GROUP_SIZE)[0])
            values = {"codec": arrays.CODEC, "num_tokens": tokens.num_tokens, "data": arrays.encode(tokens)}
            tx.execute(PAYLOADS, values | {"run_id": run.id})
            tx.execute(TOKENS, {"run_id": run.id})
            found = tx.execute("SELECT experience_id AS id FROM trinity.payload").fetchall()
            ids = np.array([row["id"] for row in found])
        connection.execute("VACUUM (ANALYZE) trinity.experience, trinity.preference, trinity.payload")
    server.settle()
    return _Trainer(database, run, worker_id, pairs, ids)


def _measure(context: Context, trainer: _Trainer, variant: str, size: int) -> list[Result]:
    """Of each repetition the median step; rows a second are those of the median step."""
    medians: dict[str, list[float]] = {}
    rows = size * (2 if trainer.pairs else 1)
    for _ in range(context.repetitions):
        trainer.seconds.clear()
        for _ in range(STEPS):
            trainer.step(size)
            trainer.select(rows)
        for what, seconds in trainer.seconds.items():
            medians.setdefault(what, []).append(1000 * percentile(seconds, 50))
    return [
        *(
            figure(MEASURE, OURS, f"{variant}: {what}", "ms p50", medians[what])
            for what in ("draw", "read", "commit")
        ),
        figure(MEASURE, FLOOR, variant, "ms p50", medians[FLOOR]),
        figure(MEASURE, OURS, variant, "rows/s", [1000 * rows / step for step in medians["step"]]),
        ratio(MEASURE, f"{variant}: step", medians["step"], medians[FLOOR], FLOOR, alternated=True),
    ]
