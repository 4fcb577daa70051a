"""Runs payloads through a causal language model, and returns for each trained token what losses read.

    forward = Forward(model, config, temperature=0.7)
    for chosen in forward.micro_batches(payloads, width=2):  # indices; every 2 neighbours stay together
        scored = forward([payloads[i] for i in chosen])      # .mask .logprobs .entropy .correct .values
        frozen.logprobs([payloads[i] for i in chosen])       # of a reference, or of a proximal policy

Shapes: B sequences, K the most trained tokens of one sequence. A row's trained tokens stand at its left, in
order, and the mask marks them. The first token of a sequence is never trained, because nothing predicts it.

Sequences lie end to end without padding if the model computes the same so (`layout.py` tries it). Else they
are padded to the right, or if that changes what it computes too, each has a call of its own. If the output
embedding alone makes the logits, these exist for a part of the trained tokens at a time
(`chunked_logprobs.py`).
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinity_db.arrays import Payload
from trinity_db.config import ForwardConfig
from trinity_db.models.attention import pack
from trinity_db.models.chunked_logprobs import ChunkedHead, Entropy, Scores, from_logits, is_plain
from trinity_db.models.computing import Computing, name_of
from trinity_db.models.layers import store_in
from trinity_db.models.layout import Layout, decoder_of, layout_of
from trinity_db.models.libraries import computing_dtype
from trinity_db.models.packed_kernels import noting
from trinity_db.models.router import recorded
from trinity_db.models.routing import Replay, Routers

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
    load: Tensor | None = None
    """[2, E] The load of the experts, as `router.py` has it. None if it was not asked for."""
    differing: Tensor | None = None
    """[] At how many tokens and layers a router's own choice is not the recorded one. None if none is."""

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
        device: that the model computes on. None: the one of its weights.
        with_weights: calls a function while the weights outside of layers are whole. Sharded weights need it.
            None: they always are.
        frozen: the weights never change. Those of the linear layers are then kept in the dtype of products,
            which takes half of the memory in 16 bits.
    """

    def __init__(
        self,
        model: Any,
        config: ForwardConfig,
        *,
        temperature: float = 1.0,
        value_head: torch.nn.Module | None = None,
        device: str | None = None,
        with_weights: Callable[[Callable[[], Any]], Any] | None = None,
        frozen: bool = False,
    ) -> None:
        self._model = model
        self._value_head = value_head
        with_weights = self._with_weights = with_weights or (lambda compute: compute())
        self._device = torch.device(device) if device else next(model.parameters()).device
        dtype = computing_dtype(config.dtype, self._device.type)
        self._autocasts = dtype in (torch.bfloat16, torch.float16)
        self._dtype = dtype if self._autocasts else next(model.parameters()).dtype
        self._temperature = temperature
        self._max_sequences = config.micro_batch_size
        self.max_tokens = config.tokens_on(self._device.type)
        """Tokens of a micro-batch, at most; a longer payload has its own."""
        self.routers: Routers | None = None
        """By which recorded choices of experts are compared, and replayed. None: payloads are taken to have
        none."""
        self.replays = True
        """Whether they are replayed, and not only compared."""
        self._replay: Replay | None = None
        """What was given to the routers last."""
        self.layout: Layout = with_weights(lambda: layout_of(model))
        self._packs = self.layout == "packed"
        self._plain: bool = with_weights(lambda: is_plain(model))
        self.computing = Computing(
            name_of(self._device),
            str(self._dtype).removeprefix("torch."),
            self.layout,
            with_weights(self._attention),
        )
        if not self._packs:
            how = "are padded" if self.layout == "padded" else "go through it one by one"
            logger.warning("%s cannot take sequences end to end: they %s", type(model).__name__, how)
        if not self._plain:
            logger.info("%s changes its logits: they are computed whole", type(model).__name__)
        if frozen:  # not before the trials above, which compute in float32
            store_in(model, self._dtype)

    @torch.no_grad()
    def _attention(self) -> tuple[str, ...]:
        """The kernels of the attention. They are chosen here, by trials, and not within the first step."""
        if not self._packs:
            return (str(self._model.config._attn_implementation),)
        tokens = torch.zeros(1, 2, dtype=torch.long, device=self._device)
        with noting() as kernels, self._autocast():
            decoder_of(self._model)(input_ids=tokens, use_cache=False, **pack([1, 1], self._device))
        return tuple(sorted(kernels))

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
        if self.layout == "alone":  # sharded ranks have to call the model equally often
            return False
        tokens = lengths.sum() if self._packs else lengths.max() * lengths.size
        return bool(tokens <= self.max_tokens)

    def __call__(
        self, payloads: Sequence[Payload], *, entropy_gradient: bool = False, routed: int | None = None
    ) -> Scored:
        """Score the trained tokens.

        Args:
            entropy_gradient: whether a loss reads the entropy.
            routed: experts that a layer chooses for a token, where a loss reads their load.
        """

        def compute() -> tuple[Tensor | None, ...]:
            with self._recorded(payloads, routed) as loads:
                mask, scores, hidden = self._scores(payloads, "gradient" if entropy_gradient else "value")
            values = None if self._value_head is None else _rectangle(self._value_head(hidden), mask)
            load = torch.stack(loads).sum(0) if loads else None
            differing = self._replay.differing() if self._replay else None
            return mask, *(_rectangle(one, mask) for one in scores), values, load, differing

        return Scored(*self._with_weights(compute))

    @torch.no_grad()
    def load(self, payloads: Sequence[Payload], routed: int) -> Tensor:
        """[2, E] Only the load of the experts, without gradient. No logits are computed."""

        def compute() -> Tensor:
            with self._recorded(payloads, routed) as loads:
                for part in self._parts(payloads):
                    self._hidden(*self._inputs(part)[:2])
            return torch.stack(loads).sum(0)

        load: Tensor = self._with_weights(compute)
        return load

    def _recorded(
        self, payloads: Sequence[Payload], routed: int | None
    ) -> AbstractContextManager[list[Tensor]]:
        return recorded(decoder_of(self._model), routed, [payload.num_tokens for payload in payloads])

    @torch.no_grad()
    def logprobs(self, payloads: Sequence[Payload]) -> Tensor:
        """[B, K] Only the log-probabilities, without gradient."""
        mask, scores, _ = self._with_weights(lambda: self._scores(payloads, "none"))
        return _rectangle(scores[0], mask)

    @torch.no_grad()
    def logprobs_and_values(self, payloads: Sequence[Payload]) -> tuple[Tensor, Tensor]:
        """[B, K] and [B, K] The log-probabilities and the values, without gradient, from one pass."""
        head = self._value_head
        assert head is not None, "the algorithm asks for values"

        def compute() -> tuple[Tensor, Tensor, Tensor]:
            mask, scores, hidden = self._scores(payloads, "none")
            return mask, scores[0], head(hidden)

        mask, logprobs, values = self._with_weights(compute)
        return _rectangle(logprobs, mask), _rectangle(values, mask)

    def canary_logprobs(self, payloads: Sequence[Payload]) -> Tensor:
        """[B, K] As `logprobs`, at temperature 1 and in the weights' own dtype, whatever training uses."""
        exact = copy(self)
        exact._temperature, exact._dtype = 1.0, next(self._model.parameters()).dtype
        exact._autocasts = False
        return exact.logprobs(payloads)

    @torch.no_grad()
    def values(self, payloads: Sequence[Payload]) -> Tensor:
        """[B, K] Only the values, without gradient. No logits are computed."""
        head = self._value_head
        assert head is not None, "the algorithm asks for values"

        def compute() -> Tensor:
            values = [head(self._hidden(*self._inputs(part)[:2])) for part in self._parts(payloads)]
            return torch.cat(values)

        return _rectangle(self._with_weights(compute), self._mask(payloads))

    def _scores(self, payloads: Sequence[Payload], entropy: Entropy) -> tuple[Tensor, Scores, Tensor]:
        """The mask [B, K]; scores [N] and hidden states [N, H] of the N trained tokens, row after row."""
        found = [self._scores_of(part, entropy) for part in self._parts(payloads)]
        joined = found[0] if len(found) == 1 else [torch.cat(values) for values in zip(*found, strict=True)]
        return self._mask(payloads), (joined[0], joined[1], joined[2]), joined[3]

    def _parts(self, payloads: Sequence[Payload]) -> list[Sequence[Payload]]:
        """The payloads of each call of the model."""
        return [[payload] for payload in payloads] if self.layout == "alone" else [payloads]

    def _scores_of(self, payloads: Sequence[Payload], entropy: Entropy) -> tuple[Tensor, ...]:
        """Scores and hidden states, by one call of the model."""
        inputs, places, targets = self._inputs(payloads)
        if self._plain:
            hidden = self._hidden(inputs, places)
            head = self._model.get_output_embeddings()
            how = (self._temperatures(payloads), self._dtype, entropy)
            scores: Scores = ChunkedHead.apply(  # type: ignore[no-untyped-call]
                hidden, head.weight, head.bias, targets, *how
            )
            return *scores, hidden
        logits, hidden = self._whole_logits(inputs, places)
        if (temperatures := self._temperatures(payloads)) is not None:
            logits = logits / temperatures[:, None]
        return *from_logits(logits, targets, entropy), hidden

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
        capture = decoder_of(self._model).register_forward_hook(
            lambda module, arguments, output: captured.append(output[0])
        )
        with self._autocast(), capture:
            logits = self._model(**inputs, logits_to_keep=kept).logits[rows, columns]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return logits, captured[0].flatten(0, 1)[places]

    def _inputs(self, payloads: Sequence[Payload]) -> tuple[dict[str, Any], Tensor, Tensor]:
        """The model's arguments; the flat places [N] that predict trained tokens; these tokens [N].

        The routers get the choices of these payloads.
        """
        tokens, places, targets = (
            array.to(self._device) for array in _laid_out(payloads, self.layout == "packed")
        )
        inputs: dict[str, Any] = {"input_ids": tokens, "use_cache": False}
        if self._packs:
            inputs |= pack([payload.num_tokens for payload in payloads], self._device)
        if self.routers is not None:
            choice = self.routers.recorded(payloads, *_starts(payloads, self._packs))
            given = None if choice is None else choice.to(self._device)
            self._replay = self.routers.replay(given, forces=self.replays)
        return inputs, places, targets

    def _hidden(self, inputs: dict[str, Any], places: Tensor) -> Tensor:
        """[N, H] The decoder's last hidden states at the places."""
        with self._autocast():
            hidden: Tensor = decoder_of(self._model)(**inputs)[0].flatten(0, 1)[places]
        return hidden

    def _mask(self, payloads: Sequence[Payload]) -> Tensor:
        return torch.from_numpy(trained_mask(payloads)).to(self._device)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._device.type, self._dtype, enabled=self._autocasts)


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
    starts, total = _starts(payloads, packs)
    tokens = np.zeros(total, np.int64)
    where = []
    for start, payload in zip(starts, payloads, strict=True):
        tokens[start : start + payload.num_tokens] = payload.token_ids
        where.append(start + np.flatnonzero(payload.action_mask[1:]))
    places = np.concatenate(where)
    rows = 1 if packs else len(payloads)
    return (
        torch.from_numpy(tokens.reshape(rows, -1)),
        torch.from_numpy(places),
        torch.from_numpy(tokens[places + 1]),
    )


def _starts(payloads: Sequence[Payload], packs: bool) -> tuple[list[int], int]:
    """The flat place of the first token of each payload, and the number of places."""
    lengths = [payload.num_tokens for payload in payloads]
    if packs:
        return np.cumsum([0, *lengths[:-1]]).tolist(), sum(lengths)
    return [row * max(lengths) for row in range(len(lengths))], len(lengths) * max(lengths)


def _rectangle(values: Tensor, mask: Tensor) -> Tensor:
    """[B, K] Values [N], which come row after row, put where the mask is True."""
    return values.new_zeros(mask.shape).masked_scatter(mask, values)
