"""Runs payloads through a causal language model, and returns for each trained token what losses read.

    forward = Forward(model, config, temperature=0.7)
    for chosen in forward.micro_batches(payloads, width=2):  # indices; every 2 neighbours stay together
        scored = forward([payloads[i] for i in chosen])      # .mask .logprobs .entropy .correct .values
        frozen.logprobs([payloads[i] for i in chosen])       # of a reference, or of a proximal policy

Shapes: B sequences, K the most trained tokens of one sequence. A row's trained tokens stand at its left, in
order, and the mask marks them. The first token of a sequence is never trained, because nothing predicts it.

Sequences lie end to end without padding if the model computes the same so (`attention.py` tries it). Else
they are padded to the right. If the output embedding alone makes the logits, these exist for a part of the
trained tokens at a time (`chunked_logprobs.py`).
"""

import logging
from collections.abc import Callable, Sequence
from copy import copy
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
    """A model's columns for the trained tokens of a micro-batch. They are 0 where the mask is False."""

    mask: Tensor
    """[B, K] bool."""
    logprobs: Tensor
    """[B, K] Log-probability of each token at the temperature at which it was sampled; with gradient."""
    entropy: Tensor
    """[B, K] Entropy in nats of the distribution of each token; with gradient only on request."""
    correct: Tensor
    """[B, K] bool, True where no token is likelier."""
    values: Tensor | None = None
    """[B, K] The value head's expectation before each token, with gradient. None without a value head."""

    @property
    def columns(self) -> dict[str, Tensor]:
        """The columns by the names that losses read, without the mask: algorithms may mask more tokens."""
        columns = {"logprobs": self.logprobs, "entropy": self.entropy, "correct": self.correct}
        return columns if self.values is None else columns | {"values": self.values}


class Forward:
    """A model's forward pass over whole payloads.

    Args:
        model: a causal language model of transformers, in evaluation mode.
        temperature: the logits are divided by it, where a payload does not have other temperatures.
        value_head: maps hidden states [N, H] to values [N]. None: values are not computed.
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
        self._with_weights: Callable[[Callable[[], Any]], Any] = lambda compute: compute()
        """Calls a function while the weights outside of layers are whole. `shard` replaces it."""

    def shard(self, mesh: DeviceMesh) -> torch.nn.Module:
        """Shard the weights over the ranks. Returns the module that holds this rank's part."""
        modules = [self._model] if self._value_head is None else [self._model, self._value_head]
        self._with_weights = shard(modules, layers_of(self._model), mesh)
        return self._with_weights

    def micro_batches(self, payloads: Sequence[Payload], width: int = 1) -> list[list[int]]:
        """The indices of the payloads of each micro-batch. Each `width` neighbours stay together.

        The longest come first. So a step that does not fit into memory fails at its beginning, and payloads
        of similar length share a micro-batch, which keeps padding low.
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
        """Score the trained tokens. `entropy_gradient`: whether a loss reads the entropy."""

        def compute() -> tuple[Tensor, ...]:
            mask, scores, hidden = self._scores(payloads, "gradient" if entropy_gradient else "value")
            values = [] if self._value_head is None else [self._value_head(hidden)]
            return mask, *(_rectangle(one, mask) for one in (*scores, *values))

        return Scored(*self._with_weights(compute))

    @torch.no_grad()
    def logprobs(self, payloads: Sequence[Payload]) -> Tensor:
        """[B, K] Only the log-probabilities, without gradient."""
        mask, scores, _ = self._with_weights(lambda: self._scores(payloads, "none"))
        return _rectangle(scores[0], mask)

    def canary_logprobs(self, payloads: Sequence[Payload]) -> Tensor:
        """[B, K] As `logprobs`, at temperature 1 and in the weights' own dtype, whatever training uses."""
        exact = copy(self)
        exact._temperature, exact._dtype = 1.0, next(self._model.parameters()).dtype
        return exact.logprobs(payloads)

    @torch.no_grad()
    def values(self, payloads: Sequence[Payload]) -> Tensor:
        """[B, K] Only the values, without gradient. No logits are computed."""
        head = self._value_head
        assert head is not None, "the algorithm asks for values"
        inputs, places, _ = self._inputs(payloads)
        values: Tensor = self._with_weights(lambda: head(self._hidden(inputs, places)))
        return _rectangle(values, self._mask(payloads))

    def _scores(self, payloads: Sequence[Payload], entropy: Entropy) -> tuple[Tensor, Scores, Tensor]:
        """The mask [B, K]; scores [N] and hidden states [N, H] of the N trained tokens, row after row."""
        inputs, places, targets = self._inputs(payloads)
        mask = self._mask(payloads)
        if self._plain:
            hidden = self._hidden(inputs, places)
            head = self._model.get_output_embeddings()
            how = (self._temperatures(payloads), self._dtype, entropy)
            scores: Scores = ChunkedHead.apply(  # type: ignore[no-untyped-call]
                hidden, head.weight, head.bias, targets, *how
            )
            return mask, scores, hidden
        logits, hidden = self._whole_logits(inputs, places)
        if (temperatures := self._temperatures(payloads)) is not None:
            logits = logits / temperatures[:, None]
        return mask, from_logits(logits, targets, entropy), hidden

    def _temperatures(self, payloads: Sequence[Payload]) -> Tensor | None:
        """[N] The temperature of each trained token, in float32 or better; None: all are 1."""
        own = [payload.temperatures is None for payload in payloads]
        if self._temperature == 1.0 and all(own):
            return None
        values = trained_values(payloads, "temperatures").astype(np.float64)
        values[own] = self._temperature
        dtype = torch.promote_types(next(self._model.parameters()).dtype, torch.float32)
        return torch.from_numpy(values[trained_mask(payloads)]).to(self._device, dtype)

    def _whole_logits(self, inputs: dict[str, Any], places: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [N, V] and hidden states [N, H] at the places, of a model that changes its logits."""
        width = inputs["input_ids"].shape[1]
        rows, columns = places // width, places % width
        kept, columns = torch.unique(columns, return_inverse=True)
        captured: list[Tensor] = []
        capture = self._model.get_decoder().register_forward_hook(
            lambda module, arguments, output: captured.append(output[0])
        )
        with self._autocast(), capture:
            logits = self._model(**inputs, logits_to_keep=kept).logits[rows, columns]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return logits, captured[0].flatten(0, 1)[places]

    def _inputs(self, payloads: Sequence[Payload]) -> tuple[dict[str, Any], Tensor, Tensor]:
        """The model's arguments; the flat places [N] that predict trained tokens; these tokens [N]."""
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


def trained_values(
    payloads: Sequence[Payload], name: Literal["logprobs", "versions", "temperatures"]
) -> NDArray[Any]:
    """[B, K] A stored array at the trained tokens; 0 elsewhere, and for sequences without that array."""
    rows = [getattr(payload, name) for payload in payloads]
    first = [int(payload.action_mask[:1].sum()) for payload in payloads]
    mask = trained_mask(payloads)
    values = np.zeros(mask.shape, np.int32 if name == "versions" else np.float32)
    for row, (stored, skipped) in enumerate(zip(rows, first, strict=True)):
        if stored is not None:
            values[row, : len(stored) - skipped] = stored[skipped:]
    return values


def trained_mask(payloads: Sequence[Payload]) -> NDArray[np.bool_]:
    """[B, K] True at each row's trained tokens, which stand at its left."""
    counts = np.array([np.count_nonzero(payload.action_mask[1:]) for payload in payloads])
    mask: NDArray[np.bool_] = np.arange(counts.max()) < counts[:, None]
    return mask


def _laid_out(payloads: Sequence[Payload], packs: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens [1, total] or padded [B, T]; the flat places [N] that predict trained tokens; these tokens [N].

    Padding needs no attention mask: it stands on the right, and attention looks to the left.
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
    """[B, K] Values [N], which come row after row, put where the mask is True."""
    return values.new_zeros(mask.shape).masked_scatter(mask, values)
