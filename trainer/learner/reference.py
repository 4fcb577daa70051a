"""A reference: a second model that the policy is compared with.

It is the frozen starting model, or a model that follows the policy (`reference: synchronised`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trinity_db.arrays.codec import Payload
from trinity_db.models import load_model
from trinity_db.models.forward import Forward
from trinity_db.models.layers import Root, Sharding
from trinity_db.models.lazy_weights import UnreadModel
from trinity_db.trainer.config import SynchronisedReference, TrainerConfig


class Reference:
    """The reference's model, without gradient.

    Args:
        start: Folder of the run's starting model.
        sharding: Distribution of its weights over ranks. None: each has all.
    """

    def __init__(
        self,
        start: Path,
        config: TrainerConfig,
        *,
        temperature: float,
        device: str,
        sharding: Sharding | None = None,
    ) -> None:
        kind = config.reference
        self._synchronised = kind if isinstance(kind, SynchronisedReference) else None
        self.root: Root | None = None
        """Module with this rank's part, if the weights are sharded."""
        if sharding:
            unread = UnreadModel(start)
            self._model = unread.model.requires_grad_(False)
            self.root = sharding.of(unread)
        else:
            self._model = load_model(start, device).requires_grad_(False)
        self.forward = Forward(
            self._model,
            config,
            temperature=temperature,
            device=device,
            frozen=self._synchronised is None and sharding is None,
            with_weights=self.root,
        )

    def logprobs(self, payloads: Sequence[Payload]) -> Tensor:
        """[B, K] Log-probabilities of the trained tokens."""
        return self.forward.logprobs(payloads)

    @torch.no_grad()
    def follow(self, policy: Any, steps_done: int) -> None:
        """After every `sync_every`-th step of the run: reference ← mix · policy + (1 - mix) · reference.

        Steps count from the run's start, also after a restart. The source is TR-DPO (arXiv 2404.09656): mix <
        1 is its soft update, 1 its hard update. TRL calls it sync_ref_model.
        """
        if self._synchronised is None or steps_done % self._synchronised.sync_every:
            return
        mix = self._synchronised.mix
        for own, new in zip(self._model.parameters(), policy.parameters(), strict=True):
            own.mul_(1.0 - mix).add_(new, alpha=mix)

    def followed(self) -> dict[str, Tensor]:
        """Return the weights of a synchronised reference, by name. Empty for a frozen one, which is not
        saved."""
        return {} if self._synchronised is None else dict(self._model.named_parameters())
