"""The policy: the model that is trained, and the reference that it is compared with.

The policy knows which weights are trained. It loads them from a checkpoint, saves them into one, and
computes log-probabilities and values. `learner.py` uses these in a step. A checkpoint always holds the whole
model, even if only an adapter is trained. So `transformers` and explorers load every checkpoint alike.
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
from trinity_db.models.canary import Canary, sequence
from trinity_db.models.forward import Forward
from trinity_db.models.layers import recompute
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.distribution.ranks import ALONE, Ranks
from trinity_db.trainer.distribution.sharding import whole_weights
from trinity_db.trainer.learner.adapter import ADAPTER_FOLDER, Adapter
from trinity_db.trainer.learner.reference import Reference
from trinity_db.trainer.learner.value_head import load_value_head


class Policy:
    """A model with gradient, and if needed a value head and a frozen reference.

    Args:
        folder: the folder of the starting model, or of the checkpoint that training continues from.
        start: the folder of the run's starting model. Adapters are added to it, and references begin as it.
            None: the same as `folder`.
        has_reference: whether the algorithm compares the policy with a reference.
        has_values: whether the algorithm reads the values of a value head.
        temperature: of the run that sampled the tokens; payloads may have others.
        ranks: the processes that hold the same weights. Each has a copy, or a part (`trainer.sharding`).
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
        # The model stays in evaluation mode. Dropout would move the ratio of unchanged weights away from 1.
        self.model: Any = load_model(start if config.lora else folder, self.device)
        self._adapter = Adapter(self.model, config.lora) if config.lora else None
        if self._adapter and checkpoint:
            self._adapter.load(checkpoint / ADAPTER_FOLDER)
        self.value_head = load_value_head(folder, self.model) if has_values else None
        self.forward = Forward(self.model, config, temperature=temperature, value_head=self.value_head)
        if config.gradient_checkpointing:
            recompute(self.model)
        self.max_length = min(config.max_length or sys.maxsize, context_of(self.model.config))
        """Longest sequence that the policy takes, in tokens."""
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
        """The parameters that are trained, those of the value head last."""
        of_head = self.value_head.parameters() if self.value_head else ()
        return [one for one in (*self.model.parameters(), *of_head) if one.requires_grad]

    def logprobs(self, payloads: Sequence[Payload]) -> Tensor:
        """[B, K] Log-probabilities of the trained tokens under the policy as it is now, without gradient."""
        return self.forward.logprobs(payloads)

    def values(self, payloads: Sequence[Payload]) -> Tensor:
        """[B, K] The value head's expectation before each trained token, without gradient."""
        return self.forward.values(payloads)

    def reference_logprobs(self, payloads: Sequence[Payload]) -> Tensor:
        """[B, K] Log-probabilities of the trained tokens under the reference, without gradient.

        With an adapter, the reference is the model with its adapter switched off.
        """
        if self._adapter:
            with self._adapter.disabled():
                return self.forward.logprobs(payloads)
        assert self._reference is not None, "the algorithm asks for a reference"
        return self._reference.logprobs(payloads)

    def canary(self) -> Canary | None:
        """What the weights say of a fixed sequence now. All ranks call it together.

        None if the model takes too short sequences.
        """
        context = context_of(self.model.config)
        payload = sequence(self.model.get_input_embeddings().num_embeddings, context)
        if payload is None:
            return None
        logprobs = self.forward.canary_logprobs([payload])[0]
        return Canary(payload.token_ids.tolist(), logprobs.tolist())

    def after_step(self, steps_done: int) -> None:
        """Update a synchronised reference when its interval ends."""
        if self._reference:
            self._reference.follow(self.model, steps_done)

    def whole_weights(self) -> AbstractContextManager[None]:
        """Within this `with`, the first rank has all weights and can save them. All ranks enter together."""
        return whole_weights(self._sharded, self.ranks)

    def save(self, folder: Path) -> None:
        """Write the model that `transformers` loads, and adapter, reference and value head beside it."""
        self.model.save_pretrained(folder, state_dict=self._adapter.merged() if self._adapter else None)
        if self._adapter:
            self._adapter.save(folder / ADAPTER_FOLDER)
        if self._reference:
            self._reference.save(folder)
        if self.value_head:
            self.value_head.save(folder)
