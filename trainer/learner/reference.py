"""A second model that the policy is compared with: the starting model as it was, or following the policy."""

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
"""In a checkpoint: the model that has followed the policy so far."""


class Reference:
    """A model without gradient.

    Args:
        start: folder of the run's starting model.
        checkpoint: of the one to go on from; None at the run's start.
    """

    def __init__(
        self, start: Path, checkpoint: Path | None, config: TrainerConfig, *, temperature: float, device: str
    ) -> None:
        how = config.reference
        self._follows = how if isinstance(how, SynchronisedReference) else None
        folder = checkpoint / REFERENCE_FOLDER if self._follows and checkpoint else start
        self._model = load_model(folder, device).requires_grad_(False)
        self._forward = Forward(self._model, config, temperature=temperature)

    def shard(self, mesh: DeviceMesh) -> torch.nn.Module:
        """Leave each rank a part of the weights; returns the module that they are in."""
        return self._forward.shard(mesh)

    def logprobs(self, payloads: Sequence[Payload]) -> Tensor:
        """[B, K] Of the trained tokens."""
        return self._forward.logprobs(payloads)

    @torch.no_grad()
    def follow(self, policy: Any, steps_done: int) -> None:
        """After a step, where it is time: reference ← mix · policy + (1 - mix) · reference.

        As TRL's sync_ref_model, of TR-DPO (arXiv 2404.09656), whose soft update has mix < 1 and whose hard
        one has 1. It is time after every `sync_every`-th step of the run, whenever the trainer was started.
        """
        if self._follows is None or steps_done % self._follows.sync_every:
            return
        mix = self._follows.mix
        for mine, its in zip(self._model.parameters(), policy.parameters(), strict=True):
            mine.mul_(1.0 - mix).add_(its, alpha=mix)

    def save(self, folder: Path) -> None:
        """Write its weights into a checkpoint, if they are not the starting model's."""
        if self._follows is not None:
            self._model.save_pretrained(folder / REFERENCE_FOLDER)
