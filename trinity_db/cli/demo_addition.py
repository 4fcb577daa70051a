"""The demo with a pretrained model: GRPO teaches it to add digits and to answer with only a number.

It uses only what users have: imported tasks, an ordinary configuration, and the evaluations of
`trinity-db evaluate`.
"""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity_db.cli.demo_files import import_tasks, say, write_config
from trinity_db.errors import TrinityError

if TYPE_CHECKING:
    from trinity_db.postgres.connection import Database

SEED = 0
STEPS = 25
GOAL = 0.9  # mean reward of a step at which the demo stops early
NUM_HELD_OUT = 20
NUM_SHOWN = 3  # questions printed with their answers
LOOK_SECONDS = 2.0  # between two checks of the reward

GRPO: dict[str, Any] = {
    "taskset": "addition",
    "algorithm": "grpo",
    "max_staleness": 1,
    "explorer": {"group_size": 8, "max_new_tokens": 16},
    "processors": {"score": ["number_match"]},
    # A high keep_every keeps version 0, which is evaluated at the end.
    "trainer": {"steps": STEPS, "batch_size": 8, "learning_rate": 1e-5, "keep_every": 1000},
}


def tasks() -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Return all sums of two digits as questions in random order: for training, and held-out ones."""
    rows = [
        {"prompt": f"What is {left} plus {right}? Answer with the number only.", "answer": str(left + right)}
        for left in range(10)
        for right in range(10)
    ]
    random.Random(SEED).shuffle(rows)
    return rows[NUM_HELD_OUT:], rows[:NUM_HELD_OUT]


def teach(database: "Database", folder: Path, name: str, model: str) -> dict[str, Any]:
    """Train a model on additions until the goal or the last step. Return the results of the evaluations.

    Args:
        folder: folder for the files of tasks and configuration.
        name: name of the run.
        model: folder of a model, or its name on a model hub.
    """
    from trinity_db.cli import evaluate, supervise
    from trinity_db.run import joining
    from trinity_db.store import evaluations, policies, runs

    training, held_out = tasks()
    import_tasks(database, folder, "addition", training)
    import_tasks(database, folder, "addition-test", held_out)
    path = write_config(folder, {"name": name, "seed": SEED, "model": {"path": model}} | GRPO)
    config = joining.read(path, None)
    with stopped_at_goal(database, name):
        supervise.run(config, joining.arguments(path, None))
    say(f"Evaluating on {NUM_HELD_OUT} held-out questions, before and after")
    with database.transaction() as tx:
        run = runs.find(tx, name)
        newest = policies.newest(tx, run.id)
    assert newest is not None
    settings = {"samples": 4, "temperature": None, "max_new_tokens": None}
    ids = evaluate.begin(database, run, config, ["addition-test"], [0, newest.version], settings)
    if not evaluate.carry_out(database, run, config, ids, joining.recorded_places(config)):
        raise KeyboardInterrupt
    with database.transaction(read_only=True) as tx:
        before, after = evaluations.read(tx, ids)
    return {
        "run": name,
        "before": before["mean"],
        "after": after["mean"],
        "answers": answers(database, before["id"], after["id"]),
    }


@contextmanager
def stopped_at_goal(database: "Database", name: str) -> Iterator[None]:
    """Context in which a run is asked to stop once the mean reward of a step reaches the goal.

    A supervisor that ends for this reason ends the context without an error.
    """
    over, reached = threading.Event(), threading.Event()

    def look() -> None:
        while not over.wait(LOOK_SECONDS) and not reached.is_set():
            with suppress(TrinityError):  # no run yet, or the store is briefly unreachable
                _stop_at_goal(database, name, reached)

    looking = threading.Thread(target=look, name="goal", daemon=True)
    looking.start()
    try:
        yield
    except KeyboardInterrupt:
        if not reached.is_set():
            raise
    finally:
        over.set()
        looking.join()


def _stop_at_goal(database: "Database", name: str, reached: threading.Event) -> None:
    from trinity_db.schema.queries import query
    from trinity_db.store import runs, stopping
    from trinity_db.worker.service import LEASE_SECONDS

    with database.transaction() as tx:
        run = runs.find(tx, name)
        row = tx.execute(query("run_progress"), {"run_id": run.id}).fetchone()
        if row is not None and row["reward"] is not None and row["reward"] >= GOAL:
            stopping.ask(tx, run, LEASE_SECONDS, must_work=False)
            reached.set()


def answers(database: "Database", before: int, after: int) -> list[dict[str, str]]:
    """Return some questions, each with a response from two evaluations."""
    from trinity_db.schema.queries import query

    with database.transaction(read_only=True) as tx:
        first, second = (
            {row["task"]: row for row in tx.execute(query("evaluated_answers"), {"evaluation_id": number})}
            for number in (before, after)
        )
    return [
        {"question": row["question"], "before": row["response"], "after": second[task]["response"]}
        for task, row in list(first.items())[:NUM_SHOWN]
        if task in second
    ]
