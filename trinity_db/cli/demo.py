"""The demo: teaches a model with random weights to reverse digits, with the whole system.

It uses only what users have: it imports tasks and demonstrations from files, and its runs have ordinary
configurations, which stay in the store's folder for reference.
"""

import importlib
import json
import os
import random
import shutil
import sys
import threading
import time
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

from trinity_db.cli.demo_files import import_tasks, say, write_config
from trinity_db.errors import TrinityError

DIGITS = "01234567"
LENGTH = 4  # 4096 different numbers: with far fewer it memorizes them
NUM_HELD_OUT = 128  # never trained on; the accuracy is measured on them
SEED = 0
TEMPLATE = "{prompt}="

# These settings, of about thirty tried, learned with every seed: what matters most is many numbers, then a
# decreasing learning rate.
WARMUP: dict[str, Any] = {
    "model": {
        "scratch": {"alphabet": DIGITS + "=", "hidden_size": 64, "layers": 2, "heads": 4, "context": 32},
        "prompt_template": TEMPLATE,
    },
    "data": ["reverse-demonstrations"],
    "algorithm": "sft",
    "trainer": {
        "epochs": 3,
        "batch_size": 256,
        "micro_batch_size": 256,
        "micro_batch_tokens": 4096,
        "learning_rate": 3e-3,
    },
}
GRPO: dict[str, Any] = {
    "taskset": "reverse-tasks",
    "max_staleness": 1,
    "algorithm": {"name": "grpo", "clip_high": 0.28},
    "explorer": {"group_size": 8, "max_new_tokens": LENGTH + 1},
    "processors": {"score": ["position_match"]},
    "trainer": {
        "steps": 400,
        "batch_size": 32,
        "micro_batch_size": 256,
        "micro_batch_tokens": 4096,  # the model is so small that a call costs more than its tokens
        "learning_rate": 2e-3,
        "warmup_steps": 10,
        "schedule": "linear",
        "keep_every": 1000,  # keeps version 0, which is evaluated at the end
    },
}


def demo(
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="Teach a pretrained model to add instead: smollm2 (93 MB download), or a folder.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Teach a small model: a warm start, then asynchronous GRPO.

    The model starts with random weights, and is warmed up on demonstrations. With --model, GRPO teaches a
    pretrained chat model to add single digits, until the mean reward exceeds 0.9 or 25 steps are done.

    Example:

        trinity-db demo --model smollm2
    """
    from trinity_db.config.base import home
    from trinity_db.models import check_libraries
    from trinity_db.postgres.opening import open_database

    check_libraries("torch", "transformers", "matplotlib")
    started = time.monotonic()
    if model is None:
        _load_engine_in_background()
        database = open_database()
        summary, last = _reversal(database, home() / "demo"), "Accuracy on held-out numbers"
    else:
        # A conversion loads transformers, which two threads must not do at a time.
        folder = _model_folder(model)
        _load_engine_in_background()
        database = open_database()
        summary, last = _addition(database, home() / "demo", folder), "Reward on held-out questions"
    summary |= {**_counts(database, summary["run"]), "seconds": round(time.monotonic() - started, 1)}
    if as_json:
        print(json.dumps(summary))
    else:
        _print_summary(summary, last)


def _load_engine_in_background() -> None:
    """Load torch, which takes seconds, while the store and the run start."""
    module = "trinity_db.explorer.engines.transformers_engine"
    threading.Thread(target=importlib.import_module, args=(module,), daemon=True).start()


def _reversal(database: Any, folder: Path) -> dict[str, Any]:
    """Teach a model with random weights to reverse digits. Return the figures of its evaluations."""
    from trinity_db.cli import plot

    number = _next_number(database, "demo-%-warmup")
    _import_data(database, folder)
    say(f"1. Warm start on demonstrations (run demo-{number}-warmup)")
    _supervise(write_config(folder, {"name": f"demo-{number}-warmup", "seed": SEED} | WARMUP))
    say(f"2. Asynchronous GRPO: explorer, processors and trainer as processes (run demo-{number})")
    model = {"run": f"demo-{number}-warmup", "prompt_template": TEMPLATE}
    path = write_config(folder, {"name": f"demo-{number}", "seed": SEED, "model": model} | GRPO)
    _supervise(path)
    say(f"3. Evaluation of the first and the last version on {NUM_HELD_OUT} held-out numbers")
    before, after = _accuracies(database, path)
    picture = folder / f"demo-{number}.png"
    plot.plot_run(database, f"demo-{number}", picture)
    figures = {"before": round(before, 4), "after": round(after, 4)}
    return {"run": f"demo-{number}", **figures, "picture": str(picture)}


def _model_folder(model: str) -> str:
    from trinity_db.models import smollm2

    return str(smollm2.cached()) if model == "smollm2" else model


def _addition(database: Any, folder: Path, model: str) -> dict[str, Any]:
    from trinity_db.cli import demo_addition

    name = f"addition-{_next_number(database, 'addition-%')}"
    say(f"GRPO on additions of single digits (run {name})")
    return demo_addition.teach(database, folder, name, model)


def _next_number(database: Any, pattern: str) -> int:
    """One more than the number of runs whose name is LIKE a pattern."""
    from trinity_db.schema.queries import query

    with database.transaction() as tx:
        row = tx.execute(query("count_named_runs"), {"pattern": pattern}).fetchone()
    return int(row["runs"]) + 1


def _import_data(database: Any, folder: Path) -> None:
    """Import the tasks and demonstrations of the demo, and the held-out tasks."""
    numbers = ["".join(digits) for digits in product(DIGITS, repeat=LENGTH)]
    random.Random(SEED).shuffle(numbers)
    tasks = [{"prompt": number, "answer": number[::-1]} for number in numbers]
    held_out, training = tasks[:NUM_HELD_OUT], tasks[NUM_HELD_OUT:]
    demonstrations = [{"prompt": task["prompt"], "completion": task["answer"]} for task in training]
    import_tasks(database, folder, "reverse-tasks", training)
    import_tasks(database, folder, "reverse-test", held_out)
    import_tasks(database, folder, "reverse-demonstrations", demonstrations, "demonstrations")


def _supervise(path: Path) -> None:
    from trinity_db.cli import supervise
    from trinity_db.run import joining

    supervise.run(joining.read(path, None), joining.arguments(path, None))


def _accuracies(database: Any, path: Path) -> tuple[float, float]:
    """Share of the held-out tasks that the first and the last version solve with greedy decoding.

    The results are stored as evaluations of the run.
    """
    from trinity_db.cli import evaluate
    from trinity_db.run import joining
    from trinity_db.store import evaluations, policies, runs

    config = joining.read(path, None)
    with database.transaction() as tx:
        run = runs.find(tx, config.name)
        newest = policies.newest(tx, run.id)
    assert newest is not None
    settings = {"samples": 1, "temperature": 0.0, "max_new_tokens": LENGTH + 1}
    ids = evaluate.begin(database, run, config, ["reverse-test"], [0, newest.version], settings)
    if not evaluate.carry_out(database, run, config, ids, joining.recorded_places(config)):
        raise KeyboardInterrupt
    with database.transaction(read_only=True) as tx:
        before, after = evaluations.read(tx, ids)
    if before["pass_1"] is None or after["pass_1"] is None:
        raise TrinityError(f"No attempt of an evaluation was scored; see trinity-db failed {config.name}.")
    return before["pass_1"], after["pass_1"]


def _counts(database: Any, run_name: str) -> dict[str, int]:
    from trinity_db.schema.queries import query
    from trinity_db.store import runs

    with database.transaction() as tx:
        row = tx.execute(query("run_summary"), {"run_id": runs.find(tx, run_name).id}).fetchone()
    return dict(row)


def _print_summary(summary: dict[str, Any], measured: str) -> None:
    from trinity_db.cli.progress import shortened

    for answer in summary.get("answers", []):
        print(
            f"\n{shortened(answer['question'])}\n  before: {shortened(answer['before'])}"
            f"\n  after:  {shortened(answer['after'])}"
        )
    print(
        f"\n{measured}: {summary['before']:.0%} before, {summary['after']:.0%} after\n"
        "{rollouts} rollouts by {policy_versions} policy versions in {trained_batches} batches,\n"
        "staleness at most {max_staleness_seen}, {seconds:.0f} s".format(**summary)
    )
    if "picture" in summary:
        print(f"Reward and staleness: {summary['picture']}")
    # With `make demo` the command is in an environment that the shell does not use.
    command = "trinity-db" if shutil.which("trinity-db") else os.path.relpath(sys.argv[0])
    run = summary["run"]
    print("\nQuery the store:")
    for columns, view, order in (
        ("version, reward, trained", "policy_progress", "version"),
        ("step, policy_version, staleness_mean, reward", "batch_view", "step"),
        ("left(prompt, 60), left(response, 60), reward", "experience_view", "id desc limit 9"),
    ):
        print(f"  {command} sql \"select {columns} from {view} where run = '{run}' order by {order}\"")
    print(f"\nView it in a browser:\n  {command} page")
