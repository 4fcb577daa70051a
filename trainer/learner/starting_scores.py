"""Log-probabilities of rows under the starting model, computed by all ranks (`reference: precomputed`)."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trinity_db.arrays.codec import Payload
from trinity_db.models import default_device
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.distribution.ranks import Ranks
from trinity_db.trainer.learner.micro_batches import micro_batches
from trinity_db.trainer.learner.policy import sharding_of
from trinity_db.trainer.learner.reference import Reference


class StartingScores:
    """The starting model on this rank: all of it, or a part of it (`trainer.sharding`).

    Args:
        folder: Folder of the starting model.
        should_stop: Called between two micro-batches. Only the first rank's result matters.
    """

    def __init__(
        self, folder: Path, config: TrainerConfig, ranks: Ranks, should_stop: Callable[[], bool]
    ) -> None:
        device = ranks.device or default_device()
        sharding = sharding_of(config, ranks, device)
        # Payloads have their sampling temperatures.
        self._reference = Reference(folder, config, temperature=1.0, device=device, sharding=sharding)
        self.ranks = ranks
        self._should_stop = should_stop

    def of(self, payloads: Sequence[Payload]) -> list[tuple[int, NDArray[np.float32]]]:
        """Return each payload's index, and the log-probabilities [k] of its trained tokens, in nats.

        The ranks share the rows, and call this together. The first token of a sequence has none.

        Raises:
            Abandoned: if the first rank should stop.
        """
        scorable = [index for index, payload in enumerate(payloads) if payload.num_predicted]
        rows = [payloads[index] for index in scorable]
        empty = set(range(len(payloads))) - set(scorable)
        own: list[tuple[int, NDArray[np.float32]]] = []
        if rows:
            for micro in micro_batches(rows, 1, self._reference.forward, self.ranks, self._should_stop):
                logprobs = (
                    self._reference.logprobs([rows[index] for index in micro.rows]).float().cpu().numpy()
                )
                if micro.counts:
                    scored = zip(micro.rows, logprobs, strict=True)
                    own += [
                        (scorable[index], values[: rows[index].num_predicted]) for index, values in scored
                    ]
        return [
            *((index, np.empty(0, np.float32)) for index in empty),
            *(score for rank in self.ranks.gather(own) for score in rank),
        ]
