"""An optimizer step of GRPO and of DPO: tokens per second and peak memory, against TRL's trainers.

Same model (random weights), same rows, same micro-batches of 8 sequences, float32, one thread; each
measurement is a process of its own that makes a first step and is timed from then on. Tokens are those of
prompts and responses, without padding. The model is small, yet its arithmetic is what takes the time, and its
vocabulary is that of a real one, so that the head weighs as it does there.
"""

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks import peer, trained
from benchmarks.context import Context
from benchmarks.measure import OURS, Bar, Result, absent, figure, ratio
from benchmarks.processes import at_once
from trinity_db.arrays import Payload
from trinity_db.config import ScratchConfig
from trinity_db.models import build_scratch
from trinity_db.trainer.config import AlgorithmConfig, TrainerConfig
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner

MEASURE = "trainer"
PYTHON = peer.ROOT / ".venv-peers" / "bin" / "python"  # TRL is there, for the tests against it
VOCABULARY = 32_000
WIDTH, LAYERS, HEADS = 256, 4, 4
ROWS, QUICK_ROWS = 16, 8
MICRO_BATCH_SIZE = 8
STEPS = 1  # timed, after one that is not
FASTER, NO_MORE_MEMORY = Bar(1.5), Bar(1.0, at_most=True)


def run(context: Context) -> list[Result]:
    """Both algorithms; ours and theirs in turns."""
    found = []
    with TemporaryDirectory(prefix="trinity-db-bench-model-", dir=context.scratch) as folder:
        _build_model(Path(folder))
        for algorithm in ("grpo", "dpo"):
            asked = {
                "operation": "train",
                "algorithm": algorithm,
                "model": folder,
                "vocabulary": VOCABULARY,
                "rows": QUICK_ROWS if context.quick else ROWS,
                "micro_batch_size": MICRO_BATCH_SIZE,
                "steps": STEPS,
            }
            found += _compare(context, algorithm, asked)
    return found


def _compare(context: Context, algorithm: str, asked: dict[str, Any]) -> list[Result]:
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    for _ in range(context.repetitions):
        ours.append(_summary(at_once(_prepare, [asked])[0].value))
        answer = peer.ask(context, "trl", asked, PYTHON)
        if not answer.repetitions:
            return [*_figures(algorithm, OURS, ours), absent(MEASURE, answer.who, algorithm, answer.note)]
        theirs.append(_summary(answer.repetitions))
        context.say(f"{algorithm}: {ours[-1]}, {answer.who}: {theirs[-1]}")
    found = [*_figures(algorithm, OURS, ours), *_figures(algorithm, answer.who, theirs, answer.note)]
    for name, variant, bar in (
        ("speed", f"{algorithm}, tokens/s", FASTER),
        ("peak", f"{algorithm}, peak memory", NO_MORE_MEMORY),
        ("above", f"{algorithm}, memory above the loaded model", NO_MORE_MEMORY),
    ):
        mine, other = [one[name] for one in ours], [one[name] for one in theirs]
        found.append(ratio(MEASURE, variant, mine, other, answer.who, bar, alternated=True))
    return found


def _summary(steps: list[dict[str, float]]) -> dict[str, float]:
    return {
        "speed": sum(step["tokens"] for step in steps) / sum(step["seconds"] for step in steps),
        "peak": steps[-1]["peak"],
        "above": steps[-1]["peak"] - steps[-1]["loaded"],
    }


def _figures(algorithm: str, who: str, found: list[dict[str, float]], note: str = "") -> list[Result]:
    return [
        figure(MEASURE, who, variant, unit, [one[name] for one in found], note=note)
        for name, variant, unit in (
            ("speed", algorithm, "tokens/s"),
            ("peak", f"{algorithm}, peak", "MB"),
            ("above", f"{algorithm}, above the loaded model", "MB"),
        )
    ]


def _prepare(asked: dict[str, Any]) -> Any:
    """Load, and make the first step, in a new process."""
    torch.set_num_threads(1)
    made = trained.batch(asked["rows"], asked["vocabulary"])
    payloads = [
        Payload(row.token_ids, row.action_mask, row.logprobs, np.zeros(len(row.logprobs), np.int32))
        for row in made.rows
    ]
    is_grpo = asked["algorithm"] == "grpo"
    batch = Batch(payloads, {"advantages": made.advantages} if is_grpo else {})
    learner = Learner(
        TrainerConfig(learning_rate=trained.LEARNING_RATE, micro_batch_size=asked["micro_batch_size"]),
        TypeAdapter(AlgorithmConfig).validate_python(asked["algorithm"]),
        Path(asked["model"]),
        total_steps=asked["steps"] + 1,
        device="cpu",
    )
    loaded = trained.resident_megabytes()
    learner.step(batch)

    def timed() -> list[dict[str, float]]:
        seconds = []
        for _ in range(asked["steps"]):
            start = time.perf_counter()
            learner.step(batch)
            seconds.append(time.perf_counter() - start)
        memory = {"peak": trained.peak_megabytes(), "loaded": loaded}
        return [{"seconds": each, "tokens": made.tokens, **memory} for each in seconds]

    return timed


def _build_model(folder: Path) -> None:
    """Qwen2 with random weights, with a tokenizer: TRL asks for one, though the steps do not use it."""
    build_scratch(ScratchConfig(hidden_size=16, heads=1, layers=1), 0, folder)
    torch.manual_seed(0)
    settings = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=WIDTH * 11 // 4,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
    )
    Qwen2ForCausalLM(settings).save_pretrained(folder)
