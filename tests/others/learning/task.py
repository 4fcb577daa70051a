"""The demo's task, and how well a policy does it: numbers that it never trained on, turned around."""

import asyncio
import random
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from tests.acceptance.command import Store
from trinity_db.cli.demo import DIGITS, GRPO, LENGTH, NUM_HELD_OUT, TEMPLATE, WARMUP
from trinity_db.explorer.engines.engine import Request, sample_all
from trinity_db.explorer.engines.transformers_engine import TransformersEngine

__all__ = ["DEMONSTRATIONS", "GRPO", "HELD_OUT", "LENGTH", "TEMPLATE", "TRAINING", "WARMUP", "WARM_START"]

WARM_START = "warm-start"
RUN_SECONDS = 900.0  # two minutes on a machine that has nothing else to do

_NUMBERS = ["".join(digits) for digits in product(DIGITS, repeat=LENGTH)]
random.Random(0).shuffle(_NUMBERS)
_TASKS = [{"prompt": number, "answer": number[::-1]} for number in _NUMBERS]

HELD_OUT, TRAINING = _TASKS[: 4 * NUM_HELD_OUT], _TASKS[4 * NUM_HELD_OUT :]
"""512 held-out tasks: the standard error of an accuracy is then at most 2.2 percent."""
DEMONSTRATIONS = [{"prompt": one["prompt"], "completion": one["answer"]} for one in TRAINING]


def train(store: Store, command: str, config: dict[str, Any], *options: str) -> None:
    """Run a configuration to its end by an installed command."""
    path = store.folder / f"{config['name']}.yaml"
    path.write_text(yaml.safe_dump(config))
    ended = store.start(command, path, *options).wait(RUN_SECONDS)
    assert ended.code == 0, ended.stderr


def checkpoint(store: Store, run: str) -> Path:
    """The folder of the run's latest policy version."""
    newest = """SELECT checkpoint FROM policy_version p JOIN run r ON r.id = p.run_id
                WHERE r.name = %(run)s AND checkpoint IS NOT NULL ORDER BY version DESC LIMIT 1"""
    return Path(store.value(newest, run=run))


def requests(engine: TransformersEngine, tasks: list[dict[str, str]]) -> list[Request]:
    prompts = [TEMPLATE.replace("{prompt}", one["prompt"]) for one in tasks]
    encoded = [engine.tokenizer.encode(prompt, add_special_tokens=False) for prompt in prompts]
    return [Request(prompt_ids, LENGTH + 1, temperature=0.0) for prompt_ids in encoded]


def accuracy(folder: Path) -> float:
    """Share of held-out tasks that a checkpoint solves exactly when it takes the likeliest token."""
    engine = TransformersEngine("cpu")
    asyncio.run(engine.load(folder, 0))
    completions = sample_all(engine, requests(engine, HELD_OUT))
    engine.close()
    texts = [engine.tokenizer.decode(one.token_ids, skip_special_tokens=True) for one in completions]
    solved = sum(text == one["answer"] for text, one in zip(texts, HELD_OUT, strict=True))
    return float(solved) / len(HELD_OUT)
