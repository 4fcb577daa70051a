"""The demo with a pretrained model: GRPO teaches it to add digits and to answer with a number alone.

It uses nothing that users lack: imported tasks, an ordinary configuration, and the evaluations of
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
    from trinity_db.database import Database

SEED = 0
STEPS = 25
GOAL = 0.9  # mean reward of a step at which the demo stops before its last one
NUM_HELD_OUT = 20
NUM_SHOWN = 3  # questions that are printed with their answers
LOOK_SECONDS = 2.0  # between two looks at the reward

GRPO: dict[str, Any] = {
    "taskset": "addition",
    "algorithm": "grpo",
    "max_staleness": 1,
    "explorer": {"group_size": 8, "max_new_tokens": 16},
    "processors": {"score": ["number_match"]},
    # keep_every keeps version 0, which is evaluated at the end.
    "trainer": {"steps": STEPS, "batch_size": 8, "learning_rate": 1e-5, "keep_every": 1000},
}


def tasks() -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """All sums of two digits as questions, in an order by chance: those to train on and those held out."""
    rows = [
        {"prompt": f"What is {left} plus {right}? Answer with the number only.", "answer": str(left + right)}
        for left in range(10)
        for right in range(10)
    ]
    random.Random(SEED).shuffle(rows)
    return rows[NUM_HELD_OUT:], rows[:NUM_HELD_OUT]


def teach(database: "Database", folder: Path, name: str, model: str) -> dict[str, Any]:
    """Train a model on additions until the goal or the last step. Return what the evaluations found.

    Args:
        folder: where the files of tasks and configuration are written.
        name: of the run.
        model: a folder, or a name of a model hub.
    """
    from trinity_db.cli import evaluate, launch, supervise
    from trinity_db.store import evaluations, policies, runs

    training, held_out = tasks()
    import_tasks(database, folder, "addition", training)
    import_tasks(database, folder, "addition-test", held_out)
    path = write_config(folder, {"name": name, "seed": SEED, "model": {"path": model}} | GRPO)
    config = launch.read(path, None)
    with stopped_at_goal(database, name) as reached:
        try:
            supervise.run(config, launch.arguments(path, None))
        except KeyboardInterrupt:
            if not reached.is_set():
                raise
    say(f"Evaluating on {NUM_HELD_OUT} held-out questions, before and after")
    with database.transaction() as tx:
        run = runs.find(tx, name)
        newest = policies.newest(tx, run.id)
    assert newest is not None
    settings = {"samples": 4, "temperature": None, "max_new_tokens": None}
    ids = evaluate.begin(database, run, config, ["addition-test"], [0, newest.version], settings)
    if not evaluate.carry_out(database, run, config, ids, launch.recorded_places(config)):
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
def stopped_at_goal(database: "Database", name: str) -> Iterator[threading.Event]:
    """Within this `with`, a run is asked to stop once the mean reward of a step reaches the goal.

    The event is set then.
    """
    over, reached = threading.Event(), threading.Event()

    def look() -> None:
        while not over.wait(LOOK_SECONDS) and not reached.is_set():
            with suppress(TrinityError):  # no run yet, or a store that is unreachable for a moment
                _stop_at_goal(database, name, reached)

    looking = threading.Thread(target=look, name="goal", daemon=True)
    looking.start()
    try:
        yield reached
    finally:
        over.set()
        looking.join()


def _stop_at_goal(database: "Database", name: str, reached: threading.Event) -> None:
    from trinity_db.schema.queries import query
    from trinity_db.service import LEASE_SECONDS
    from trinity_db.store import runs, stopping

    with database.transaction() as tx:
        run = runs.find(tx, name)
        row = tx.execute(query("run_progress"), {"run_id": run.id}).fetchone()
        if row is not None and row["reward"] is not None and row["reward"] >= GOAL:
            stopping.ask(tx, run, LEASE_SECONDS, must_work=False)
            reached.set()


def answers(database: "Database", before: int, after: int) -> list[dict[str, str]]:
    """Some questions with a response of each of two evaluations."""
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
