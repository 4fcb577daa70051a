"""The policy: the model being trained, and the reference that it is compared with.

The policy loads trained weights from a checkpoint, saves them into one, and computes log-probabilities and
values, which `learner.py` uses in a step. A version contains the whole model, or, if an adapter is trained
and `trainer.publish` is adapter, only the adapter and the name of its base.
"""

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trinity_db.arrays.codec import Payload
from trinity_db.models import (
    context_of,
    default_device,
    folder_digest,
    inner_values,
    load_model,
    model_folder,
    rounding,
)
from trinity_db.models.adapter_folder import BASE_FILE, Base
from trinity_db.models.canary import Canary, sequence
from trinity_db.models.forward import Forward
from trinity_db.models.layers import Sharding, compile_layers, layers_of, recompute
from trinity_db.models.lazy_weights import UnreadModel
from trinity_db.models.weights_file import WeightsFile
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.distribution.ranks import ALONE, Ranks
from trinity_db.trainer.distribution.sharding import whole_weights
from trinity_db.trainer.learner import published_weights
from trinity_db.trainer.learner.adapter import ADAPTER_FOLDER, Adapter
from trinity_db.trainer.learner.recorded_routing import RecordedRouting, without
from trinity_db.trainer.learner.reference import Reference
from trinity_db.trainer.learner.reward_head import RewardHead, classifier_of, ended
from trinity_db.trainer.learner.router_loss import router_loss_of
from trinity_db.trainer.learner.value_head import ValueHead, load_head
from trinity_db.trainer.learner.visible_updates import EXACT, VisibleUpdates

logger = logging.getLogger(__name__)

TRAINED_BYTES = 12
"""Memory needed for training per trained parameter: the gradient and the state of AdamW, in float32."""


class Policy:
    """A model with gradient, optionally a value head or a reward head, and a frozen reference.

    Args:
        folder: Folder of the starting model, or of the version that training continues from.
        start: Folder of the run's starting model, to which adapters are added and from which references
            start. None: `folder`.
        start_digest: Digest of its files, which published adapters refer to. None: computed.
        has_reference: Whether the algorithm compares the policy with a reference.
        has_values: Whether the algorithm reads the values of a value head.
        says_rewards: Whether the algorithm learns a reward head, which replaces the value head.
        temperature: Sampling temperature of the run; payloads may have others.
        ranks: Processes with the same weights. Each has a copy, or a part (`trainer.sharding`).
    """

    def __init__(
        self,
        folder: Path,
        config: TrainerConfig,
        *,
        start: Path | None = None,
        start_digest: str | None = None,
        has_reference: bool = False,
        has_values: bool = False,
        says_rewards: bool = False,
        temperature: float = 1.0,
        device: str | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.ranks = ranks
        self.device = device or default_device()
        start = start or folder
        sharding = sharding_of(config, ranks, self.device)
        # The model stays in evaluation mode. Dropout would move the ratio of unchanged weights away from 1.
        source = start if config.lora else folder
        unread = UnreadModel(source) if sharding else None
        self.model: Any = unread.model if unread else load_model(source, self.device)
        self._classifier = classifier_of(self.model) if says_rewards else None
        self.adapter = Adapter(self.model, config.lora) if config.lora else None
        self._base = _base(config, start, start_digest)
        self._start = start
        head: type[ValueHead] = RewardHead if says_rewards else ValueHead
        self.value_head = load_head(head, folder, self.model) if has_values or says_rewards else None
        heads = [self.value_head] if self.value_head else []
        self._root = sharding.of(unread, *heads) if sharding and unread else None
        self.forward = Forward(
            self.model,
            config,
            temperature=temperature,
            value_head=self.value_head,
            device=self.device,
            with_weights=self._root,
        )
        self.router_loss = router_loss_of(self.model, config, self._root)
        self.routing = RecordedRouting(self.model, self.forward, config, self._root)
        token_bytes = self._token_bytes()
        if config.compile:
            compile_layers(self.model)
        self.max_length = _max_length(config, self.model, says_rewards)
        """Maximum length of a sequence, in tokens."""
        self._reference = (
            Reference(start, config, temperature=temperature, device=self.device, sharding=sharding)
            if has_reference and not self.adapter
            else None
        )
        self._limit_memory(config, token_bytes)
        self.publish_dtype = torch.float32
        """Number format of the next version. `publish_in` changes it."""
        if config.publish_dtype != "auto":
            self.publish_in(getattr(torch, config.publish_dtype))
        self.visible = self._visible_updates(config)
        """None if no version of this rank has rounded weights."""
        self.measured: dict[str, float] = {}
        """Metrics of the version saved last. Empty for an adapter in its own matrices."""
        self._sums_at_the_end = config.sum_gradients == "step"

    def _visible_updates(self, config: TrainerConfig) -> VisibleUpdates | None:
        """Create the comparison of versions with the trainer's weights, on the rank that writes versions."""
        if self.ranks.rank > 0 or self.publishes_adapter or config.publish_dtype == "float32":
            return None
        weights = self.adapter.adapted_weights() if self.adapter else self.weights
        rounded = {
            name: weight for name, weight in weights.items() if not model_folder.stays_exact(self.model, name)
        }
        return VisibleUpdates(rounded, rounding.seed_names(self.model), are_frozen=self.adapter is not None)

    @property
    def is_sharded(self) -> bool:
        """Whether each rank has a part of the weights."""
        return self._root is not None

    def _token_bytes(self) -> float | None:
        """Measure the bytes that the backward pass needs per token of a micro-batch.

        None: unknown, because ranks share the weights, or the model's context is too short.
        """
        payload = sequence(self.model.get_input_embeddings().num_embeddings, context_of(self.model.config))
        if payload is None or self._root:
            return None
        own = [*self.model.parameters(), *self.model.buffers(), *self.head_weights.values()]
        kept = inner_values.kept_bytes(lambda: self.forward([payload]).logprobs, own)
        return kept / payload.num_tokens

    def _limit_memory(self, config: TrainerConfig, token_bytes: float | None) -> None:
        """Fit micro-batches, and the activations of a long row, into the memory that is free now.

        Raises:
            ConfigError: if activations must be recomputed, but the model cannot do it.
        """
        if config.gradient_checkpointing is True:
            recompute(self.model)
            return
        if not token_bytes:
            return
        device = torch.device(self.device)
        free = inner_values.free_bytes(device)
        sharing = 1 if device.type == "cuda" else self.ranks.size
        reserved = TRAINED_BYTES * sum(parameter.numel() for parameter in self.parameters())
        limits = inner_values.limits(
            self.forward.max_tokens, None if free is None else free // sharing, reserved, token_bytes
        )
        tokens, above = min(self.ranks.gather(limits))
        if config.micro_batch_tokens == "auto":
            self.forward.max_tokens = tokens
        longest = 2 * self.max_length  # a pair goes through the model together
        recomputes = config.gradient_checkpointing == "auto" and above < longest and layers_of(self.model)
        if recomputes:
            recompute(self.model, above)
        if self.ranks.rank == 0:
            logger.info(
                "micro-batches of at most %d tokens, of %.2f MB each for the backward pass; %s",
                self.forward.max_tokens,
                token_bytes / 1e6,
                f"layers recompute activations of rows longer than {above} tokens, to save memory"
                if recomputes
                else "no row needs gradient checkpointing"
                if free
                else "free memory is unknown",
            )

    def trained(self) -> dict[str, Tensor]:
        """Return the tensors that training changes: weights, value head, and reference, each under its own
        prefix.

        Frozen weights are included if a version rounds them.
        """
        weights = self.weights if self.adapter else dict(self.model.named_parameters())
        reference = self._reference.followed() if self._reference else {}
        parts = {"model": weights, "value_head": self.head_weights, "reference": reference}
        return {f"{part}.{name}": tensor for part, named in parts.items() for name, tensor in named.items()}

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return the trained parameters, those of the value head last."""
        return [*self.weights.values(), *self.head_weights.values()]

    @property
    def weights(self) -> dict[str, torch.nn.Parameter]:
        """The trained parameters of the model, by name."""
        return {
            name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad
        }

    @property
    def head_weights(self) -> dict[str, torch.nn.Parameter]:
        """Parameters of the value head, by name. Empty without one."""
        return dict(self.value_head.named_parameters()) if self.value_head else {}

    @property
    def embeddings(self) -> list[Tensor]:
        """Embedding matrices of the model's tokens, at its input and at its output."""
        ends = (self.model.get_input_embeddings(), self.model.get_output_embeddings())
        return [end.weight for end in ends if end is not None]

    def logprobs(self, payloads: Sequence[Payload]) -> Tensor:
        """[B, K] Log-probabilities of the trained tokens under the current policy, without gradient."""
        return self.forward.logprobs(payloads)

    def values(self, payloads: Sequence[Payload]) -> Tensor:
        """[B, K] The value head's expectation before each trained token, without gradient."""
        return self.forward.values(payloads)

    def logprobs_and_values(self, payloads: Sequence[Payload]) -> tuple[Tensor, Tensor]:
        """Return the results of `logprobs` and `values`, from one pass."""
        return self.forward.logprobs_and_values(payloads)

    def ends(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Return the rows prepared for a reward head; see `reward_head.ended`."""
        pad = self.model.config.get_text_config().pad_token_id
        return [ended(payload, pad) for payload in payloads]

    def reference_logprobs(self, payloads: Sequence[Payload]) -> Tensor:
        """[B, K] Log-probabilities of the trained tokens under the reference, without gradient.

        With an adapter, the reference is the model with its adapter switched off. A reference chooses its
        experts itself.
        """
        if self.adapter:
            with self.adapter.disabled():
                return self.forward.logprobs(without(payloads))
        assert self._reference is not None, "the algorithm asks for a reference"
        return self._reference.logprobs(payloads)

    def sum_gradients_after(self, is_last: bool) -> None:
        """Announce, before each backward pass of a step, whether it is the step's last one.

        With sharded weights, ranks exchange gradients in the backward pass.
        """
        if self._root:
            self._root.sum_gradients_after(is_last or not self._sums_at_the_end)

    def forget_gradients(self, payload: Payload) -> None:
        """Drop the gradients of a step that ends before its last backward pass. All ranks call it together.

        Args:
            payload: Any payload. One more pass with it drops gradients that the ranks have not summed yet.
        """
        if self._root:
            self._root.sum_gradients_after(True)
            torch.autograd.backward(0.0 * self.forward([payload]).logprobs.sum())
        for parameter in self.parameters():
            parameter.grad = None

    def canary(self) -> Canary | None:
        """Return the log-probabilities of a fixed sequence under the published weights. All ranks call it
        together.

        None if the model's context is too short.
        """
        context = context_of(self.model.config)
        payload = sequence(self.model.get_input_embeddings().num_embeddings, context)
        if payload is None:
            return None
        with self._as_published():
            logprobs = self.forward.canary_logprobs([payload])[0]
        merged_dtype = self.publish_dtype if self.publishes_adapter else torch.float32
        return Canary(payload.token_ids.tolist(), logprobs.tolist(), str(merged_dtype).removeprefix("torch."))

    def after_step(self, steps_done: int) -> None:
        """Update a synchronised reference when its interval ends."""
        if self._reference:
            self._reference.follow(self.model, steps_done)

    def publish_in(self, dtype: torch.dtype) -> None:
        """Round further versions to a number format. All ranks call it together.

        Small weights of a model in bfloat16 have no float16 value. The log shows how many are rounded.
        """
        self.publish_dtype = dtype
        if dtype == torch.float16 and self.ranks.rank == 0 and not self.publishes_adapter:
            share, largest = rounding.inexact(self.parameters(), dtype)
            logger.info(
                "float16: %.2f %% of the weights have no value in it and are rounded, by at most %.2g",
                *(100 * share, largest),
            )

    def whole_weights(self) -> AbstractContextManager[None]:
        """Within this `with`, the first rank has all weights and can save them. All ranks enter together."""
        return whole_weights([self._root] if self._root else [], self.ranks)

    @property
    def publishes_adapter(self) -> bool:
        """Whether a version is an adapter, whose tokenizer is with its base."""
        return self._base is not None

    @property
    def version_bytes(self) -> int:
        """The size of a version's weights."""
        if self.publishes_adapter:
            return sum(4 * weight.numel() for weight in self.weights.values())
        return sum(self.publish_dtype.itemsize * weight.numel() for weight in self.model.parameters())

    def save(self, folder: Path) -> dict[Path, WeightsFile]:
        """Write the model that `transformers` loads, with its adapter next to it, or only the adapter.

        Return its large files, not yet written, by their paths in the folder. They have copies of the
        weights, which may change meanwhile.
        """
        unwritten = self._write_weights(folder)
        if self.value_head and not self._classifier:
            self.value_head.save(folder)
        return unwritten

    def _write_weights(self, folder: Path) -> dict[Path, WeightsFile]:
        if self.adapter and self._base:
            unwritten = self.adapter.write(folder, self._start)
            (folder / BASE_FILE).write_text(self._base.content)
            return unwritten
        state = self.adapter.merged() if self.adapter else self.model.state_dict()
        self.measured = self.visible.measure(state, self.publish_dtype) if self.visible else dict(EXACT)
        beside: dict[str, Tensor] = {}
        if isinstance(self.value_head, RewardHead):
            beside = self.value_head.weights
            self.value_head.save(folder)
        unwritten = model_folder.write(
            self.model, state, folder, self.publish_dtype, self._classifier, beside
        )
        if self.adapter:
            files = self.adapter.write(folder / ADAPTER_FOLDER, self._start)
            unwritten |= {ADAPTER_FOLDER / path: file for path, file in files.items()}
        return unwritten

    @contextmanager
    def _as_published(self) -> Iterator[None]:
        """Within this `with`, the model has the weights of a published version."""
        if self.publish_dtype == torch.float32:
            yield
        elif self.adapter:
            with (
                self.adapter.disabled(),
                published_weights.rounded(self.model, self.publish_dtype, self.adapter.merged_weights()),
            ):
                yield
        else:
            with published_weights.rounded(self.model, self.publish_dtype):
                yield


def sharding_of(config: TrainerConfig, ranks: Ranks, device: str) -> Sharding | None:
    """Return the distribution of weights over the ranks. None: each has all of them."""
    if config.sharding == "full" and ranks.size > 1:
        return Sharding(ranks.mesh, device, config.offload)
    return None


def _base(config: TrainerConfig, start: Path, digest: str | None) -> Base | None:
    """Return the base model of published adapters. None: a version is a whole model."""
    if config.lora and config.publish == "adapter":
        return Base(start, digest or folder_digest.digest(start))
    return None


def _max_length(config: TrainerConfig, model: Any, says_rewards: bool) -> int:
    """Return the maximum length of a sequence. A reward head needs one more token, after the last one."""
    context = context_of(model.config) - (1 if says_rewards else 0)
    return min(config.max_length or sys.maxsize, context)
