"""The model and rows that `benchmarks.trainer` and its peer both train on, and how both measure their memory.

Needs only numpy beside the standard library: the peers' environment imports this very file.
"""

import resource
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import data

LEARNING_RATE = 1e-5
LOOK_SECONDS = 0.005


@dataclass(frozen=True)
class Batch:
    """The rows of each step of a measurement. For DPO they are chosen, rejected, chosen, rejected, ..., and
    both of a pair have the same prompt."""

    rows: list[data.Experience]
    advantages: NDArray[np.float64]

    @property
    def tokens(self) -> int:
        """Prompts and responses, without padding."""
        return sum(len(row.token_ids) for row in self.rows)


def batch(rows: int, vocabulary: int) -> Batch:
    """The same batch at each call, with log-probabilities around those of an untrained model."""
    rng = np.random.default_rng(0)
    made = []
    for row in data.rows(rows):
        logprobs = rng.normal(-np.log(vocabulary), 0.3, len(row.logprobs)).astype(np.float32)
        made.append(replace(row, token_ids=row.token_ids % vocabulary, logprobs=logprobs))
    for chosen, rejected in zip(made[0::2], made[1::2], strict=True):
        rejected.token_ids[: rejected.prompt_tokens] = chosen.token_ids[: chosen.prompt_tokens]
    return Batch(made, rng.normal(size=rows))


def resident_megabytes(device: str = "cpu") -> float:
    """Megabytes that the process holds in memory now, or in that of the GPU."""
    if device == "cuda":
        import torch

        return float(torch.cuda.memory_allocated() / 1e6)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def peak_megabytes(device: str = "cpu") -> float:
    """The most megabytes that it ever held."""
    if device == "cuda":
        import torch

        return float(torch.cuda.max_memory_allocated() / 1e6)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


class Watch:
    """The most memory that this process holds within a `with`. `peak_megabytes` may be of a time before.

    A thread looks every few milliseconds.

        with Watch() as watch: ...
        watch.peak  # megabytes
    """

    def __init__(self) -> None:
        self.peak = resident_megabytes()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            self.peak = max(self.peak, resident_megabytes())
