"""The load of experts in a mixture, and the loss that balances it.

    loss = E · Σ_e f_e · P_e        f_e: choices of expert e, P_e: its probability, per token and layer

It is that of transformers, from Switch Transformer (arXiv 2101.03961, equations 4 to 6), with all layers
taken together. f has no gradient. It is counted over all tokens of an update, before the gradient. So the
shares of micro-batches and ranks add up to the loss of the whole update, which a mean of their losses would
not be. Balancing larger batches also leaves experts free to differ by kind of text (arXiv 2501.11873).

Shapes: E experts.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

TRIAL_TOKENS = 12
TOLERANCE = 1e-3  # relative, of the loss in a trial; a loss of another kind differs by some percent


def coefficient_of(config: Any) -> float:
    """The weight of the loss by a model's configuration. As for transformers, it counts where the routers'
    logits are put out."""
    text = config.get_text_config()
    if not (getattr(text, "output_router_logits", False) or getattr(config, "output_router_logits", False)):
        return 0.0
    return float(getattr(text, "router_aux_loss_coef", None) or getattr(text, "aux_loss_coef", None) or 0.0)


@torch.no_grad()
def experts_per_token(model: Any) -> int | None:
    """How many experts each layer of a mixture chooses for a token.

    None if transformers computes no such loss for the model, or another one. A trial on a few tokens decides.
    """
    owners = (model, model.config.get_text_config())
    chosen = next((found for one in owners if (found := getattr(one, "num_experts_per_tok", None))), None)
    device = next(model.parameters()).device
    tokens = torch.arange(TRIAL_TOKENS, device=device)[None] * 7 % model.get_input_embeddings().num_embeddings
    try:
        found = model(input_ids=tokens, use_cache=False, output_router_logits=True)
        expected, logits = found.aux_loss, found.router_logits
    except (AttributeError, TypeError, NotImplementedError):  # it knows no such argument
        return None
    if not chosen or not logits or not isinstance(expected, Tensor):
        return None
    load = _load_of(logits, chosen, None)
    computed = balance(load[0], load[1], chosen)
    return chosen if bool((computed - expected).abs() <= TOLERANCE * expected.abs()) else None


@contextmanager
def recorded(decoder: Any, chosen: int | None, lengths: Sequence[int]) -> Iterator[list[Tensor]]:
    """Within this `with`, each call of the decoder adds the load of its experts to the list.

    [2, E] How often each expert is among the likeliest, and the sum of its probabilities, which has a
    gradient. Both are over layers and tokens, without padding.

    Args:
        chosen: experts that each layer chooses for a token. None: nothing is recorded.
        lengths: tokens of the rows, where a call has several. A call with one row has no padding.
    """
    loads: list[Tensor] = []
    if chosen is None:
        yield loads
        return

    def ask(module: Any, arguments: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return arguments, named | {"output_router_logits": True}

    def note(module: Any, arguments: Any, named: dict[str, Any], output: Any) -> None:
        rows, width = named["input_ids"].shape
        real = torch.arange(width) < torch.tensor(lengths)[:, None] if rows > 1 else None
        loads.append(_load_of(output.router_logits, chosen, real))

    with (
        decoder.register_forward_pre_hook(ask, with_kwargs=True),
        decoder.register_forward_hook(note, with_kwargs=True),
    ):
        yield loads


def _load_of(router_logits: Sequence[Tensor], chosen: int, real: Tensor | None) -> Tensor:
    """[2, E] As `recorded` says.

    Args:
        router_logits: of each layer, [..., E] in the order of the tokens.
        real: [rows, width] bool, False for padding. None: there is none.
    """
    counts, sums = [], []
    for logits in router_logits:
        of_layer = logits.flatten(0, -2)
        if real is not None:
            of_layer = of_layer[real.flatten().to(logits.device)]
        probabilities = of_layer.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        places = probabilities.detach().topk(chosen, dim=-1).indices.flatten()
        ones = probabilities.new_ones(len(places))
        counts.append(probabilities.new_zeros(logits.shape[-1]).scatter_add_(0, places, ones))
        sums.append(probabilities.sum(0))
    return torch.stack([torch.stack(counts).sum(0), torch.stack(sums).sum(0)])


def balance(counts: Tensor, probabilities: Tensor, chosen: int) -> Tensor:
    """The loss, or the share of it of those tokens that the probabilities are summed over.

    Args:
        counts: [E] Choices of each expert over all tokens and layers of the update.
        probabilities: [E] Sums over some or all of them.
        chosen: experts that each layer chooses for a token.
    """
    rows = counts.sum() / chosen  # tokens times layers
    loss: Tensor = len(counts) * torch.linalg.vecdot(counts / rows, probabilities / rows)
    return loss
