"""How fast the device learns, and how soon an explorer has a new version, for models of several sizes.

Each measurement is a process of its own, so that one that runs out of memory takes nothing from the others.
Ours and TRL's trainer step on the same rows in turns. Then ours publishes two versions, and an explorer's
engine that has the first one loads the second and samples a token with it.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import peer, random_model
from benchmarks.context import Context
from benchmarks.gpu.exploring import load_new_version
from benchmarks.measure import OURS
from benchmarks.optimizer_steps import prepare
from benchmarks.processes import at_once
from benchmarks.random_model import Size

PEERS = peer.ROOT / ".venv-peers" / "bin" / "python"
VLLM = peer.ROOT / ".venv-vllm" / "bin" / "python"
ALGORITHMS = ("grpo", "dpo")
ADAPTER: dict[str, Any] = {"lora": {}}
OUT_OF_MEMORY, FAILED = "out of memory", "failed"


@dataclass(frozen=True)
class Case:
    """A model and how it is trained."""

    size: Size
    ways: Mapping[str, Mapping[str, Any]]
    """Settings of the trainer by what the table calls them."""
    rows: int
    micro_batch_size: int
    steps: int


WHOLE: dict[str, Any] = {"gradient_checkpointing": True}
SIZES = {
    "tiny": Case(random_model.TINY, {"all weights": WHOLE, "adapter": WHOLE | ADAPTER}, 8, 4, 1),
    "0.5b": Case(random_model.HALF_BILLION, {"all weights": WHOLE, "adapter": WHOLE | ADAPTER}, 64, 8, 3),
    "7b": Case(random_model.SEVEN_BILLION, {"all weights": WHOLE, "adapter": WHOLE | ADAPTER}, 64, 8, 3),
}


@dataclass(frozen=True)
class Row:
    """One line of the table: medians of the measurements, or why there are none."""

    size: str
    what: str
    """Algorithm and way; `explorer` and its engine."""
    who: str
    measured: dict[str, float] = field(default_factory=dict)
    """By name with unit."""
    note: str = ""


def measure(context: Context, name: str, device: str) -> Iterator[Row]:
    """All rows of one size."""
    case = SIZES[name]
    with TemporaryDirectory(prefix="trinity-db-gpu-", dir=context.scratch) as scratch:
        model = Path(scratch) / "model"
        model.mkdir()
        context.say(f"{name}: a model with random weights")
        dtype = "bfloat16" if device == "cuda" else "float32"
        parameters = at_once(_build, [(model, case.size, device, dtype)])[0].value
        context.say(f"{name}: {parameters:,} parameters")
        versions = [Path(scratch) / f"version-{number}" for number in range(2)]
        for algorithm in ALGORITHMS:
            for way, settings in case.ways.items():
                asked = {
                    "operation": "train",
                    "algorithm": algorithm,
                    "model": str(model),
                    "vocabulary": case.size.vocabulary,
                    "rows": case.rows,
                    "micro_batch_size": case.micro_batch_size,
                    "steps": case.steps,
                    "device": device,
                    "settings": settings,
                }
                wanted = [] if versions[-1].exists() else [str(one) for one in versions]
                yield from _trained(context, name, f"{algorithm}, {way}", asked | {"publish": wanted})
        yield from _explored(context, name, device, versions)


def _build(asked: tuple[Path, Size, str, str]) -> Any:
    """In a process of its own, which leaves no memory behind."""
    return lambda: random_model.build(*asked)


def _trained(context: Context, name: str, what: str, asked: dict[str, Any]) -> Iterator[Row]:
    """Ours and TRL's in turns; a side that failed once is not asked again."""
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    our_note, their_note, who = "", "", "TRL"
    for number in range(context.repetitions):
        publish = asked["publish"] if number == 0 else []
        if not our_note:
            try:
                ours += [_summary(at_once(prepare, [asked | {"publish": publish}])[0].value)]
            except RuntimeError as error:
                our_note = _why(context, str(error))
        if not their_note:
            answer = peer.ask(context, "trl", asked, PEERS)
            who, their_note = answer.who, "" if answer.repetitions else _why(context, answer.note)
            theirs += [_summary(answer.repetitions)] if answer.repetitions else []
        context.say(f"{name}, {what}: {ours[-1:]} {our_note}, {who}: {theirs[-1:]} {their_note}")
    yield Row(name, what, OURS, _medians(ours), our_note)
    yield Row(name, what, who, _medians(theirs), their_note)


def _explored(context: Context, name: str, device: str, versions: Sequence[Path]) -> Iterator[Row]:
    """From a version's files to its first token, for each engine that is installed."""
    for engine, python in (("transformers", None), ("vllm", VLLM if VLLM.exists() else None)):
        what = f"explorer, {engine}"
        if engine == "vllm" and python is None:
            yield Row(name, what, OURS, note="make test-vllm makes .venv-vllm, in which vLLM is")
        elif not versions[-1].exists():
            yield Row(name, what, OURS, note="no version was published")
        else:
            found: list[dict[str, float]] = []
            try:
                for _ in range(context.repetitions):
                    asked = (engine, python, device, versions)
                    found.append({"s to the new version": at_once(load_new_version, [asked])[0].value})
            except RuntimeError as error:
                yield Row(name, what, OURS, note=_why(context, str(error)))
                continue
            yield Row(name, what, OURS, _medians(found))


def _summary(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The table's numbers of one process."""
    found = {
        "tokens/s": sum(step["tokens"] for step in steps) / sum(step["seconds"] for step in steps),
        "peak GB": steps[-1]["peak"] / 1e3,
    }
    if "publish_seconds" in steps[-1]:
        found |= {
            "publish, pause s": steps[-1]["publish_pause"],
            "publish s": steps[-1]["publish_seconds"],
            "publish GB": steps[-1]["publish_bytes"] / 1e9,
            "publish, more MB of memory": steps[-1]["publish_above"],
        }
    return found


def _medians(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for one in found for name in one)
    return {name: statistics.median(one[name] for one in found if name in one) for name in names}


def _why(context: Context, complaint: str) -> str:
    """The reason, for the table; where that is not all, the complaint goes to stderr."""
    reason = reason_of(complaint)
    if reason == FAILED:
        context.say(complaint)
    return reason


def reason_of(complaint: str) -> str:
    """Why something was not measured, in words that fit into a table."""
    if "OutOfMemoryError" in complaint or "out of memory" in complaint.lower():
        return OUT_OF_MEMORY
    return complaint if complaint.startswith(("not installed", "cannot")) else FAILED
