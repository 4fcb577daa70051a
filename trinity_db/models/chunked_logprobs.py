"""Log-probabilities from hidden states, without the logits of all tokens at once.

Logits are the largest array of a step: N trained tokens times V words. Here they are computed for one part of
the tokens at a time, in the forward pass and again in the backward pass. Shapes: N tokens, H the width of the
model, V the vocabulary, n the tokens of one part.
"""

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trinity_db.models.layout import decoder_of

Entropy = Literal["none", "value", "gradient"]
"""Whether entropies are computed, and whether with gradient."""
Scores = tuple[Tensor, Tensor, Tensor]
"""[N] each: log-probability and entropy of the targets, and whether they are the most likely tokens."""
CPU_PART_BYTES = 16 << 20  # float32 logits at a time: fits into caches, and malloc reuses the memory
GPU_PART_BYTES = 256 << 20  # float32 logits at a time: enough work for a GPU


def is_plain(model: Any) -> bool:
    """Whether the logits are exactly the output embedding applied to the decoder's hidden states.

    A trial on a few tokens decides. The same operations in the same order give the same bits.
    """
    head = model.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear):
        return False
    tokens = torch.arange(8, device=head.weight.device)[None] * 7 % head.out_features
    with torch.no_grad():
        hidden = decoder_of(model)(input_ids=tokens, use_cache=False)[0]
        return torch.equal(head(hidden), model(input_ids=tokens, use_cache=False).logits)


def from_logits(logits: Tensor, targets: Tensor, entropy: Entropy) -> Scores:
    """Compute the scores of the targets [N] from logits [N, V] in float32, all at once.

    log p = z - logsumexp(z). H = -Σ p·log p in nats, or 0 if the entropy is not wanted.
    """
    log_p = logits.log_softmax(-1)
    logprobs = log_p.gather(-1, targets[:, None])[:, 0]
    hits = logprobs >= log_p.amax(-1)
    if entropy == "none":
        return logprobs, torch.zeros_like(logprobs), hits
    read = log_p if entropy == "gradient" else log_p.detach()
    return logprobs, -torch.linalg.vecdot(read.exp(), read), hits


class ChunkedHead(torch.autograd.Function):
    """`from_logits` of z = (hidden · weightᵀ + bias) / temperature, with its gradient, part by part.

    Each token has its own temperature.

    With p = softmax(z): ∂ log p_y / ∂z_j = [j = y] - p_j and ∂H / ∂z_j = -p_j · (log p_j + H).
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperatures: Tensor | None,
        dtype: torch.dtype,
        entropy: Entropy,
    ) -> Scores:
        """hidden [N, H], weight [V, H], bias [V] or None, targets [N], temperatures [N] or None: all are 1.

        Products are computed in `dtype`.
        """
        used = weight.to(dtype)
        scores = [
            from_logits(_logits(part, used, bias, *tempered), ids, entropy)
            for part, ids, *tempered in _parts(len(weight), hidden, targets, *_as_tuple(temperatures))
        ]
        logprobs, entropies, hits = (torch.cat(values) for values in zip(*scores, strict=True))
        ctx.save_for_backward(hidden, weight, bias, temperatures, targets, logprobs, entropies)
        ctx.dtype, ctx.entropy = dtype, entropy
        ctx.mark_non_differentiable(hits, *([] if entropy == "gradient" else [entropies]))
        return logprobs, entropies, hits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_logprobs: Tensor, by_entropies: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, temperatures, *scored = ctx.saved_tensors
        used = weight.to(ctx.dtype)
        by_hidden = torch.empty_like(hidden)
        # A frozen weight saves a third of the work.
        by_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        by_bias = None if bias is None else torch.zeros_like(bias)
        if temperatures is not None:
            by_logprobs, by_entropies = by_logprobs / temperatures, by_entropies / temperatures
        columns = (hidden, *scored, by_logprobs, by_entropies, by_hidden, *_as_tuple(temperatures))
        for part, ids, logprob, entropy, by_logprob, by_entropy, by_part, *tempered in _parts(
            len(weight), *columns
        ):
            # log p of all words: subtract the logsumexp, the target's logit minus its log p.
            log_p = _logits(part, used, bias, *tempered)
            log_p.sub_((log_p.gather(1, ids[:, None])[:, 0] - logprob)[:, None])
            by_p = by_logprob[:, None]
            if ctx.entropy == "gradient":
                by_p = by_entropy[:, None] * (log_p + entropy[:, None]) + by_p
            by_logits = log_p.exp_().mul_(by_p.neg()).scatter_add_(1, ids[:, None], by_logprob[:, None])
            if by_bias is not None:
                by_bias += by_logits.sum(0)
            by_logits = by_logits.to(ctx.dtype)
            by_part.copy_(by_logits @ used)
            if by_weight is None:
                continue
            if ctx.dtype == by_weight.dtype:
                by_weight.addmm_(by_logits.T, part)
            else:
                by_weight += by_logits.T @ part.to(ctx.dtype)
        return by_hidden, by_weight, by_bias, None, None, None, None


def _as_tuple(temperatures: Tensor | None) -> tuple[Tensor, ...]:
    return () if temperatures is None else (temperatures,)


def _logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, temperatures: Tensor | None = None
) -> Tensor:
    """[n, V] Logits in float32 or better, for any dtype of the weight."""
    logits = (hidden.to(weight.dtype) @ weight.T).to(torch.promote_types(weight.dtype, torch.float32))
    if bias is not None:
        logits += bias
    return logits if temperatures is None else logits.div_(temperatures[:, None])


def _parts(vocabulary: int, *columns: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Cut columns [N, ...] into parts of equal length, whose logits fit into the bytes of a part."""
    part_bytes = CPU_PART_BYTES if columns[0].device.type == "cpu" else GPU_PART_BYTES
    size = max(1, part_bytes // (4 * vocabulary))
    return zip(*(torch.split(column, size) for column in columns), strict=True)
