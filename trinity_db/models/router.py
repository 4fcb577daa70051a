"""The load of experts in a mixture, and the loss that balances it.

    loss = E · Σ_e f_e · P_e        f_e: choices of expert e, P_e: its probability, per token and layer

This is transformers' loss, from Switch Transformer (arXiv 2101.03961, equations 4 to 6), over all layers
together. f has no gradient and is counted over all tokens of an update, before the gradient. So the shares of
micro-batches and ranks add up to the loss of the whole update, unlike a mean of their losses. Balancing
larger batches also leaves experts free to differ by kind of text (arXiv 2501.11873).

Shapes: E experts.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

TRIAL_TOKENS = 12
TOLERANCE = 1e-3  # relative error of the loss in a trial; other losses differ by some percent


def coefficient_of(config: Any) -> float:
    """Return the loss weight from a model's configuration; as in transformers, only if it outputs the
    routers' logits."""
    text = config.get_text_config()
    if not (getattr(text, "output_router_logits", False) or getattr(config, "output_router_logits", False)):
        return 0.0
    return float(getattr(text, "router_aux_loss_coef", None) or getattr(text, "aux_loss_coef", None) or 0.0)


@torch.no_grad()
def experts_per_token(model: Any) -> int | None:
    """Return the number of experts per token and layer of a mixture.

    None if transformers computes no such loss for the model, or a different one, according to a trial on a
    few tokens.
    """
    owners = (model, model.config.get_text_config())
    chosen = next((count for owner in owners if (count := getattr(owner, "num_experts_per_tok", None))), None)
    device = next(model.parameters()).device
    tokens = torch.arange(TRIAL_TOKENS, device=device)[None] * 7 % model.get_input_embeddings().num_embeddings
    try:
        output = model(input_ids=tokens, use_cache=False, output_router_logits=True)
        expected, logits = output.aux_loss, output.router_logits
    except (AttributeError, TypeError, NotImplementedError):  # it has no such argument
        return None
    if not chosen or not logits or not isinstance(expected, Tensor):
        return None
    load = _load_of(logits, chosen, None)
    computed = balance(load[0], load[1], chosen)
    return chosen if bool((computed - expected).abs() <= TOLERANCE * expected.abs()) else None


@contextmanager
def recorded(decoder: Any, chosen: int | None, copies: Tensor | None) -> Iterator[list[Tensor]]:
    """Within this context, each call of the decoder appends the load of its experts to the list.

    [2, E] Number of times each expert is among the most likely, and the sum of its probabilities, which has a
    gradient. Both are over layers and the tokens of all sequences, without padding.

    Args:
        chosen: number of experts per token and layer. None: nothing is recorded.
        copies: [tokens] number of sequences that have each token of a call. None: one for each.
    """
    loads: list[Tensor] = []
    if chosen is None:
        yield loads
        return

    def ask(module: Any, arguments: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return arguments, named | {"output_router_logits": True}

    def note(module: Any, arguments: Any, named: dict[str, Any], output: Any) -> None:
        loads.append(_load_of(output.router_logits, chosen, copies))

    with (
        decoder.register_forward_pre_hook(ask, with_kwargs=True),
        decoder.register_forward_hook(note, with_kwargs=True),
    ):
        yield loads


def _load_of(router_logits: Sequence[Tensor], chosen: int, copies: Tensor | None) -> Tensor:
    """[2, E] Compute the load, as described in `recorded`.

    Args:
        router_logits: of each layer, [..., E] in the order of the tokens.
        copies: [tokens] number of times that each token counts. None: once.
    """
    counts, sums = [], []
    for logits in router_logits:
        of_layer = logits.flatten(0, -2)
        probabilities = of_layer.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        places = probabilities.detach().topk(chosen, dim=-1).indices
        weights = probabilities.new_ones(len(of_layer)) if copies is None else copies.to(probabilities)
        counted = weights[:, None].expand_as(places).flatten()
        counts.append(probabilities.new_zeros(logits.shape[-1]).scatter_add_(0, places.flatten(), counted))
        sums.append(weights @ probabilities)
    return torch.stack([torch.stack(counts).sum(0), torch.stack(sums).sum(0)])


def balance(counts: Tensor, probabilities: Tensor, chosen: int) -> Tensor:
    """Return the loss, or the share of the tokens over which the probabilities are summed.

    Args:
        counts: [E] Choices of each expert over all tokens and layers of the update.
        probabilities: [E] Sums over some or all of them.
        chosen: number of experts per token and layer.
    """
    rows = counts.sum() / chosen  # tokens times layers
    loss: Tensor = len(counts) * torch.linalg.vecdot(counts / rows, probabilities / rows)
    return loss
