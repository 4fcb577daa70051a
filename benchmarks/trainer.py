"""An optimizer step of GRPO and of DPO: tokens per second and peak memory, against TRL's and verl's.

Same model (random weights), same rows, same micro-batches of 8 sequences, float32, one thread; each
measurement is a process of its own that makes a first step and is timed from then on. Tokens are those of
prompts and responses, without padding. The model is small, yet its arithmetic is what takes the time, and its
vocabulary is that of a real one, so that the head weighs as it does there.
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
PYTHON = peer.ROOT / ".venv-peers" / "bin" / "python"  # TRL is there, for the tests against it
ROWS, QUICK_ROWS = 16, 8
MICRO_BATCH_SIZE = 8
STEPS = 1  # timed, after one that is not
PEERS = {"grpo": ("trl", "verl"), "dpo": ("trl",)}
FASTER, NO_MORE_MEMORY = Bar(1.5), Bar(1.0, at_most=True)


def run(context: Context) -> list[Result]:
    """Both algorithms; ours and the peers' in turns."""
    found = []
    with TemporaryDirectory(prefix="trinity-db-bench-model-", dir=context.scratch) as folder:
        model = Path(folder) / "model"
        model.mkdir()
        build(model, TEN_MILLION)
        for algorithm, peers in PEERS.items():
            asked = {
                "operation": "train",
                "algorithm": algorithm,
                "model": str(model),
                "vocabulary": TEN_MILLION.vocabulary,
                "rows": QUICK_ROWS if context.quick else ROWS,
                "micro_batch_size": MICRO_BATCH_SIZE,
                "steps": STEPS,
            }
            found += _compare(context, algorithm, asked, peers, Path(folder))
    return found


def _compare(
    context: Context, algorithm: str, asked: dict[str, Any], peers: Sequence[str], folder: Path
) -> list[Result]:
    ours: list[dict[str, float]] = []
    theirs: dict[str, list[dict[str, float]]] = {name: [] for name in peers}
    answers: dict[str, peer.Answer] = {}
    for number in range(context.repetitions):
        published = [str(folder / f"{algorithm}-{number}-{version}") for version in range(2)]
        ours.append(_summary(at_once(prepare, [asked | {"publish": published}])[0].value))
        for name in peers:
            answers[name] = peer.ask(context, name, asked, PYTHON)
            theirs[name] += [_summary(answers[name].repetitions)] if answers[name].repetitions else []
        context.say(f"{algorithm}: {ours[-1]}, { ({name: them[-1:] for name, them in theirs.items()}) }")
    found = _figures(algorithm, OURS, ours) + _publications(algorithm, ours)
    for name, answer in answers.items():
        if len(theirs[name]) < context.repetitions:
            found.append(absent(MEASURE, answer.who, algorithm, answer.note))
        else:
            found += _figures(algorithm, answer.who, theirs[name], answer.note)
            found += _ratios(algorithm, answer.who, ours, theirs[name])
    return found


def _ratios(
    algorithm: str, who: str, ours: Sequence[dict[str, float]], theirs: Sequence[dict[str, float]]
) -> list[Result]:
    found = []
    for name, variant, bar in (
        ("speed", f"{algorithm}, tokens/s", FASTER),
        ("peak", f"{algorithm}, peak memory", NO_MORE_MEMORY),
        ("above", f"{algorithm}, memory above the loaded model", NO_MORE_MEMORY),
    ):
        mine, other = [one[name] for one in ours], [one[name] for one in theirs]
        found.append(ratio(MEASURE, variant, mine, other, who, bar, alternated=True))
    return found


def _summary(steps: list[dict[str, float]]) -> dict[str, float]:
    tokens, seconds = sum(step["tokens"] for step in steps), sum(step["seconds"] for step in steps)
    last = steps[-1]
    return {
        "speed": tokens / seconds,
        "steps": 3600 * len(steps) / seconds,
        "peak": last["peak"],
        "above": last["peak"] - last["loaded"],
    } | {name: value for name, value in last.items() if name.startswith("publish")}


def _figures(algorithm: str, who: str, found: list[dict[str, float]], note: str = "") -> list[Result]:
    return [
        figure(MEASURE, who, variant, unit, [one[name] for one in found], note=note)
        for name, variant, unit in (
            ("speed", algorithm, "tokens/s"),
            ("steps", algorithm, "steps/h"),
            ("peak", f"{algorithm}, peak", "MB"),
            ("above", f"{algorithm}, above the loaded model", "MB"),
        )
    ]


def _publications(algorithm: str, ours: Sequence[dict[str, float]]) -> list[Result]:
    """The second of two in one process: the first one loads libraries."""
    return [
        figure(MEASURE, OURS, f"{algorithm}, a publication{what}", unit, [scale * one[name] for one in ours])
        for name, what, unit, scale in (
            ("publish_pause", ", until the next step begins", "s", 1.0),
            ("publish_seconds", "", "s", 1.0),
            ("publish_bytes", " on disk", "MB", 1e-6),
            ("publish_above", ", memory above that before", "MB", 1.0),
        )
    ]
