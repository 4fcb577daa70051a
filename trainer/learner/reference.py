"""A reference: a second model that the policy is compared with.

It is the frozen starting model, or a model that follows the policy (`reference: synchronised`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from trinity_db.arrays import Payload
from trinity_db.models import load_model
from trinity_db.models.forward import Forward
from trinity_db.trainer.config import SynchronisedReference, TrainerConfig

REFERENCE_FOLDER = "reference"
"""The folder in a checkpoint that holds a synchronised reference."""


class Reference:
    """The reference's model, without gradient.

    Args:
        start: the folder of the run's starting model.
        checkpoint: the folder of the checkpoint that training continues from; None at the run's start.
    """

    def __init__(
        self, start: Path, checkpoint: Path | None, config: TrainerConfig, *, temperature: float, device: str
    ) -> None:
        kind = config.reference
        self._synchronised = kind if isinstance(kind, SynchronisedReference) else None
        folder = checkpoint / REFERENCE_FOLDER if self._synchronised and checkpoint else start
        self._model = load_model(folder, device).requires_grad_(False)
        self._forward = Forward(self._model, config, temperature=temperature)

    def shard(self, mesh: DeviceMesh) -> torch.nn.Module:
        """Shard the weights over the ranks. Returns the module that holds this rank's part."""
        return self._forward.shard(mesh)

    def logprobs(self, payloads: Sequence[Payload]) -> Tensor:
        """[B, K] Log-probabilities of the trained tokens."""
        return self._forward.logprobs(payloads)

    @torch.no_grad()
    def follow(self, policy: Any, steps_done: int) -> None:
        """After every `sync_every`-th step of the run: reference ← mix · policy + (1 - mix) · reference.

        Steps count from the run's start, also after a restart. The source is TR-DPO (arXiv 2404.09656): mix
        < 1 is its soft update, 1 its hard update. TRL calls it sync_ref_model.
        """
        if self._synchronised is None or steps_done % self._synchronised.sync_every:
            return
        mix = self._synchronised.mix
        for own, new in zip(self._model.parameters(), policy.parameters(), strict=True):
            own.mul_(1.0 - mix).add_(new, alpha=mix)

    def save(self, folder: Path) -> None:
        """Write a synchronised reference into a checkpoint. A frozen one is the starting model, on disk."""
        if self._synchronised is not None:
            self._model.save_pretrained(folder / REFERENCE_FOLDER)
