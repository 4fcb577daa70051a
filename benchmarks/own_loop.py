"""Draw and commit through `store.trainer`, against the same statements as the built-in trainer calls them.

Both sides take turns in one run and under one hold, so each step of one follows a step of the other. The
built-in trainer's side ends with decoded rows; ours also makes the program's read-only rows.
"""

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import trinity_db
from benchmarks import data
from benchmarks.measure import Bar, Result, percentile, ratio
from trinity_db.run.configuration import RunConfig
from trinity_db.store import batches
from trinity_db.trainer.external import ExternalTrainer
from trinity_db.trainer.loop import drawing

WARM_UP = 10  # steps of each side, in which the server prepares its plans
BUILT_IN = "built-in trainer"
BAR = Bar(1.25, at_most=True)
METRICS = {"loss": 0.5, "reward": 1.0}


def config(name: str, batch_rows: int) -> dict[str, Any]:
    """Return the configuration of a run that a program trains."""
    content = {
        "name": name,
        "model": {"scratch": {"hidden_size": 8, "layers": 1, "heads": 1, "context": 64}},
        "taskset": "tasks",
        "max_staleness": 3,
        "algorithm": "external",
        "trainer": {
            "steps": 1_000_000,
            "batch_size": batch_rows // data.GROUP_SIZE,
            "publish_every": 1_000_000,
        },
    }
    return RunConfig.model_validate(content).stored()


def measure(url: str, run: str, name: str, variant: str, repetitions: int, steps: int) -> Result:
    """Return the ratio of both sides' p50 for a draw, the reading of its rows, and the commit.

    Args:
        steps: Number of steps of each side, in addition to the first ones, which are not counted.
    """
    pairs = []
    with (
        tempfile.TemporaryDirectory() as folder,
        trinity_db.connect(url, read_only=False) as store,
        store.trainer(run, checkpoints=Path(folder)) as trainer,
    ):
        sides = (partial(_ours, trainer), partial(_built_in, trainer._inner))
        for number in range(WARM_UP + steps):
            seconds = [side() for side in (sides[::-1] if number % 2 else sides)]
            pairs.append(seconds[::-1] if number % 2 else seconds)
    ours, theirs = (
        [
            percentile([1000 * pair[side] for pair in pairs[WARM_UP + start :: repetitions]], 50)
            for start in range(repetitions)
        ]
        for side in range(2)
    )
    return ratio(name, variant, "ms p50", ours, theirs, BUILT_IN, BAR, alternated=True)


def _ours(trainer: trinity_db.Trainer) -> float:
    start = time.perf_counter()
    batch = trainer.draw(wait=0)
    assert batch is not None
    assert batch.commit(METRICS)
    return time.perf_counter() - start


def _built_in(trainer: ExternalTrainer) -> float:
    """Take a step as `trinity_db.trainer.service` does, with the place and the hold of our side."""
    hold, setup = trainer._hold, trainer._setup
    draw = trainer._next_draw()
    start = time.perf_counter()
    with hold.lock, trainer.database.transaction() as tx:
        batch = drawing.draw_batch(tx, draw, setup, trainer._algorithm, trainer._sampler)
    assert batch is not None
    assert batches.read(trainer.database, batch.id)
    hold.retry(partial(hold.commit, batch, setup.uses_of_row, METRICS), draw.step)
    seconds = time.perf_counter() - start
    trainer.step = batch.step
    return seconds
