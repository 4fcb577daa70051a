"""A version of a run with LoRA, published as an adapter and as merged weights: bytes and seconds.

Both ways in turns, weights alone and no checkpoint, all linear layers with rank 16. A learner publishes two
versions, and the second one counts: its seconds are from the end of a step to the files' digest, flushed.
Then the engine `transformers`, which has loaded the versions before, loads one and samples its first tokens.
Each measurement is a process of its own with one thread, and the model has random weights in float32.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from pydantic import TypeAdapter

from benchmarks.context import Context
from benchmarks.gpu.exploring import load_new_version
from benchmarks.measure import OURS, Bar, Result, figure, ratio
from benchmarks.processes import at_once
from benchmarks.random_model import HALF_BILLION, TEN_MILLION, Size, build
from trinity_db.models import load_tokenizer
from trinity_db.trainer.checkpoints import version
from trinity_db.trainer.config import AlgorithmConfig, TrainerConfig
from trinity_db.trainer.learner.learner import Learner

MEASURE = "publish"
WAYS = ("adapter", "merged")
SIZES: Mapping[str, Size] = {"10 M": TEN_MILLION, "0.5 B": HALF_BILLION}
SMALLER, FASTER = Bar(0.1, at_most=True), Bar(1.0, at_most=True)

Asked = tuple[Path, str, tuple[Path, ...]]
"""The model, how versions are published, and their folders."""


def run(context: Context) -> list[Result]:
    """Each size, the small one alone if it is to be quick."""
    found = []
    for name in list(SIZES)[: 1 if context.quick else None]:
        with TemporaryDirectory(prefix="trinity-db-bench-publish-", dir=context.scratch) as scratch:
            found += _measured(context, name, Path(scratch))
    return found


def _measured(context: Context, name: str, scratch: Path) -> list[Result]:
    model = scratch / "version-000000"
    model.mkdir()
    at_once(_build, [(model, SIZES[name])])
    values: dict[str, dict[str, list[float]]] = {way: {} for way in WAYS}
    for repetition in range(context.repetitions):
        for way in WAYS if repetition % 2 else WAYS[::-1]:
            with TemporaryDirectory(dir=scratch) as folder:
                versions = (Path(folder) / "1", Path(folder) / "2")
                measured: dict[str, float] = at_once(prepare, [(model, way, versions)])[0].value
                asked = ("transformers", None, "cpu", versions)
                measured["load"] = at_once(load_new_version, [asked])[0].value
            for what, value in measured.items():
                values[way].setdefault(what, []).append(value)
            context.say(f"{name}, {way}: {measured}")
    return _results(name, values)


def _results(name: str, values: Mapping[str, Mapping[str, list[float]]]) -> list[Result]:
    found = []
    for what, variant, unit, bar in (
        ("bytes", "a version on disk", "MB", SMALLER),
        ("seconds", "publish it", "s", FASTER),
        ("load", "load it and sample", "s", None),
    ):
        adapter, merged = (values[way][what] for way in WAYS)
        for way, one in zip(WAYS, (adapter, merged), strict=True):
            found.append(figure(MEASURE, OURS, f"{name}, {way}: {variant}", unit, one))
        found.append(
            ratio(MEASURE, f"{name}, adapter: {variant}", adapter, merged, "merged", bar, alternated=True)
        )
    return found


def _build(asked: tuple[Path, Size]) -> Callable[[], int]:
    return lambda: build(*asked)


def prepare(asked: Asked) -> Callable[[], dict[str, float]]:
    """Make the learner. The returned function publishes two versions and returns what the second one took."""
    model, way, versions = asked
    torch.set_num_threads(1)
    config = TrainerConfig.model_validate({"lora": {}, "publish": way})
    algorithm = TypeAdapter(AlgorithmConfig).validate_python("sft")
    learner = Learner(config, algorithm, model, total_steps=1, device="cpu")
    tokenizer = load_tokenizer(model)

    def publish() -> dict[str, float]:
        for folder in versions:
            start = time.perf_counter()
            version.begin(folder, learner, tokenizer).digest()
            seconds = time.perf_counter() - start
        files = [path for path in versions[-1].rglob("*") if path.is_file()]
        return {"seconds": seconds, "bytes": sum(path.stat().st_size for path in files) / 1e6}

    return publish
