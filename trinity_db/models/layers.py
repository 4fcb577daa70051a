"""The layers of a model: recompute them in the backward pass, or leave each rank a part of their weights."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from trinity_db.errors import ConfigError

T = TypeVar("T")


def layers_of(model: Any) -> list[torch.nn.Module]:
    """The repeated blocks of a model; none where transformers does not mark them."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def recompute(model: Any) -> None:
    """Keep only the input of each layer, and compute the rest again in the backward pass.

    transformers does this in training mode only, which would switch on dropout.

    Raises:
        ConfigError: transformers does not mark the layers of this model.
    """
    layers = layers_of(model)
    if not layers:
        raise ConfigError(
            f"trainer.gradient_checkpointing: {type(model).__name__} cannot do it; leave it out."
        )
    for layer in layers:
        layer.forward = _recomputed(layer.forward)


class Root(torch.nn.Module):
    """The module around what is computed with sharded ones: while it is called, the weights are whole.

    FSDP gathers the weights outside of layers (embeddings, norm, head) when the outermost module is called.
    `Forward` calls parts of a model and reads the weight of its head, so the outermost module is this one.
    """

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.inner = torch.nn.ModuleList(modules)

    def forward(self, compute: Callable[[], T]) -> T:
        return compute()


def shard(modules: Sequence[torch.nn.Module], layers: Sequence[torch.nn.Module], mesh: DeviceMesh) -> Root:
    """Leave each rank its part of the modules' weights (PyTorch's FSDP2).

    The forward pass gathers the layers one at a time, and the backward pass does so again. Between two calls
    no rank has whole weights.
    """
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    root = Root(modules)
    fully_shard(root, mesh=mesh, reshard_after_forward=True)
    return root


def _recomputed(forward: Any) -> Any:
    def recomputed(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    return recomputed
