"""A canary: log-probabilities of a fixed sequence under a checkpoint's weights, in a file next to them.

The trainer computes it with its weights in memory. An engine that loads the checkpoint computes it too, and
so detects weights that it ignored, or that were corrupted on the way.

Two tests find them. Corrupted weights differ from the trainer's log-probabilities by more than the rounding
of a number format. Weights that were ignored may differ by less, if a step changes little. So the engine must
also show the update from the version that it had before. `wrong` estimates the share that it shows, with the
rounding as the error of that estimate: the larger the update and the finer the format, the surer the test.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from trinity_db.arrays.codec import Payload

FILE = "canary.json"
TOKENS = 32
ORDINARY = 4096  # token ids below this: special tokens of large vocabularies mostly have higher ids

SHOWN = (
    0.5  # share of the update that an engine has to show: 1 if it has the weights, 0 if it kept the old ones
)
ERRORS = 3.0  # standard errors below SHOWN from which an engine is refused
FEWEST = 8  # tokens; fewer do not tell how large the rounding is


@dataclass(frozen=True)
class Canary:
    """A sequence and the log-probabilities of its tokens under the weights."""

    token_ids: list[int]
    logprobs: list[float]
    """Log-probability of each token but the first, in nats, at temperature 1 and in the weights' own
    dtype."""
    merged_dtype: str = "float32"
    """Number format to which weights are rounded after an adapter is merged into its base. Other versions
    record theirs in the weights file."""

    def save(self, folder: Path) -> None:
        """Write it next to the weights."""
        (folder / FILE).write_text(json.dumps(asdict(self)))


def sequence(vocabulary: int, context: int) -> Payload | None:
    """Return the sequence for a model, the same for all versions of a run; None if the model takes fewer than
    two tokens.

    Args:
        vocabulary: size of the model's vocabulary.
        context: the longest sequence in tokens. One token less is used, because an engine also samples one.
    """
    length = min(TOKENS, context - 1)
    if length < 2:
        return None
    token_ids = (np.arange(length) * 7919 + 1) % min(vocabulary, ORDINARY)
    return Payload(token_ids.astype(np.int32), np.arange(length) > 0)


def read(folder: Path) -> Canary | None:
    """Read the canary of a checkpoint; None for a starting model, which the trainer has not written."""
    try:
        return Canary(**json.loads((folder / FILE).read_bytes()))
    except FileNotFoundError:
        return None


def wrong(logprobs: Sequence[float], canary: Canary, before: Canary | None, tolerance: float) -> str | None:
    """Return why an engine with these log-probabilities does not have a canary's weights; None if it may.

    Args:
        logprobs: the engine's log-probabilities of the canary's tokens.
        before: canary of the version that the engine had before; None: unknown.
        tolerance: mean difference in nats that rounding may cause.
    """
    mean = float(np.abs(np.subtract(logprobs, canary.logprobs)).mean())
    if not mean <= tolerance:  # also true for NaN
        return (
            f"log-probabilities of the canary differ from the trainer's by {mean:.3g} nats on average, and "
            f"rounding by at most {tolerance:g}"
        )
    share, error = (1.0, 0.0) if before is None else _shown_share(logprobs, canary, before)
    if share + ERRORS * error >= SHOWN:
        return None
    return (
        f"log-probabilities of the canary show {max(share, 0):.0%} of the update since the version that it "
        "had before"
    )


def _shown_share(logprobs: Sequence[float], canary: Canary, before: Canary) -> tuple[float, float]:
    """Share of the update between two canaries that log-probabilities show, and its standard error.

    The error follows from what the update does not explain. It is infinite if the update cannot be seen.
    """
    if before.token_ids != canary.token_ids or len(logprobs) < FEWEST:
        return 1.0, math.inf
    update, shown = np.subtract(canary.logprobs, before.logprobs), np.subtract(logprobs, before.logprobs)
    square = float(update @ update)
    if square == 0:
        return 1.0, math.inf
    share = float(shown @ update) / square
    rest = shown - share * update
    return share, math.sqrt(float(rest @ rest) / (len(logprobs) - 1) / square)
