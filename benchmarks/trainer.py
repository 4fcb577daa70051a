"""An optimizer step of GRPO and of DPO: tokens per second and peak memory, against TRL and verl.

All use the same model (random weights), rows, micro-batches of 8 sequences, float32 and one thread. Each
measurement is a process that is timed after its first step. Tokens are those of prompts and responses without
padding. The model is small, but has a vocabulary of realistic size, because the head's cost depends on it.
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import peer
from benchmarks.context import Context
from benchmarks.measure import OURS, Bar, Result, absent, figure, ratio
from benchmarks.optimizer_steps import prepare
from benchmarks.processes import at_once
from benchmarks.random_model import TEN_MILLION, build

MEASURE = "trainer"
PYTHON = peer.ROOT / ".venv-peers" / "bin" / "python"
ROWS, QUICK_ROWS = 16, 8
MICRO_BATCH_SIZE = 8
STEPS = 1  # timed, after a warm-up step
PEERS = {"grpo": ("trl", "verl"), "dpo": ("trl",)}
FASTER, NO_MORE_MEMORY = Bar(1.5), Bar(1.0, at_most=True)
# Key of a summary: its variant after the algorithm's name, unit and bar.
FIGURES = {
    "speed": ("", "tokens/s", FASTER),
    "peak": (", peak memory", "MB", NO_MORE_MEMORY),
    "above": (", memory above the loaded model", "MB", NO_MORE_MEMORY),
}


def run(context: Context) -> list[Result]:
    """Measure both algorithms; ours and the peers in turns."""
    results = []
    with TemporaryDirectory(prefix="trinity-db-bench-model-", dir=context.scratch) as folder:
        model = Path(folder) / "model"
        model.mkdir()
        build(model, TEN_MILLION)
        for algorithm, peers in PEERS.items():
            specification = {
                "operation": "train",
                "algorithm": algorithm,
                "model": str(model),
                "vocabulary": TEN_MILLION.vocabulary,
                "rows": QUICK_ROWS if context.quick else ROWS,
                "micro_batch_size": MICRO_BATCH_SIZE,
                "steps": STEPS,
            }
            results += _compare(context, algorithm, specification, peers)
    return results


def _compare(
    context: Context, algorithm: str, specification: dict[str, Any], peers: Sequence[str]
) -> list[Result]:
    ours: list[dict[str, float]] = []
    theirs: dict[str, list[dict[str, float]]] = {name: [] for name in peers}
    answers: dict[str, peer.Answer] = {}
    for _ in range(context.repetitions):
        ours.append(_summary(at_once(prepare, [specification])[0].value))
        for name in peers:
            answers[name] = peer.ask(context, name, specification, PYTHON)
            theirs[name] += [_summary(answers[name].repetitions)] if answers[name].repetitions else []
        context.say(f"{algorithm}: {ours[-1]}, { ({name: them[-1:] for name, them in theirs.items()}) }")
    results = []
    for key, (suffix, unit, bar) in FIGURES.items():
        variant, our_values = algorithm + suffix, [summary[key] for summary in ours]
        results.append(
            figure(MEASURE, OURS, variant, unit, our_values)
        )  # without a peer the table shows this figure
        for name, answer in answers.items():
            if len(theirs[name]) == context.repetitions:
                peer_values = [summary[key] for summary in theirs[name]]
                results.append(
                    ratio(MEASURE, variant, unit, our_values, peer_values, answer.who, bar, alternated=True)
                )
    return results + [
        absent(MEASURE, answer.who, algorithm, answer.note)
        for name, answer in answers.items()
        if len(theirs[name]) < context.repetitions
    ]


def _summary(steps: list[dict[str, float]]) -> dict[str, float]:
    tokens, seconds = sum(step["tokens"] for step in steps), sum(step["seconds"] for step in steps)
    peak, loaded = steps[-1]["peak"], steps[-1]["loaded"]
    return {"speed": tokens / seconds, "peak": peak, "above": peak - loaded}
