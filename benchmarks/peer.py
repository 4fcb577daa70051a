"""Peers: each a script under `peers/`, run as a process of its own in an environment of its own.

It is given a specification and says how long each repetition took; here that becomes results. Whatever a peer
cannot do, or why it could not be run, is a result too, with the reason as its note.
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
from benchmarks.measure import Bar, Result, absent, figure, percentile, ratio

ROOT = Path(__file__).parents[1]
NAMES = ("trinity_rft", "agent_lightning", "torchrl", "reverb", "transfer_queue")
LIMIT_SECONDS = 1800.0


@dataclass(frozen=True)
class Answer:
    """The measurements of a peer, one a repetition; or the reason why there are none."""

    who: str
    repetitions: list[dict[str, Any]] = field(default_factory=list)
    """Each has `seconds`, `rows` and `bytes`, or `latencies` in seconds; claims also `duplicates`, `lost`;
    training `seconds`, `tokens`, and megabytes `loaded` and `peak`."""
    note: str = ""

    def rates(self) -> list[float]:
        """Rows per second."""
        return [repetition["rows"] / repetition["seconds"] for repetition in self.repetitions]

    def megabytes(self) -> list[float]:
        """Raw megabytes per second."""
        return [repetition["bytes"] / repetition["seconds"] / 1e6 for repetition in self.repetitions]

    def latencies(self, percent: float) -> list[float]:
        """A percentile of each repetition, in milliseconds."""
        return [1e3 * percentile(repetition["latencies"], percent) for repetition in self.repetitions]

    def total(self, name: str) -> int:
        """A count summed over the repetitions."""
        return sum(repetition[name] for repetition in self.repetitions)


def ask(context: Context, name: str, specification: Mapping[str, Any], python: Path | None = None) -> Answer:
    """Run a peer's script; `specification` as the module's docstring in `peers/frame.py` says.

    Args:
        python: the interpreter of another environment than `.venv-bench`.
    """
    python = python or context.peers_python
    if python is None or not python.exists():
        return Answer(name, note="not installed: run make bench, which makes the peers' environments")
    with tempfile.TemporaryDirectory(dir=context.scratch, prefix="trinity-db-peer-") as scratch:
        asked = {**specification, "repetitions": context.repetitions, "scratch": scratch}
        command = [str(python), "-m", f"benchmarks.peers.{name}", json.dumps(asked)]
        output, error = _run(command)
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if not lines:
        return Answer(name, note=f"failed: {error}")
    answer = json.loads(lines[-1])
    return Answer(answer["who"], answer["repetitions"], answer["note"])


def compared(
    measure: str, variant: str, answer: Answer, ours: Sequence[float], bar: Bar | None = None
) -> list[Result]:
    """`results`, and ours divided by the peer's if it could be measured.

    Args:
        ours: the unit of the answer: rates, or median latencies where it has latencies.
    """
    found = results(measure, variant, answer)
    if not answer.repetitions:
        return found
    has_latencies = "latencies" in answer.repetitions[0]
    theirs = answer.latencies(50) if has_latencies else answer.rates()
    return [*found, ratio(measure, variant, ours, theirs, answer.who, bar)]


def results(measure: str, variant: str, answer: Answer) -> list[Result]:
    """An answer as lines of a table: rates where there are rows, latencies where there are latencies."""
    if not answer.repetitions:
        return [absent(measure, answer.who, variant, answer.note)]
    if "latencies" in answer.repetitions[0]:
        return [
            figure(
                measure, answer.who, variant, f"ms p{percent}", answer.latencies(percent), note=answer.note
            )
            for percent in (50, 99)
        ]
    found = [figure(measure, answer.who, variant, "rows/s", answer.rates(), note=answer.note)]
    if "bytes" in answer.repetitions[0]:
        found.append(figure(measure, answer.who, variant, "MB/s", answer.megabytes(), note=answer.note))
    if "duplicates" in answer.repetitions[0]:
        for name in ("duplicates", "lost"):
            counts = [float(repetition[name]) for repetition in answer.repetitions]
            found.append(figure(measure, answer.who, variant, name, counts, note=answer.note))
    return found


def _run(command: list[str]) -> tuple[str, str]:
    """The output of a process, and the last line of its errors. It is ended with all processes it started."""
    # Files, since a pipe would stay open for as long as some process that a crashed peer left behind.
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as complained:
        process = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=complained, start_new_session=True)
        try:
            process.wait(LIMIT_SECONDS)
            output, complaints = _content(said), _content(complained)
        except subprocess.TimeoutExpired:
            output, complaints = "", f"took more than {LIMIT_SECONDS:.0f} s"
        finally:
            _end(process)
    lines = [line.strip() for line in complaints.splitlines() if line.strip()] or ["it says nothing"]
    return output, lines[-1]


def _content(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process's whole group; servers that a peer left running are in it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()
