"""A model that is only asked: what it says of rows is stored with them, and nothing in it ever changes.

The teacher of a processor, and the starting model where the reference is precomputed.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trinity_db.arrays import Payload
from trinity_db.models import load_model
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.forward import Forward


class FrozenModel:
    """A causal language model without gradient.

    Args:
        config: how many tokens go through it together, and in which dtype.
        temperature: of the sampled tokens, so that its probabilities compare with theirs.
    """

    def __init__(
        self, folder: Path, config: TrainerConfig, *, temperature: float = 1.0, device: str | None = None
    ) -> None:
        model = load_model(folder, device).requires_grad_(False)
        without = config.model_copy(update={"gradient_checkpointing": False})
        self._forward = Forward(model, without, temperature=temperature)

    def scores(self, payloads: Sequence[Payload]) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Of each payload, by its place, the log-probabilities [k] of its trained tokens but a first one.

        They come micro-batch by micro-batch, the longest first: whoever asks may stop in between.
        """
        asked = [place for place, payload in enumerate(payloads) if payload.num_predicted]
        yield from ((place, np.empty(0, np.float32)) for place in set(range(len(payloads))) - set(asked))
        for chosen in self._forward.micro_batches([payloads[place] for place in asked]):
            places = [asked[index] for index in chosen]
            rows = self._forward.logprobs([payloads[place] for place in places]).float().cpu().numpy()
            for place, row in zip(places, rows, strict=True):
                yield place, row[: payloads[place].num_predicted]
