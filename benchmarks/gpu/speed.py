"""Tokens per second and memory of optimizer steps for models of several sizes, against TRL.

Our learner and TRL's trainer alternate on the same rows, each measurement in its own process.
"""

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import peer, random_model, trained
from benchmarks.context import Context
from benchmarks.gpu.measurement import Row, why
from benchmarks.measure import OURS
from benchmarks.optimizer_steps import prepare
from benchmarks.processes import at_once
from benchmarks.random_model import Size

PEERS = Path(sys.executable) if find_spec("trl") else peer.ROOT / ".venv-peers" / "bin" / "python"
ALGORITHMS = ("grpo", "dpo")
WHOLE: dict[str, Any] = {"gradient_checkpointing": True}
ADAPTER = WHOLE | {"lora": {}}


@dataclass(frozen=True)
class Case:
    """Model and training settings."""

    size: Size
    ways: Mapping[str, Mapping[str, Any]]
    """Settings of the trainer by their names in the table."""
    rows: int
    micro_batch_size: int
    steps: int


SIZES = {
    "tiny": Case(random_model.TINY, {"all weights": WHOLE, "adapter": ADAPTER}, 8, 4, 1),
    "0.5b": Case(random_model.HALF_BILLION, {"all weights": WHOLE, "adapter": ADAPTER}, 64, 8, 3),
    # Weights, gradients and AdamW's state of 7 billion parameters take 122 GB in float32.
    "7b": Case(random_model.SEVEN_BILLION, {"adapter": ADAPTER}, 64, 8, 3),
}


def specification_of(name: str, algorithm: str, way: str, model: Path, device: str) -> dict[str, Any]:
    """Return the specification of `train` in `peers/frame.py`."""
    case = SIZES[name]
    return {
        "operation": "train",
        "algorithm": algorithm,
        "model": str(model),
        "vocabulary": case.size.vocabulary,
        "rows": case.rows,
        "micro_batch_size": case.micro_batch_size,
        "steps": case.steps,
        "device": device,
        "settings": dict(case.ways[way]),
    }


def measure(context: Context, name: str, model: Path, device: str) -> Iterator[Row]:
    """Yield a row of ours and a row of TRL's for each algorithm and way of training."""
    for algorithm in ALGORITHMS:
        for way, settings in SIZES[name].ways.items():
            work = flops(SIZES[name], "lora" in settings, algorithm == "dpo")
            specification = specification_of(name, algorithm, way, model, device)
            yield from _trained(context, name, f"{algorithm}, {way}", specification, work)


def _trained(
    context: Context, name: str, title: str, specification: dict[str, Any], work: float
) -> Iterator[Row]:
    """Measure ours and TRL's in turns; a side that fails is not measured again."""
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    our_note, their_note, who = "", "", "TRL"
    for _ in range(context.repetitions):
        if not our_note:
            try:
                ours.append(_summary(at_once(prepare, [specification])[0].value, work))
            except RuntimeError as error:
                our_note = why(context, str(error))
        if not their_note:
            answer = peer.ask(context, "trl", specification, PEERS)
            who, their_note = answer.who, "" if answer.repetitions else why(context, answer.note)
            theirs += [_summary(answer.repetitions, work)] if answer.repetitions else []
    yield Row(name, title, OURS, _medians(ours), our_note)
    yield Row(name, title, who, _medians(theirs), their_note)


def _summary(steps: Sequence[Mapping[str, float]], work: float) -> dict[str, float]:
    """Return the figures of one process."""
    seconds = sum(step["seconds"] for step in steps)
    return {
        "tokens/s": sum(step["tokens"] for step in steps) / seconds,
        "TFLOP/s": len(steps) * work / seconds / 1e12,
        "peak GB": steps[-1]["peak"] / 1e3,
    }


def _medians(measurements: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {
        name: statistics.median(measurement[name] for measurement in measurements)
        for name in (measurements[0] if measurements else ())
    }


def flops(case: Case, is_adapter: bool, has_reference: bool) -> float:
    """Return the floating point operations of a step, without padding and recomputation.

    A pass costs 2 per weight and token, and a backward pass twice that, or once if weights are frozen.
    """
    size, rows = case.size, trained.batch(case.rows, case.size.vocabulary).rows
    passes = (2 if is_adapter else 3) + has_reference
    shared = size.key_value_heads / size.heads  # width of keys and values relative to queries
    layer = (2 + 2 * shared) * size.width**2 + 3 * size.width * size.feed_forward
    weights = size.layers * layer * sum(len(row.token_ids) for row in rows)
    head = size.vocabulary * size.width * sum(len(row.logprobs) for row in rows)
    attention = size.layers * size.width * sum(len(row.token_ids) ** 2 for row in rows)  # causal: half
    return 2.0 * (passes * (weights + head) + (3 + has_reference) * attention)
