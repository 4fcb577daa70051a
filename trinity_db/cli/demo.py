"""The demo: teach a model that starts from random weights to reverse digits, through the whole system.

It uses nothing that users lack: it imports tasks and demonstrations from files, and its runs have ordinary
configurations, which it leaves in the store's folder to look at.
"""

import importlib
import json
import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from trinity_db.imports.records import Kind

DIGITS = "01234567"
LENGTH = 4  # 4096 different numbers: with much fewer it learns them by heart
NUM_HELD_OUT = 128  # never trained on; what the accuracy is measured on
SEED = 0
TEMPLATE = "{prompt}="

# Of some thirty settings tried, these learned from every seed: what matters most is many numbers, then a
# falling learning rate.
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
        "micro_batch_tokens": 4096,  # of a model so small that each call costs more than its tokens
        "learning_rate": 2e-3,
        "warmup_steps": 10,
        "schedule": "linear",
    },
}


def demo(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Teach a small model from random weights: a warm start on demonstrations, then asynchronous GRPO.

    Example:

        trinity-db demo
    """
    from trinity_db.cli import plot
    from trinity_db.models import check_libraries
    from trinity_db.opening import open_database
    from trinity_db.settings import home

    check_libraries("torch", "transformers", "matplotlib")
    started = time.monotonic()
    # Loading torch takes seconds, which the warm start covers.
    threading.Thread(
        target=importlib.import_module, args=("trinity_db.explorer.engines.transformers_engine",), daemon=True
    ).start()
    database = open_database()
    folder = home() / "demo"
    number = _next_number(database)
    held_out = _import_data(database, folder)

    _say(f"1. Warm start on demonstrations (run demo-{number}-warmup)")
    warmup = _write_config(folder, {"name": f"demo-{number}-warmup", "seed": SEED} | WARMUP)
    _supervise(warmup)
    before = _accuracy(database, f"demo-{number}-warmup", held_out)
    _say(f"   right on {before:.0%} of {NUM_HELD_OUT} held-out numbers")

    _say(f"2. Asynchronous GRPO: explorer, processors and trainer as processes (run demo-{number})")
    model = {"run": f"demo-{number}-warmup", "prompt_template": TEMPLATE}
    _supervise(_write_config(folder, {"name": f"demo-{number}", "seed": SEED, "model": model} | GRPO))
    after = _accuracy(database, f"demo-{number}", held_out)
    _say(f"   right on {after:.0%} of {NUM_HELD_OUT} held-out numbers")

    picture = folder / f"demo-{number}.png"
    plot.plot_run(database, f"demo-{number}", picture)
    summary = {
        "run": f"demo-{number}",
        "accuracy_before": round(before, 4),
        "accuracy_after": round(after, 4),
        **_counts(database, f"demo-{number}"),
        "seconds": round(time.monotonic() - started, 1),
    }
    if as_json:
        print(json.dumps(summary))
    else:
        _print_summary(summary, picture)


def _next_number(database: Any) -> int:
    from trinity_db.schema.queries import query

    with database.transaction() as tx:
        row = tx.execute(query("count_named_runs"), {"prefix": "demo-"}).fetchone()
    return int(row["runs"]) // 2 + 1


def _import_data(database: Any, folder: Path) -> list[dict[str, str]]:
    """Import tasks and demonstrations, a second time without effect; returns the held-out tasks."""
    from itertools import product

    from trinity_db.imports.columns import Columns
    from trinity_db.imports.importer import import_rows
    from trinity_db.imports.readers import open_rows

    numbers = ["".join(digits) for digits in product(DIGITS, repeat=LENGTH)]
    random.Random(SEED).shuffle(numbers)
    tasks = [{"prompt": number, "answer": number[::-1]} for number in numbers]
    held_out, training = tasks[:NUM_HELD_OUT], tasks[NUM_HELD_OUT:]
    folder.mkdir(parents=True, exist_ok=True)
    demonstrations = [{"prompt": task["prompt"], "completion": task["answer"]} for task in training]
    files: list[tuple[Kind, str, list[dict[str, str]]]] = [
        ("tasks", "reverse-tasks", training),
        ("demonstrations", "reverse-demonstrations", demonstrations),
    ]
    for kind, name, rows in files:
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        import_rows(database, open_rows(path), Columns(kind), name, lambda done, total: None)
    return held_out


def _write_config(folder: Path, content: dict[str, Any]) -> Path:
    import yaml

    path = folder / f"{content['name']}.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def _supervise(path: Path) -> None:
    from trinity_db.cli import launch, supervise

    supervise.run(launch.read(path, None), launch.arguments(path, None))


def _accuracy(database: Any, run_name: str, tasks: Iterable[dict[str, str]]) -> float:
    """Share of tasks that the run's latest policy solves when it takes the likeliest token."""
    import asyncio

    from trinity_db.explorer.engines.engine import Request, sample_all
    from trinity_db.explorer.engines.transformers_engine import TransformersEngine
    from trinity_db.store import policies, runs

    with database.transaction() as tx:
        policy = policies.newest(tx, runs.find(tx, run_name).id)
    assert policy is not None
    engine = TransformersEngine()
    asyncio.run(engine.load(policy.checkpoint, policy.version))
    tasks = list(tasks)
    requests = [
        Request(
            engine.tokenizer.encode(TEMPLATE.replace("{prompt}", task["prompt"]), add_special_tokens=False),
            LENGTH + 1,
            temperature=0.0,
        )
        for task in tasks
    ]
    completions = sample_all(engine, requests)
    engine.close()
    texts = [engine.tokenizer.decode(one.token_ids, skip_special_tokens=True) for one in completions]
    solved = sum(text == task["answer"] for text, task in zip(texts, tasks, strict=True))
    return float(solved) / len(tasks)


def _counts(database: Any, run_name: str) -> dict[str, int]:
    from trinity_db.schema.queries import query
    from trinity_db.store import runs

    with database.transaction() as tx:
        row = tx.execute(query("run_summary"), {"run_id": runs.find(tx, run_name).id}).fetchone()
    return dict(row)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print_summary(summary: dict[str, Any], picture: Path) -> None:
    print(
        "\nAccuracy on held-out numbers: {accuracy_before:.0%} before, {accuracy_after:.0%} after\n"
        "{rollouts} rollouts by {policy_versions} policy versions in {trained_batches} batches,\n"
        "staleness at most {max_staleness_seen}, {seconds:.0f} s".format(**summary)
    )
    print(f"Reward and staleness: {picture}\n\nAsk the store:")
    # Out of `make demo` the command is in an environment that the shell does not know.
    command = "trinity-db" if shutil.which("trinity-db") else os.path.relpath(sys.argv[0])
    run = summary["run"]
    for columns, view, order in (
        ("version, reward, trained", "policy_progress", "version"),
        ("step, policy_version, staleness_mean, reward", "batch_view", "step"),
        ("prompt, response, reward, version_min", "experience_view", "id desc limit 9"),
    ):
        print(f"  {command} sql \"select {columns} from {view} where run = '{run}' order by {order}\"")
