"""From payloads and a causal language model to what losses read of each trained token.

    forward = Forward(model, config, temperature=0.7)
    for chosen in forward.micro_batches(payloads, width=2):  # indices; every 2 neighbours stay together
        scored = forward([payloads[i] for i in chosen])      # .mask .logprobs .entropy .correct .values
        frozen.logprobs([payloads[i] for i in chosen])       # of a reference, or of a proximal policy

B sequences, K the most trained tokens of one: a row's trained tokens stand at its left, in order,
and the mask says where. A sequence's first token never trains, since nothing predicts it.

Sequences are laid end to end, without padding, where that does not change what the model computes
(`attention.py` tries it); else they are padded to the right. Logits exist for a part of the trained
tokens at a time (`chunked_logprobs.py`), where the output embedding alone makes them.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from trinity_db.arrays import Payload
from trinity_db.config import ForwardConfig
from trinity_db.models.attention import can_pack, pack
from trinity_db.models.chunked_logprobs import ChunkedHead, Entropy, Scores, from_logits, is_plain
from trinity_db.models.layers import layers_of, shard

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scored:
    """What a model says about the trained tokens of a micro-batch. What stands where mask is False is 0."""

    mask: Tensor
    """[B, K] bool."""
    logprobs: Tensor
    """[B, K] Log-probability of each token at the temperature it was sampled at; with gradient."""
    entropy: Tensor
    """[B, K] Entropy in nats of the distribution each token is from; with gradient where it was asked for."""
    correct: Tensor
    """[B, K] bool, True where no token is likelier."""
    values: Tensor | None = None
    """[B, K] What the value head expects before each token; with gradient. None where there is no head."""

    @property
    def columns(self) -> dict[str, Tensor]:
        """By the names that losses read, without the mask: the rows of the whole step may narrow it."""
        columns = {"logprobs": self.logprobs, "entropy": self.entropy, "correct": self.correct}
        return columns if self.values is None else columns | {"values": self.values}


class Forward:
    """A model's forward pass over whole payloads.

    Args:
        model: a causal language model of transformers, in evaluation mode.
        temperature: logits are divided by it.
        value_head: maps hidden states [N, H] to values [N]; None: there are no values.
    """

    def __init__(
        self,
        model: Any,
        config: ForwardConfig,
        *,
        temperature: float = 1.0,
        value_head: torch.nn.Module | None = None,
    ) -> None:
        self._model = model
        self._value_head = value_head
        self._device = next(model.parameters()).device
        self._dtype = torch.bfloat16 if config.dtype == "bfloat16" else next(model.parameters()).dtype
        self._temperature = temperature
        self._max_sequences = config.micro_batch_size
        self._max_tokens = config.micro_batch_tokens
        self._packs = can_pack(model)
        self._plain = is_plain(model)
        if not self._packs:
            logger.warning("%s cannot take sequences end to end: they are padded", type(model).__name__)
        if not self._plain:
            logger.info("%s changes its logits: they are computed whole", type(model).__name__)
        self._within: Callable[[Callable[[], Any]], Any] = lambda compute: compute()
        """Computes something with the weights."""

    def shard(self, mesh: DeviceMesh) -> torch.nn.Module:
        """Leave each rank a part of the weights; returns the module that they are in."""
        modules = [self._model] if self._value_head is None else [self._model, self._value_head]
        self._within = shard(modules, layers_of(self._model), mesh)
        return self._within

    def micro_batches(self, payloads: Sequence[Payload], width: int = 1) -> list[list[int]]:
        """Which payloads go through the model together, by index; `width` neighbours are never parted.

        The longest come first, so that a step that does not fit into memory fails at its beginning, and
        padding, where there is any, stays low.
        """
        lengths = np.array([payload.num_tokens for payload in payloads]).reshape(-1, width)
        batches: list[list[int]] = []  # of items
        for item in np.argsort(-lengths.max(axis=1), kind="stable").tolist():
            grown = [*batches[-1], item] if batches else []
            if grown and len(grown) * width <= self._max_sequences and self._fits(lengths[grown]):
                batches[-1] = grown
            else:
                batches.append([item])
        return [[item * width + member for item in items for member in range(width)] for items in batches]

    def _fits(self, lengths: NDArray[np.int64]) -> bool:
        tokens = lengths.sum() if self._packs else lengths.max() * lengths.size
        return bool(tokens <= self._max_tokens)

    def __call__(self, payloads: Sequence[Payload], *, entropy_gradient: bool = False) -> Scored:
        """Score the trained tokens; `entropy_gradient` where a loss reads the entropy."""

        def compute() -> tuple[Tensor, ...]:
            mask, scores, hidden = self._scores(payloads, "gradient" if entropy_gradient else "value")
            values = [] if self._value_head is None else [self._value_head(hidden)]
            return mask, *(_rectangle(one, mask) for one in (*scores, *values))

        return Scored(*self._within(compute))

    @torch.no_grad()
    def logprobs(self, payloads: Sequence[Payload]) -> Tensor:
        """[B, K] Only the log-probabilities, without gradient."""
        mask, scores, _ = self._within(lambda: self._scores(payloads, "none"))
        return _rectangle(scores[0], mask)

    @torch.no_grad()
    def values(self, payloads: Sequence[Payload]) -> Tensor:
        """[B, K] Only the values, without gradient: no logits are computed for them."""
        head = self._value_head
        assert head is not None, "the algorithm asks for values"
        inputs, places, _ = self._inputs(payloads)
        values: Tensor = self._within(lambda: head(self._hidden(inputs, places)))
        return _rectangle(values, self._mask(payloads))

    def _scores(self, payloads: Sequence[Payload], entropy: Entropy) -> tuple[Tensor, Scores, Tensor]:
        """The mask [B, K]; of the N trained tokens, row after row, scores [N] and hidden states [N, H]."""
        inputs, places, targets = self._inputs(payloads)
        mask = self._mask(payloads)
        if self._plain:
            hidden = self._hidden(inputs, places)
            head = self._model.get_output_embeddings()
            how = (self._temperature, self._dtype, entropy)
            scores: Scores = ChunkedHead.apply(  # type: ignore[no-untyped-call]
                hidden, head.weight, head.bias, targets, *how
            )
            return mask, scores, hidden
        width = inputs["input_ids"].shape[1]
        rows, columns = places // width, places % width
        kept, columns = torch.unique(columns, return_inverse=True)
        heard: list[Tensor] = []  # what the decoder says within the model
        hears = self._model.get_decoder().register_forward_hook(lambda *told: heard.append(told[-1][0]))
        with self._autocast(), hears:
            logits = self._model(**inputs, logits_to_keep=kept).logits[rows, columns]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        scores = from_logits(logits / self._temperature, targets, entropy)
        return mask, scores, heard[0].flatten(0, 1)[places]

    def _inputs(self, payloads: Sequence[Payload]) -> tuple[dict[str, Any], Tensor, Tensor]:
        """What the model takes; the flat places [N] that predict trained tokens, and these."""
        tokens, places, targets = (array.to(self._device) for array in _laid_out(payloads, self._packs))
        inputs: dict[str, Any] = {"input_ids": tokens, "use_cache": False}
        if self._packs:
            inputs |= pack([payload.num_tokens for payload in payloads], self._device)
        return inputs, places, targets

    def _hidden(self, inputs: dict[str, Any], places: Tensor) -> Tensor:
        """[N, H] The decoder's last hidden states at the places."""
        with self._autocast():
            hidden: Tensor = self._model.get_decoder()(**inputs)[0].flatten(0, 1)[places]
        return hidden

    def _mask(self, payloads: Sequence[Payload]) -> Tensor:
        return torch.from_numpy(trained_mask(payloads)).to(self._device)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._device.type, self._dtype, enabled=self._dtype == torch.bfloat16)


def trained_values(payloads: Sequence[Payload], name: Literal["logprobs", "versions"]) -> NDArray[Any]:
    """[B, K] A stored array of the trained tokens, 0 elsewhere and for sequences that have none."""
    rows = [getattr(payload, name) for payload in payloads]
    first = [int(payload.action_mask[:1].sum()) for payload in payloads]
    mask = trained_mask(payloads)
    values = np.zeros(mask.shape, np.float32 if name == "logprobs" else np.int32)
    for row, (stored, skipped) in enumerate(zip(rows, first, strict=True)):
        if stored is not None:
            values[row, : len(stored) - skipped] = stored[skipped:]
    return values


def trained_mask(payloads: Sequence[Payload]) -> NDArray[np.bool_]:
    """[B, K] Each row's trained tokens, at its left."""
    counts = np.array([np.count_nonzero(payload.action_mask[1:]) for payload in payloads])
    mask: NDArray[np.bool_] = np.arange(counts.max()) < counts[:, None]
    return mask


def _laid_out(payloads: Sequence[Payload], packs: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens [1, total] or padded [B, T], the flat places [N] that predict trained tokens, and these [N].

    There is no attention mask for padding, since it stands on the right and attention looks left.
    """
    lengths = [payload.num_tokens for payload in payloads]
    width = max(lengths)
    starts = np.cumsum([0, *lengths[:-1]]) if packs else np.arange(len(lengths)) * width
    tokens = np.zeros(sum(lengths) if packs else len(lengths) * width, np.int64)
    where = []
    for start, payload in zip(starts.tolist(), payloads, strict=True):
        tokens[start : start + payload.num_tokens] = payload.token_ids
        where.append(start + np.flatnonzero(payload.action_mask[1:]))
    places = np.concatenate(where)
    rows = 1 if packs else len(lengths)
    return (
        torch.from_numpy(tokens.reshape(rows, -1)),
        torch.from_numpy(places),
        torch.from_numpy(tokens[places + 1]),
    )


def _rectangle(values: Tensor, mask: Tensor) -> Tensor:
    """[B, K] from [N], row after row."""
    return values.new_zeros(mask.shape).masked_scatter(mask, values)
