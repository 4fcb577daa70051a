"""`make gpu`: test the GPU's results, then measure it; each row is written as soon as it is known."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks import machine, random_model
from benchmarks.context import Context
from benchmarks.gpu import decoding, limits, publishing, speed, table
from benchmarks.gpu.measurement import FAILED, Row
from benchmarks.peer import ROOT
from benchmarks.processes import at_once

TEMPORARY = Path(tempfile.gettempdir())
MODEL_STAGES = {"speed": speed, "decoding": decoding, "publishing": publishing}
STAGES = ("tests", "limits", *MODEL_STAGES)


def main(
    device: Annotated[str, typer.Option(help="cuda, or cpu to test the command.")] = "cuda",
    size: Annotated[
        list[str] | None, typer.Option(help=f"Model size: {', '.join(speed.SIZES)}; default all but tiny.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help=f"A stage: {', '.join(STAGES)}.")] = None,
    repetitions: Annotated[int, typer.Option(min=1, help="Repetitions of each measurement of speed.")] = 3,
    seconds: Annotated[float, typer.Option(help="Start no measurement after this time.")] = float("inf"),
    scratch: Annotated[Path, typer.Option(help="Folder for models and versions.")] = TEMPORARY,
    check: Annotated[bool, typer.Option("--check", help="Only check that the device exists.")] = False,
) -> None:
    """Test and measure the GPU."""
    start, sizes = time.monotonic(), size or [name for name in speed.SIZES if name != "tiny"]
    stages = only or list(STAGES)
    for chosen, known, option in ((sizes, speed.SIZES, "--size"), (stages, STAGES, "--only")):
        if unknown := sorted(set(chosen) - set(known)):
            raise typer.BadParameter(f"unknown: {', '.join(unknown)}", param_hint=option)
    if device not in ("cuda", "cpu"):
        raise typer.BadParameter("must be cuda or cpu", param_hint="--device")
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit(f"error: torch {torch.__version__} finds no GPU here; --device cpu --size tiny tries it")
    if check:
        return
    context = Context(repetitions, quick=False, scratch=scratch, peers_python=None)
    facts = machine.facts(context) | _device(device)
    if "tests" in stages:
        tests = [sys.executable, "-m", "pytest", "tests/others/gpu", "-q", "-rs", "--device", device]
        facts["tests passed"] = subprocess.run(tests, cwd=ROOT).returncode == 0
        if not facts["tests passed"]:
            print("the device computes wrong numbers; measuring its speed anyway", file=sys.stderr)
    rows: list[Row] = []
    for row in _rows(context, sizes, stages, device):
        context.say(f"{row.stage}: {row.what}, {row.who}: {row.measured} {row.note}")
        rows.append(row)
        table.write(facts, rows)
        if time.monotonic() - start > seconds:
            context.say("no time left; the remaining measurements are omitted")
            break
    print(table.markdown(facts, rows))
    sys.exit(0 if facts.get("tests passed", True) and all(row.note != FAILED for row in rows) else 1)


def _rows(context: Context, sizes: list[str], stages: list[str], device: str) -> Iterator[Row]:
    """Yield the rows of all stages, with a new model per size."""
    if "limits" in stages:
        yield from (replace(row, stage="limits") for row in limits.measure(context, device))
    dtype = "bfloat16" if device == "cuda" else "float32"
    for name in sizes if set(stages) & set(MODEL_STAGES) else ():
        with tempfile.TemporaryDirectory(prefix="trinity-db-gpu-", dir=context.scratch) as folder:
            context.say(f"{name}: building a model with random weights")
            at_once(
                partial, [partial(random_model.build, Path(folder), speed.SIZES[name].size, device, dtype)]
            )
            for stage, module in MODEL_STAGES.items():
                if stage in stages:
                    measured = module.measure(context, name, Path(folder), device)
                    yield from (replace(row, stage=f"{stage}, {name}") for row in measured)


def _device(device: str) -> dict[str, object]:
    """Return facts about the device."""
    facts: dict[str, object] = {"torch": torch.__version__}
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        facts |= {"gpu": properties.name, "gpu_gib": round(properties.total_memory / machine.GIB)}
        facts |= {"gpus": torch.cuda.device_count(), "cuda": torch.version.cuda}
    return facts


if __name__ == "__main__":
    typer.run(main)
