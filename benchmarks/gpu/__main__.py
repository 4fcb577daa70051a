"""`make gpu`: tests of what the GPU computes, then tokens per second, memory and publishing, in a table."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks import machine
from benchmarks.context import Context
from benchmarks.gpu import speed, table
from benchmarks.peer import ROOT

TEMPORARY = Path(tempfile.gettempdir())


def main(
    device: Annotated[str, typer.Option(help="cuda, or cpu to try the command itself.")] = "cuda",
    size: Annotated[list[str] | None, typer.Option(help=f"{', '.join(speed.SIZES)}; all but tiny.")] = None,
    repetitions: Annotated[int, typer.Option(min=1, help="Of each measurement.")] = 3,
    scratch: Annotated[Path, typer.Option(help="A folder for models and checkpoints.")] = TEMPORARY,
    check: Annotated[bool, typer.Option("--check", help="Only say whether the device is there.")] = False,
) -> None:
    """Test what the GPU computes, then measure it."""
    sizes = size or [name for name in speed.SIZES if name != "tiny"]
    if unknown := sorted(set(sizes) - set(speed.SIZES)):
        raise typer.BadParameter(f"no such size: {', '.join(unknown)}", param_hint="--size")
    if device not in ("cuda", "cpu"):
        raise typer.BadParameter("it is cuda or cpu", param_hint="--device")
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit(f"error: torch {torch.__version__} finds no GPU here; --device cpu --size tiny tries it")
    if check:
        return
    tests = [sys.executable, "-m", "pytest", "tests/gpu", "-q", "-rs", "--device", device]
    is_right = subprocess.run(tests, cwd=ROOT).returncode == 0
    if not is_right:
        print("the device computes wrong numbers; its speed is measured all the same", file=sys.stderr)
    context = Context(repetitions, quick=False, scratch=scratch, peers_python=None)
    rows = [row for name in sizes for row in speed.measure(context, name, device)]
    table.write(machine.facts(context) | _device(device) | {"tests passed": is_right}, rows)
    sys.exit(0 if is_right and all(row.note != speed.FAILED for row in rows) else 1)


def _device(device: str) -> dict[str, object]:
    """The facts about the device."""
    facts: dict[str, object] = {"torch": torch.__version__}
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        facts |= {"gpu": properties.name, "gpu_gib": round(properties.total_memory / machine.GIB)}
        facts |= {"gpus": torch.cuda.device_count(), "cuda": torch.version.cuda}
    return facts


if __name__ == "__main__":
    typer.run(main)
