"""Whole runs on a real model: seconds until SmolLM2-135M adds two digits, against TRL's GRPO trainer.

Both learn the task of `trinity-db demo --model smollm2` from the same questions: 8 groups of 8 rollouts
a step, at most 16 new tokens, a learning rate of 1e-5, float32, all cores. A run ends after the first step
whose rollouts have a mean reward of 0.9, or after 25. Seconds count from the start of the process, with its
imports and the model's loading.
"""

import resource
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import psycopg

from benchmarks import peer
from benchmarks.context import Context
from benchmarks.measure import OURS, Bar, Result, absent, figure, ratio
from benchmarks.modes.runs import run_config, store
from benchmarks.processes import at_once
from benchmarks.server import Server
from trinity_db.cli.demo_addition import GOAL, GRPO, SEED, STEPS, stopped_at_goal, tasks
from trinity_db.cli.demo_files import import_tasks
from trinity_db.models import smollm2

MEASURE = "addition"
PYTHON = peer.ROOT / ".venv-peers" / "bin" / "python"
QUICK_STEPS = 2
FASTER, LESS_MEMORY = Bar(1.0, at_most=True), Bar(0.4, at_most=True)
# One row for each committed step: seconds since 1970, and the mean reward of its batch.
COMMITTED = """
SELECT extract(epoch FROM b.committed_at)::float8, b.reward::float8, extract(epoch FROM r.created_at)::float8
FROM trinity.batch_view b JOIN trinity.run r ON r.name = b.run WHERE b.state = 'committed' ORDER BY b.step
"""


def run(context: Context) -> list[Result]:
    """Ours and TRL's, one after the other."""
    steps = QUICK_STEPS if context.quick else STEPS
    model = str(smollm2.cached())
    with context.server() as server, tempfile.TemporaryDirectory(dir=context.scratch) as scratch:
        ours = at_once(prepare, [(server, model, steps, scratch)])[0].value
    asked = {
        "operation": "addition",
        "model": model,
        "tasks": tasks()[0],
        "steps": steps,
        "goal": GOAL,
        "seed": SEED,
        "start": time.time(),
    }
    answer = peer.ask(context, "trl_addition", asked, PYTHON)
    results = figures(OURS, ours)
    if not answer.repetitions:
        return [*results, absent(MEASURE, answer.who, "addition", answer.note)]
    theirs = answer.repetitions[0]
    return [
        ratio(MEASURE, "seconds a step", [ours["step"]], [theirs["step"]], answer.who, FASTER),
        ratio(MEASURE, "peak memory", [ours["peak"]], [theirs["peak"]], answer.who, LESS_MEMORY),
        *results,
        *figures(answer.who, theirs, answer.note),
    ]


def figures(who: str, found: dict[str, Any], note: str = "") -> list[Result]:
    """One run as lines of the table."""
    goal = found["goal"]
    return [
        absent(
            MEASURE,
            who,
            f"s until reward {GOAL}",
            f"not reached; the last step had {found['rewards'][-1]:.2f}",
        )
        if goal is None
        else figure(MEASURE, who, f"s until reward {GOAL}", "s", [goal], note=note),
        figure(MEASURE, who, "a step", "s", [found["step"]]),
        figure(MEASURE, who, "steps", "steps", [float(len(found["rewards"]))]),
        figure(MEASURE, who, "largest process", "MB", [found["peak"]]),
    ]


def prepare(asked: tuple[Server, str, int, str]) -> Callable[[], dict[str, Any]]:
    """A run of trinity-db in this process and its children."""
    server, model, steps, scratch = asked
    folder = Path(scratch)
    trainer = GRPO["trainer"] | {"steps": steps}
    config = {"name": MEASURE, "seed": SEED, "model": {"path": model}} | GRPO | {"trainer": trainer}

    def learn() -> dict[str, Any]:
        with store(server, folder) as database:
            import_tasks(database, folder, MEASURE, tasks()[0])
            with stopped_at_goal(database, MEASURE):
                run_config(folder, config)
            with psycopg.connect(database.url) as connection:
                rows = connection.execute(COMMITTED).fetchall()
        return summary([row[0] for row in rows], [row[1] for row in rows], rows[0][2])

    return learn


def summary(ends: list[float], rewards: list[float], start: float) -> dict[str, Any]:
    """Of the steps of a run: when each ended, and the mean reward of its rollouts."""
    between = [later - earlier for earlier, later in pairwise(ends)]
    reached = next((end for end, reward in zip(ends, rewards, strict=True) if reward >= GOAL), None)
    return {
        "step": median(between),
        "goal": None if reached is None else reached - start,
        "rewards": rewards,
        "peak": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6,
    }
