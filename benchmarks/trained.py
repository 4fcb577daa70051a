"""Model settings and rows that `benchmarks.trainer` and its peers train on; memory of a process.

Imports only numpy and the standard library, because peers' environments use this module.
"""

import resource
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import data

LEARNING_RATE = 1e-5


@dataclass(frozen=True)
class Batch:
    """Rows of each step. For DPO chosen and rejected rows alternate; those of a pair share the prompt."""

    rows: list[data.Experience]
    advantages: NDArray[np.float64]

    @property
    def tokens(self) -> int:
        """Number of tokens of prompts and responses, without padding."""
        return sum(len(row.token_ids) for row in self.rows)


def batch(rows: int, vocabulary: int) -> Batch:
    """Return the same batch at each call, with log-probabilities like those of an untrained model."""
    rng = np.random.default_rng(0)
    made = []
    for row in data.rows(rows):
        logprobs = rng.normal(-np.log(vocabulary), 0.3, len(row.logprobs)).astype(np.float32)
        made.append(replace(row, token_ids=row.token_ids % vocabulary, logprobs=logprobs))
    for chosen, rejected in zip(made[0::2], made[1::2], strict=True):
        rejected.token_ids[: rejected.prompt_tokens] = chosen.token_ids[: chosen.prompt_tokens]
    return Batch(made, rng.normal(size=rows))


def run(ends: Sequence[float], rewards: Sequence[float], start: float, goal: float) -> dict[str, Any]:
    """Return the median seconds of a step and the seconds to the goal from ends and rewards of the steps."""
    reached = next((end for end, reward in zip(ends, rewards, strict=False) if reward >= goal), None)
    between = [later - earlier for earlier, later in pairwise(ends)]
    return {"step": median(between), "goal": None if reached is None else reached - start}


def padded(rows: list[NDArray[Any]], left: bool) -> tuple[Any, Any]:
    """Return the rows in one tensor, padded with zeros on one side, and their mask."""
    import torch

    width = max(map(len, rows))
    values = np.zeros((len(rows), width), rows[0].dtype)
    mask = np.zeros((len(rows), width), np.int64)
    for number, row in enumerate(rows):
        places = slice(width - len(row), width) if left else slice(0, len(row))
        values[number, places], mask[number, places] = row, 1
    return torch.from_numpy(values), torch.from_numpy(mask)


def synchronize(device: str) -> None:
    """Wait for a GPU's kernels."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def resident_megabytes(device: str = "cpu") -> float:
    """Return the megabytes of memory that the process uses now, on a GPU those allocated."""
    if device == "cuda":
        import torch

        return float(torch.cuda.memory_allocated() / 1e6)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def peak_megabytes(device: str = "cpu") -> float:
    """Return the maximum of these megabytes since the start."""
    if device == "cuda":
        import torch

        return float(torch.cuda.max_memory_allocated() / 1e6)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
