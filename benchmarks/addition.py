"""Whole runs on SmolLM2-135M: seconds until it adds two digits, against TRL's GRPO trainer.

Both learn the task of `trinity-db demo --model smollm2` from the same questions: 8 groups of 8 rollouts
per step, at most 16 new tokens, a learning rate of 1e-5, float32, all cores. A run ends after the first step
whose rollouts have a mean reward of 0.9, or after 25. Seconds count from the start of the process, including
imports and loading the model.
"""

import os
import resource
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import yaml

from benchmarks import peer, trained
from benchmarks.context import Context
from benchmarks.measure import OURS, Bar, Result, absent, figure, ratio
from benchmarks.processes import at_once
from benchmarks.server import Server
from trinity_db.cli import supervise
from trinity_db.cli.demo_addition import GOAL, GRPO, SEED, STEPS, stopped_at_goal, tasks
from trinity_db.cli.demo_files import import_tasks
from trinity_db.models import smollm2
from trinity_db.postgres.connection import Database
from trinity_db.run import joining
from trinity_db.worker.service import LEASE_SECONDS

MEASURE = "addition"
PYTHON = peer.ROOT / ".venv-peers" / "bin" / "python"
QUICK_STEPS = 2
# Key of a summary: variant, unit and bar.
FIGURES = {
    "step": ("step", "s", Bar(1.0, at_most=True)),
    "peak": ("largest process", "MB", Bar(0.4, at_most=True)),
    "goal": (f"time until reward {GOAL}", "s", None),
}
# One row for each committed step: seconds since 1970, and the mean reward of its batch.
COMMITTED = """
SELECT extract(epoch FROM b.committed_at)::float8, b.reward::float8, extract(epoch FROM r.created_at)::float8
FROM trinity.batch_view b JOIN trinity.run r ON r.name = b.run WHERE b.state = 'committed' ORDER BY b.step
"""


def run(context: Context) -> list[Result]:
    """Run ours, then TRL's."""
    steps = QUICK_STEPS if context.quick else STEPS
    model = str(smollm2.cached())
    with context.server() as server, tempfile.TemporaryDirectory(dir=context.scratch) as scratch:
        ours = at_once(prepare, [(server, model, steps, scratch)])[0].value
    specification = {
        "operation": "addition",
        "model": model,
        "tasks": tasks()[0],
        "steps": steps,
        "goal": GOAL,
        "seed": SEED,
        "start": time.time(),
    }
    answer = peer.ask(context, "trl", specification, PYTHON)
    theirs = answer.repetitions[0] if answer.repetitions else {}
    results = [] if theirs else [absent(MEASURE, answer.who, "addition", answer.note)]
    for key, (variant, unit, bar) in FIGURES.items():
        our_value, peer_value = ours[key], theirs.get(key)
        if our_value is None:
            results.append(absent(MEASURE, OURS, variant, "not reached"))
            continue
        results.append(
            figure(MEASURE, OURS, variant, unit, [our_value])
        )  # the table shows it without a ratio
        if peer_value is not None:
            results.append(ratio(MEASURE, variant, unit, [our_value], [peer_value], answer.who, bar))
        elif theirs:
            results.append(absent(MEASURE, answer.who, variant, "not reached"))
    return results


def prepare(arguments: tuple[Server, str, int, str]) -> Callable[[], dict[str, Any]]:
    """Prepare a run of trinity-db in this process and its children."""
    server, model, steps, scratch = arguments
    folder = Path(scratch)
    trainer = GRPO["trainer"] | {"steps": steps}
    config = {"name": MEASURE, "seed": SEED, "model": {"path": model}} | GRPO | {"trainer": trainer}

    def learn() -> dict[str, Any]:
        url, path = server.new_store(), folder / "run.yaml"
        os.environ |= {"TRINITY_DB_URL": url, "TRINITY_DB_HOME": str(folder / "home")}
        path.write_text(yaml.safe_dump(config))
        with closing(Database(url, LEASE_SECONDS)) as database:
            import_tasks(database, folder, MEASURE, tasks()[0])
            with stopped_at_goal(database, MEASURE):
                supervise.run(joining.read(path, None), joining.arguments(path, None))
        with psycopg.connect(url) as connection:
            rows = connection.execute(COMMITTED).fetchall()
        ends, rewards, [start, *_] = zip(*rows, strict=True)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6
        return trained.run(ends, rewards, start, GOAL) | {"peak": peak}

    return learn
