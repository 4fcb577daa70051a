"""Forward pass of payloads through a causal language model, returning losses' inputs per trained token.

    forward = Forward(model, config, temperature=0.7)
    for chosen in forward.micro_batches(payloads, width=2):  # indices; pairs of neighbours stay together
        scored = forward([payloads[i] for i in chosen])      # .mask .logprobs .entropy .correct .values
        frozen.logprobs([payloads[i] for i in chosen])       # of a reference, or of a proximal policy

Shapes: B sequences; K is the greatest number of trained tokens in a sequence. Trained tokens are
left-aligned, in order, and marked by the mask. The first token of a sequence is never trained, because
nothing predicts it.

Sequences are packed end to end without padding if this does not change the model's results (tested by
`layout.py`), and tokens that several of them begin with are computed once (`prefixes.py`). Otherwise they are
padded on the right, or processed one by one if padding changes results too.
If the logits are the output embedding's result alone, they are computed for a part of the trained tokens at a
time (`chunked_logprobs.py`).
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinity_db.arrays.codec import Payload
from trinity_db.config.shared import ForwardConfig
from trinity_db.models.attention import pack
from trinity_db.models.chunked_logprobs import ChunkedHead, Entropy, Scores, from_logits, is_plain
from trinity_db.models.computing import Computing, name_of
from trinity_db.models.layers import store_in
from trinity_db.models.layout import Layout, decoder_of, layout_of, shares_prefixes
from trinity_db.models.libraries import computing_dtype
from trinity_db.models.packed_kernels import noting
from trinity_db.models.prefixes import Prefixes, Tree
from trinity_db.models.router import recorded
from trinity_db.models.routing import Replay, Routers
from trinity_db.models.segments import Segments

logger = logging.getLogger(__name__)

REPEATED = 8
"""Tokens that a micro-batch may compute beyond those that are enough, for each token of a prefix that a new
micro-batch would compute again: that costs an eighth of the time."""


@dataclass(frozen=True)
class Scored:
    """Columns for the trained tokens of a micro-batch; 0 where the mask is False."""

    mask: Tensor
    """[B, K] Mask of the trained tokens, bool."""
    logprobs: Tensor
    """[B, K] Log-probability of each token at the temperature at which it was sampled; with gradient."""
    entropy: Tensor
    """[B, K] Entropy in nats of the distribution of each token; with gradient only on request."""
    correct: Tensor
    """[B, K] bool, True where the token is the most likely one."""
    values: Tensor | None = None
    """[B, K] The value head's expectation before each token, with gradient. None without a value head."""
    load: Tensor | None = None
    """[2, E] Load of the experts, see `router.py`. None if it was not requested."""
    differing: Tensor | None = None
    """[] Number of tokens and layers where a router's choice differs from the recorded one. None without
    records."""

    @property
    def columns(self) -> dict[str, Tensor]:
        """Return the columns by the names in losses, without the mask: algorithms may mask more tokens."""
        columns = {"logprobs": self.logprobs, "entropy": self.entropy, "correct": self.correct}
        return columns if self.values is None else columns | {"values": self.values}


class Forward:
    """A model's forward pass over whole payloads.

    Args:
        model: a causal language model of transformers, in evaluation mode.
        temperature: divisor of the logits, unless a payload has its own temperatures.
        value_head: maps hidden states [N, H] to values [N]. None: values are not computed.
        device: device of the computation. None: that of the model's weights.
        with_weights: calls a function while the weights outside layers are gathered; needed for sharded
            weights. None: they are never sharded.
        frozen: the weights never change. Weights of linear layers are then kept in the dtype of products,
            with half the memory for 16 bits.
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
        self.max_tokens = config.most_tokens
        """Most tokens that a micro-batch computes; a longer payload has its own."""
        self._enough_tokens = config.enough_tokens_on(self._device.type)
        """Tokens of a micro-batch that larger ones only save time with if they share more prefixes."""
        self.routers: Routers | None = None
        """Compares and replays recorded choices of experts. None: payloads have no records."""
        self.replays = True
        """Whether recorded choices are replayed, not only compared."""
        self._replay: Replay | None = None
        """Last input of the routers."""
        self.layout: Layout = with_weights(lambda: layout_of(model))
        self._packs = self.layout == "packed"
        self._shares: bool = self._packs and with_weights(lambda: shares_prefixes(model))
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
        elif not self._shares:
            logger.warning("%s cannot share prompts: each row computes its own", type(model).__name__)
        if not self._plain:
            logger.info("%s changes its logits: they are computed whole", type(model).__name__)
        if frozen:  # after the trials above, which compute in float32
            store_in(model, self._dtype)

    @torch.no_grad()
    def _attention(self) -> tuple[str, ...]:
        """Choose the attention kernels by trials, here rather than within the first step."""
        if not self._packs:
            return (str(self._model.config._attn_implementation),)
        tokens = torch.zeros(1, 2, dtype=torch.long, device=self._device)
        with noting() as kernels, self._autocast():
            decoder_of(self._model)(input_ids=tokens, use_cache=False, **pack(Segments([1, 1]), self._device))
        return tuple(sorted(kernels))

    def micro_batches(self, payloads: Sequence[Payload], width: int = 1) -> list[list[int]]:
        """Return the payload indices of each micro-batch. Each `width` neighbours stay together.

        The longest come first, so that a step too large for memory fails early and payloads of similar length
        share a micro-batch, which reduces padding. Payloads with the same prefix are neighbours.
        """
        prefixes = Prefixes(payloads, self._shares)
        batches: list[list[int]] = []
        tokens = 0  # of the last micro-batch
        for item in _items(prefixes.ordered(), width):
            grown = [*batches[-1], *item] if batches else []
            together, alone = self._computed(prefixes, grown), self._computed(prefixes, item)
            repeated = tokens + alone - together  # by a new micro-batch
            most = min(self.max_tokens, max(self._enough_tokens, REPEATED * repeated))
            if grown and len(grown) <= self._max_sequences and together <= most and self.layout != "alone":
                batches[-1], tokens = grown, together
            else:  # sharded ranks must call the model equally often, also with the layout alone
                batches.append(item)
                tokens = alone
        return batches

    def related(
        self, payloads: Sequence[Payload], width: int, parts: int
    ) -> tuple[list[list[int]], list[int]]:
        """Divide payloads into sets that share no prefix, and the tokens that the model computes for each.

        A set that would compute more than one of `parts` equal parts of all tokens is divided further. Each
        `width` neighbours stay together.
        """
        prefixes = Prefixes(payloads, self._shares)
        total = self._computed(prefixes, range(len(payloads)))
        if parts == 1:
            return [list(range(len(payloads)))], [total]
        sets: list[list[int]] = []
        costs: list[int] = []
        for item in _items(prefixes.ordered(), width):
            grown = [*sets[-1], *item] if sets else []
            together, alone = self._computed(prefixes, grown), self._computed(prefixes, item)
            if grown and together <= total / parts and together < costs[-1] + alone:
                sets[-1], costs[-1] = grown, together
            else:
                sets.append(item)
                costs.append(alone)
        return sets, costs

    def _computed(self, prefixes: Prefixes, rows: Sequence[int]) -> int:
        """Return the number of tokens that the model computes for these payloads, padding included."""
        if self._packs:
            return prefixes.tree(rows).num_tokens if rows else 0
        return len(rows) * max((prefixes.lengths[row] for row in rows), default=0)

    def __call__(
        self, payloads: Sequence[Payload], *, entropy_gradient: bool = False, routed: int | None = None
    ) -> Scored:
        """Score the trained tokens.

        Args:
            entropy_gradient: whether a loss uses the entropy.
            routed: number of experts per token, if a loss uses their load.
        """

        def compute() -> tuple[Tensor | None, ...]:
            with self._recorded(payloads, routed) as loads:
                mask, scores, hidden = self._scores(payloads, "gradient" if entropy_gradient else "value")
            values = None if self._value_head is None else _rectangle(self._value_head(hidden), mask)
            load = torch.stack(loads).sum(0) if loads else None
            differing = self._replay.differing() if self._replay else None
            return mask, *(_rectangle(score, mask) for score in scores), values, load, differing

        return Scored(*self._with_weights(compute))

    @torch.no_grad()
    def load(self, payloads: Sequence[Payload], routed: int) -> Tensor:
        """[2, E] Compute only the load of the experts, without gradient and logits."""

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
        copies = None
        if routed is not None and self.layout != "alone":
            _, indices, size = self._laid_out(payloads)
            copies = self._copies(indices, size)
        return recorded(decoder_of(self._model), routed, copies)

    @torch.no_grad()
    def logprobs(self, payloads: Sequence[Payload]) -> Tensor:
        """[B, K] Compute only the log-probabilities, without gradient."""
        mask, scores, _ = self._with_weights(lambda: self._scores(payloads, "none"))
        return _rectangle(scores[0], mask)

    @torch.no_grad()
    def logprobs_and_values(self, payloads: Sequence[Payload]) -> tuple[Tensor, Tensor]:
        """[B, K] and [B, K] Compute log-probabilities and values in one pass, without gradient."""
        head = self._value_head
        assert head is not None, "the algorithm asks for values"

        def compute() -> tuple[Tensor, Tensor, Tensor]:
            mask, scores, hidden = self._scores(payloads, "none")
            return mask, scores[0], head(hidden)

        mask, logprobs, values = self._with_weights(compute)
        return _rectangle(logprobs, mask), _rectangle(values, mask)

    def canary_logprobs(self, payloads: Sequence[Payload]) -> Tensor:
        """[B, K] As `logprobs`, but at temperature 1 and in the weights' own dtype."""
        exact = copy(self)
        exact._temperature, exact._dtype = 1.0, next(self._model.parameters()).dtype
        exact._autocasts = False
        return exact.logprobs(payloads)

    @torch.no_grad()
    def values(self, payloads: Sequence[Payload]) -> Tensor:
        """[B, K] Compute only the values, without gradient and logits."""
        head = self._value_head
        assert head is not None, "the algorithm asks for values"

        def compute() -> Tensor:
            values = [head(self._hidden(*self._inputs(part)[:2])) for part in self._parts(payloads)]
            return torch.cat(values)

        return _rectangle(self._with_weights(compute), self._mask(payloads))

    def _scores(self, payloads: Sequence[Payload], entropy: Entropy) -> tuple[Tensor, Scores, Tensor]:
        """Return the mask [B, K], and scores [N] and hidden states [N, H] of the N trained tokens, row by
        row."""
        scores = [self._scores_of(part, entropy) for part in self._parts(payloads)]
        joined = (
            scores[0] if len(scores) == 1 else [torch.cat(values) for values in zip(*scores, strict=True)]
        )
        return self._mask(payloads), (joined[0], joined[1], joined[2]), joined[3]

    def _parts(self, payloads: Sequence[Payload]) -> list[Sequence[Payload]]:
        """Split payloads into calls of the model."""
        return [[payload] for payload in payloads] if self.layout == "alone" else [payloads]

    def _scores_of(self, payloads: Sequence[Payload], entropy: Entropy) -> tuple[Tensor, ...]:
        """Compute scores and hidden states in one call of the model."""
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
        """[N] Temperature of each trained token, in float32 or better; None: all are 1."""
        own = [payload.temperatures is None for payload in payloads]
        if self._temperature == 1.0 and all(own):
            return None
        values = trained_values(payloads, "temperatures").astype(np.float64)
        values[own] = self._temperature
        dtype = torch.promote_types(next(self._model.parameters()).dtype, torch.float32)
        return torch.from_numpy(values[trained_mask(payloads)]).to(self._device, dtype)

    def _whole_logits(self, inputs: dict[str, Any], places: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [N, V] and hidden states [N, H] at the positions, for a model that modifies its
        logits."""
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
        """Return the model's arguments, the flat positions [N] that predict trained tokens, and these tokens
        [N].

        The routers receive the recorded choices of these payloads.
        """
        tree, indices, size = self._laid_out(payloads)
        shape = (1, size) if tree else (len(payloads), -1)
        tokens = np.zeros(size, np.int64)
        predicting, targets = [], []
        for payload, index in zip(payloads, indices, strict=True):
            tokens[index] = payload.token_ids
            predicting.append(index[:-1][payload.action_mask[1:]])
            targets.append(payload.token_ids[1:][payload.action_mask[1:]])
        inputs: dict[str, Any] = {"input_ids": self._sent(tokens).view(shape), "use_cache": False}
        if tree:
            inputs |= pack(tree.segments, self._device)
        if self.routers is not None:
            choice = self.routers.recorded(payloads, indices, size)
            recorded = None if choice is None else choice.to(self._device)
            self._replay = self.routers.replay(recorded, self._copies(indices, size), forces=self.replays)
        return inputs, self._sent(np.concatenate(predicting)), self._sent(np.concatenate(targets))

    def _laid_out(self, payloads: Sequence[Payload]) -> tuple[Tree | None, list[NDArray[np.int64]], int]:
        """Return the tree of packed payloads, the flat index of each payload's tokens, and the number of
        tokens.

        Padding needs no attention mask: it is on the right, and attention is causal.
        """
        if self._packs:
            tree = Prefixes(payloads, self._shares).tree(range(len(payloads)))
            return tree, [tree.segments.indices(path) for path in tree.paths], tree.num_tokens
        lengths = [payload.num_tokens for payload in payloads]
        width = max(lengths)
        indices = [row * width + np.arange(length) for row, length in enumerate(lengths)]
        return None, indices, len(lengths) * width

    def _copies(self, indices: Sequence[NDArray[np.int64]], size: int) -> Tensor:
        """[size] Number of payloads that have each computed token; 0 for padding."""
        return self._sent(np.bincount(np.concatenate(indices), minlength=size))

    def _sent(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(self._device)

    def _hidden(self, inputs: dict[str, Any], places: Tensor) -> Tensor:
        """[N, H] Return the decoder's last hidden states at the positions."""
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
    """[B, K] Return a stored array at the trained tokens; 0 elsewhere and for sequences without the array."""
    rows = [getattr(payload, name) for payload in payloads]
    first = [int(payload.action_mask[:1].sum()) for payload in payloads]
    mask = trained_mask(payloads)
    values = np.zeros(mask.shape, np.int32 if name == "versions" else np.float32)
    for row, (stored, skipped) in enumerate(zip(rows, first, strict=True)):
        if stored is not None:
            values[row, : len(stored) - skipped] = stored[skipped:]
    return values


def trained_mask(payloads: Sequence[Payload]) -> NDArray[np.bool_]:
    """[B, K] True at each row's trained tokens, which are left-aligned."""
    counts = np.array([np.count_nonzero(payload.action_mask[1:]) for payload in payloads])
    mask: NDArray[np.bool_] = np.arange(counts.max()) < counts[:, None]
    return mask


def _items(order: Sequence[int], width: int) -> Iterator[list[int]]:
    """Yield the indices of each item of `width` neighbours, in the order of their first ones."""
    for number in dict.fromkeys(row // width for row in order):
        yield [number * width + member for member in range(width)]


def _rectangle(values: Tensor, mask: Tensor) -> Tensor:
    """[B, K] Scatter values [N], ordered by row, to where the mask is True."""
    return values.new_zeros(mask.shape).masked_scatter(mask, values)
