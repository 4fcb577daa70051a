"""A model with fixed weights, whose log-probabilities are stored with the rows.

Processors use it for a teacher.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trinity_db.arrays.codec import Payload
from trinity_db.config.shared import ForwardConfig
from trinity_db.models.forward import Forward
from trinity_db.models.libraries import default_device
from trinity_db.models.loading import load_model


class FrozenModel:
    """A causal language model without gradient.

    Args:
        config: micro-batch size and dtype.
        temperature: temperature of the run that sampled the tokens; payloads may have others.
    """

    def __init__(
        self, folder: Path, config: ForwardConfig, *, temperature: float = 1.0, device: str | None = None
    ) -> None:
        device = device or default_device()
        model = load_model(folder, device).requires_grad_(False)
        self._forward = Forward(model, config, temperature=temperature, frozen=True)

    def scores(self, payloads: Sequence[Payload]) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield each payload's index and the log-probabilities [k] of its trained tokens, in nats.

        The first token of a sequence has none. Results come micro-batch by micro-batch, the longest rows
        first, and the caller may stop between two of them.
        """
        scorable = [index for index, payload in enumerate(payloads) if payload.num_predicted]
        yield from ((index, np.empty(0, np.float32)) for index in set(range(len(payloads))) - set(scorable))
        for chosen in self._forward.micro_batches([payloads[index] for index in scorable]):
            indices = [scorable[position] for position in chosen]
            rows = self._forward.logprobs([payloads[index] for index in indices]).float().cpu().numpy()
            for index, row in zip(indices, rows, strict=True):
                yield index, row[: payloads[index].num_predicted]
