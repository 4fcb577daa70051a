"""Gradients and optimizer state of weights that ranks share (PyTorch's FSDP2), in parts and whole.

A sharded parameter is a DTensor. What is asked of parameters here holds for those that are not, too: the
ranks have copies of these (as DDP has), or there is one process.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map

from trinity_db.trainer.distribution.ranks import Ranks


@torch.no_grad()
def sum_gradients(parameters: Sequence[torch.nn.Parameter], ranks: Ranks) -> None:
    """Of all ranks. FSDP has taken the mean over the ranks of those of sharded parameters."""
    gradients = [one.grad for one in parameters if one.grad is not None]
    for mean in gradients:
        if isinstance(mean, DTensor):
            mean.mul_(ranks.size)
    ranks.sum_all(one for one in gradients if not isinstance(one, DTensor))


def clip(parameters: Sequence[torch.nn.Parameter], max_norm: float) -> float:
    """Scale the gradient down to a norm when it is longer; returns its norm before."""
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def collected(state: Any, ranks: Ranks) -> Any:
    """A structure with whole tensors, on the CPU of the first rank, for the sharded ones; None elsewhere."""

    def whole(leaf: Any) -> Any:
        if not isinstance(leaf, DTensor):
            return leaf
        tensor = leaf.full_tensor()  # by all ranks together
        return tensor.cpu() if ranks.rank == 0 else None

    return tree_map(whole, state)


def scattered(state: dict[str, Any], parameters: Sequence[torch.nn.Parameter]) -> dict[str, Any]:
    """An optimizer's whole state with its parts of what belongs to sharded parameters."""

    def part(value: Any, parameter: torch.nn.Parameter) -> Any:
        if not isinstance(parameter, DTensor) or value.shape != parameter.shape:
            return value
        return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)

    of_parameters = {
        number: {name: part(value, parameters[number]) for name, value in values.items()}
        for number, values in state["state"].items()
    }
    return state | {"state": of_parameters}


@contextmanager
def whole(modules: Sequence[torch.nn.Module], ranks: Ranks) -> Iterator[None]:
    """Within a `with`, on the first rank, sharded parameters are plain ones on the CPU, to be saved.

    They are copies, and those that were tied still are. The other ranks only have their parts taken.
    """
    places: list[tuple[torch.nn.Module, str, Any]] = [
        (module, name, parameter)
        for root in modules
        for module in root.modules()
        for name, parameter in module._parameters.items()
        if isinstance(parameter, DTensor)
    ]
    parameters = {id(parameter): parameter for _, _, parameter in places}
    copies = {key: collected(parameter.detach(), ranks) for key, parameter in parameters.items()}
    if ranks.rank > 0:
        yield
        return
    for module, name, parameter in places:
        module._parameters[name] = torch.nn.Parameter(copies[id(parameter)], parameter.requires_grad)
    try:
        yield
    finally:
        for module, name, parameter in places:
            module._parameters[name] = parameter
