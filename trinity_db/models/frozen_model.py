"""A model that is only asked: its weights never change, and its answers are stored with the rows.

A processor's teacher is one, and so is the starting model where the reference is precomputed.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trinity_db.arrays import Payload
from trinity_db.config import ForwardConfig
from trinity_db.models.forward import Forward
from trinity_db.models.loading import load_model


class FrozenModel:
    """A causal language model without gradient.

    Args:
        config: how many tokens go through it together, and in which dtype.
        temperature: of the sampled tokens, so that its probabilities compare with theirs.
    """

    def __init__(
        self, folder: Path, config: ForwardConfig, *, temperature: float = 1.0, device: str | None = None
    ) -> None:
        model = load_model(folder, device).requires_grad_(False)
        self._forward = Forward(model, config, temperature=temperature)

    def scores(self, payloads: Sequence[Payload]) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield each payload's place and the log-probabilities [k] of its trained tokens, in nats.

        The first token of a sequence has none. Answers come micro-batch by micro-batch, the longest rows
        first, and the caller may stop between two of them.
        """
        asked = [place for place, payload in enumerate(payloads) if payload.num_predicted]
        yield from ((place, np.empty(0, np.float32)) for place in set(range(len(payloads))) - set(asked))
        for chosen in self._forward.micro_batches([payloads[place] for place in asked]):
            places = [asked[index] for index in chosen]
            rows = self._forward.logprobs([payloads[place] for place in places]).float().cpu().numpy()
            for place, row in zip(places, rows, strict=True):
                yield place, row[: payloads[place].num_predicted]
