"""The policy: the model that is being trained, and what it is compared with.

It knows which weights are trained, how they come from a checkpoint and go back into one, and how
models are asked. What a step does with the answers is `learner.py`'s. A checkpoint holds the whole model,
whatever of it is trained: `transformers` loads it, and explorers know no difference.
"""

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trinity_db.arrays import Payload
from trinity_db.models import context_of, default_device, load_model
from trinity_db.models.forward import Forward
from trinity_db.models.layers import recompute
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.distribution.ranks import ALONE, Ranks
from trinity_db.trainer.distribution.sharding import whole
from trinity_db.trainer.learner.adapter import ADAPTER_FOLDER, Adapter
from trinity_db.trainer.learner.reference import Reference
from trinity_db.trainer.learner.value_head import load_value_head


class Policy:
    """A model with gradient, whole or of an adapter, and perhaps a second model without one.

    Args:
        folder: of the model to start from, or of the checkpoint to go on from.
        start: folder of the run's starting model, which adapters are laid on and references begin as;
            None: `folder` is it.
        has_reference: whether the policy is compared with a reference.
        has_values: whether it is asked what responses are expected to earn.
        temperature: of the sampled tokens, so that ratios compare like with like.
        ranks: who has copies or, where the configuration says so, parts of the same weights.
    """

    def __init__(
        self,
        folder: Path,
        config: TrainerConfig,
        *,
        start: Path | None = None,
        has_reference: bool = False,
        has_values: bool = False,
        temperature: float = 1.0,
        device: str | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.ranks = ranks
        self.device = device or default_device()
        start = start or folder
        checkpoint = None if folder == start else folder
        # Evaluation mode throughout: dropout would make the ratio of unchanged weights differ from 1.
        self.model: Any = load_model(start if config.lora else folder, self.device)
        self._adapter = Adapter(self.model, config.lora) if config.lora else None
        if self._adapter and checkpoint:
            self._adapter.load(checkpoint / ADAPTER_FOLDER)
        self.value_head = load_value_head(folder, self.model) if has_values else None
        self.forward = Forward(self.model, config, temperature=temperature, value_head=self.value_head)
        if config.gradient_checkpointing:
            recompute(self.model)
        self.max_length = min(config.max_length or sys.maxsize, context_of(self.model.config))
        """Of a sequence, in tokens."""
        self._reference: Reference | None = None
        if has_reference and not self._adapter:
            self._reference = Reference(
                start, checkpoint, config, temperature=temperature, device=self.device
            )

        self._sharded: list[torch.nn.Module] = []
        if config.sharding == "full" and ranks.size > 1:
            self._sharded.append(self.forward.shard(ranks.mesh))
            if self._reference:
                self._sharded.append(self._reference.shard(ranks.mesh))

    def parameters(self) -> list[torch.nn.Parameter]:
        """What is trained."""
        of_head = self.value_head.parameters() if self.value_head else ()
        return [one for one in (*self.model.parameters(), *of_head) if one.requires_grad]

    def logprobs(self, payloads: Sequence[Payload]) -> Tensor:
        """[B, K] Of the trained tokens as the policy is now, without gradient."""
        return self.forward.logprobs(payloads)

    def values(self, payloads: Sequence[Payload]) -> Tensor:
        """[B, K] What is expected to be earned from each trained token on, without gradient."""
        return self.forward.values(payloads)

    def reference_logprobs(self, payloads: Sequence[Payload]) -> Tensor:
        """[B, K] Of the trained tokens under the reference: of an adapter the model without it."""
        if self._adapter:
            with self._adapter.off():
                return self.forward.logprobs(payloads)
        assert self._reference is not None, "the algorithm asks for a reference"
        return self._reference.logprobs(payloads)

    def stepped(self, steps_done: int) -> None:
        """The weights have taken so many steps: the reference follows, if it is one that does."""
        if self._reference:
            self._reference.follow(self.model, steps_done)

    def whole(self) -> AbstractContextManager[None]:
        """Within a `with`, the first rank has all weights, to be saved; all ranks enter it together."""
        return whole(self._sharded, self.ranks)

    def save(self, folder: Path) -> None:
        """Write what `transformers` loads, and what else the policy consists of."""
        self.model.save_pretrained(folder, state_dict=self._adapter.merged() if self._adapter else None)
        if self._adapter:
            self._adapter.save(folder / ADAPTER_FOLDER)
        if self._reference:
            self._reference.save(folder)
        if self.value_head:
            self.value_head.save(folder)
