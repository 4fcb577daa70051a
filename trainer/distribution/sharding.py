"""Gradients, weights and optimizer state of sharded parameters (PyTorch's FSDP2), in parts and whole.

A sharded parameter is a DTensor, of which each rank has a part. The functions also support plain parameters:
each rank has a copy of them (like in DDP), or there is one process.
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
    """Replace each gradient with its sum over all ranks.

    FSDP has already averaged the gradients of sharded parameters over the ranks.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    for mean in gradients:
        if isinstance(mean, DTensor):
            mean.mul_(ranks.size)
    ranks.sum_all(gradient for gradient in gradients if not isinstance(gradient, DTensor))


def clip(parameters: Sequence[torch.nn.Parameter], max_norm: float, loss_scale: float = 1.0) -> float:
    """Scale the gradient down to `max_norm` if it is larger. Return its norm before.

    Args:
        loss_scale: Power of two by which the loss was multiplied; the gradient is divided by it first.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if loss_scale != 1.0:
        torch._foreach_div_(gradients, loss_scale)
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def whole_tensors(state: Any, ranks: Ranks) -> Any:
    """Replace each sharded tensor in a nested structure: with the whole tensor on the first rank, else with
    None.

    Whole tensors are on the CPU. All ranks call it together.
    """

    def whole(leaf: Any) -> Any:
        if not isinstance(leaf, DTensor):
            return leaf
        tensor = leaf.full_tensor()  # a collective call
        return tensor.cpu() if ranks.rank == 0 else None

    return tree_map(whole, state)


def sharded_state(state: dict[str, Any], parameters: Sequence[torch.nn.Parameter]) -> dict[str, Any]:
    """In an optimizer's state, replace each whole tensor of a sharded parameter with this rank's part.

    Tensors that are already sharded are kept.
    """

    def part(value: Any, parameter: torch.nn.Parameter) -> Any:
        is_like_it = isinstance(value, torch.Tensor) and value.shape == parameter.shape
        if not isinstance(parameter, DTensor) or isinstance(value, DTensor) or not is_like_it:
            return value
        return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)

    of_parameters = {
        number: {name: part(value, parameters[number]) for name, value in values.items()}
        for number, values in state["state"].items()
    }
    return state | {"state": of_parameters}


@contextmanager
def whole_weights(modules: Sequence[torch.nn.Module], ranks: Ranks) -> Iterator[None]:
    """Within this `with`, sharded parameters are plain ones on the CPU of the first rank, ready to be saved.

    They are copies. Tied parameters stay tied. The other ranks contribute their parts, and their modules are
    unchanged.
    """
    places: list[tuple[torch.nn.Module, str, Any]] = [
        (module, name, parameter)
        for root in modules
        for module in root.modules()
        for name, parameter in module._parameters.items()
        if isinstance(parameter, DTensor)
    ]
    parameters = {id(parameter): parameter for _, _, parameter in places}
    copies = {key: whole_tensors(parameter.detach(), ranks) for key, parameter in parameters.items()}
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
