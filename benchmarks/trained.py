"""The model and rows that `benchmarks.trainer` and its peer both train on, and how both measure their memory.

Needs only numpy beside the standard library: the peers' environment imports this very file.
"""

import resource
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import data

LEARNING_RATE = 1e-5


@dataclass(frozen=True)
class Batch:
    """What each step of a measurement learns from; of DPO chosen, rejected, chosen, rejected, ...,
    the two of a pair after the same prompt."""

    rows: list[data.Experience]
    advantages: NDArray[np.float64]

    @property
    def tokens(self) -> int:
        """Prompts and responses, without padding."""
        return sum(len(row.token_ids) for row in self.rows)


def batch(rows: int, vocabulary: int) -> Batch:
    """The same for all who ask, with log-probabilities around those of an untrained model."""
    rng = np.random.default_rng(0)
    made = []
    for row in data.rows(rows):
        logprobs = rng.normal(-np.log(vocabulary), 0.3, len(row.logprobs)).astype(np.float32)
        made.append(replace(row, token_ids=row.token_ids % vocabulary, logprobs=logprobs))
    for chosen, rejected in zip(made[0::2], made[1::2], strict=True):
        rejected.token_ids[: rejected.prompt_tokens] = chosen.token_ids[: chosen.prompt_tokens]
    return Batch(made, rng.normal(size=rows))


def resident_megabytes() -> float:
    """Bytes that the process holds in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def peak_megabytes() -> float:
    """The most it ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
