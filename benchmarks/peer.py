"""Run peers' scripts from `peers/` in their own environments and turn their answers into results.

If a peer does not support an operation or fails, the result is empty and its note gives the reason.
"""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from benchmarks.context import Context
from benchmarks.measure import Bar, Result, absent, percentile, ratio

ROOT = Path(__file__).parents[1]
NAMES = ("trinity_rft", "reverb", "transfer_queue")
LIMIT_SECONDS = 1800.0


@dataclass(frozen=True)
class Answer:
    """Measurements of a peer, one per repetition, or the reason why there are none."""

    who: str
    repetitions: list[dict[str, Any]] = field(default_factory=list)
    """Each has `seconds` and `rows`, or `latencies` in seconds; training has `seconds`, `tokens`, and
    megabytes `loaded` and `peak`."""
    note: str = ""

    def rates(self) -> list[float]:
        """Rows per second."""
        return [repetition["rows"] / repetition["seconds"] for repetition in self.repetitions]

    def latencies(self, percent: float) -> list[float]:
        """Percentile of each repetition in milliseconds."""
        return [1e3 * percentile(repetition["latencies"], percent) for repetition in self.repetitions]


def ask(context: Context, name: str, specification: Mapping[str, Any], python: Path | None = None) -> Answer:
    """Run a peer's script with a specification, described in `peers/frame.py`.

    Args:
        python: Interpreter to use instead of that of `.venv-bench`.
    """
    python = python or context.peers_python
    if python is None or not python.exists():
        return Answer(name, note="not installed: run make bench, which creates the environments of the peers")
    with tempfile.TemporaryDirectory(dir=context.scratch, prefix="trinity-db-peer-") as scratch:
        complete = {**specification, "repetitions": context.repetitions, "scratch": scratch}
        command = [str(python), "-m", f"benchmarks.peers.{name}", json.dumps(complete)]
        output, error = _run(command)
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if not lines:
        return Answer(name, note=f"failed: {error}")
    answer = json.loads(lines[-1])
    return Answer(answer["who"], answer["repetitions"], answer["note"])


def compared(
    measure: str, variant: str, answer: Answer, ours: Sequence[float], bar: Bar | None = None
) -> list[Result]:
    """Return the ratio of ours to the peer's, or the reason why the peer was not measured.

    Args:
        ours: Our values: median latencies in ms if the answer has latencies, else rates.
    """
    if not answer.repetitions:
        return [absent(measure, answer.who, variant, answer.note)]
    has_latencies = "latencies" in answer.repetitions[0]
    unit = "ms p50" if has_latencies else "rows/s"
    theirs = answer.latencies(50) if has_latencies else answer.rates()
    return [ratio(measure, variant, unit, ours, theirs, answer.who, bar)]


def _run(command: list[str]) -> tuple[str, str]:
    """Run a process, kill its process group, and return its stdout and the last line of its stderr."""
    # Files, because a pipe stays open as long as any child of a crashed peer holds it.
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as complained:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=printed, stderr=complained, start_new_session=True
        )
        try:
            process.wait(LIMIT_SECONDS)
            output, complaints = _content(printed), _content(complained)
        except subprocess.TimeoutExpired:
            output, complaints = "", f"took more than {LIMIT_SECONDS:.0f} s"
        finally:
            _end(process)
    lines = [line.strip() for line in complaints.splitlines() if line.strip()] or ["no error output"]
    return output, lines[-1]


def _content(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group, including servers that the peer left running."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()
