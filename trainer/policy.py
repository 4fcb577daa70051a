"""The policy: the model that is being trained, and the one that it is compared with.

It knows which weights are trained, how they come from a checkpoint and go back into one, and how
both models are asked. What a step does with the answers is `step.py`'s.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trinity_db.arrays import Payload
from trinity_db.models import default_device, load_model
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.forward import Forward


class Policy:
    """A model with gradient, and perhaps a frozen one beside it.

    Args:
        folder: of the model to start or to go on from.
        reference: folder of the frozen starting model; None: there is nothing to compare with.
        temperature: of the sampled tokens, so that ratios compare like with like.
    """

    def __init__(
        self,
        folder: Path,
        config: TrainerConfig,
        *,
        reference: Path | None = None,
        temperature: float = 1.0,
        device: str | None = None,
    ) -> None:
        self.device = device or default_device()
        # Evaluation mode throughout: dropout would make the ratio of unchanged weights differ from 1.
        self.model: Any = load_model(folder, self.device)
        self.forward = Forward(self.model, config, temperature=temperature)
        self._reference: Forward | None = None
        if reference is not None:
            frozen = load_model(reference, self.device).requires_grad_(False)
            self._reference = Forward(frozen, config, temperature=temperature)

    def parameters(self) -> list[torch.nn.Parameter]:
        """What is trained."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def logprobs(self, payloads: Sequence[Payload]) -> Tensor:
        """[B, K] Of the trained tokens as the policy is now, without gradient."""
        return self.forward.logprobs(payloads)

    def reference_logprobs(self, payloads: Sequence[Payload]) -> Tensor:
        """[B, K] Of the trained tokens under the frozen model."""
        assert self._reference is not None, "the algorithm asks for a reference"
        return self._reference.logprobs(payloads)

    def save(self, folder: Path) -> None:
        """Write what `transformers` loads, and what else the policy consists of."""
        self.model.save_pretrained(folder)
