"""A canary: what a checkpoint's own weights say of a fixed sequence, in a file beside them.

The trainer computes it with the weights that it has in memory. An engine that loads the checkpoint computes
the same, and so notices weights that it has not taken, or that arrived garbled.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from trinity_db.arrays import Payload

FILE = "canary.json"
TOKENS = 32
ORDINARY = 4096  # token ids: special tokens of large vocabularies mostly stand behind


@dataclass(frozen=True)
class Canary:
    """A sequence, and how likely the weights find each of its tokens."""

    token_ids: list[int]
    logprobs: list[float]
    """Of each token but the first, in nats, at temperature 1 and in the weights' own dtype."""
    merged_dtype: str = "float32"
    """Number format that the weights of an adapter are rounded to after it is merged into its base. Other
    versions have their number format in the file of their weights."""

    def save(self, folder: Path) -> None:
        """Write it beside the weights."""
        (folder / FILE).write_text(json.dumps(asdict(self)))


def sequence(vocabulary: int, context: int) -> Payload | None:
    """The sequence for a model: the same for all versions of a run. None if the model takes no two tokens.

    Args:
        vocabulary: tokens that the model knows.
        context: the longest sequence in tokens. One token less is used, as an engine also samples one.
    """
    length = min(TOKENS, context - 1)
    if length < 2:
        return None
    token_ids = (np.arange(length) * 7919 + 1) % min(vocabulary, ORDINARY)
    return Payload(token_ids.astype(np.int32), np.arange(length) > 0)


def read(folder: Path) -> Canary | None:
    """The canary of a checkpoint. None for a starting model, which the trainer has not written."""
    try:
        return Canary(**json.loads((folder / FILE).read_bytes()))
    except FileNotFoundError:
        return None
