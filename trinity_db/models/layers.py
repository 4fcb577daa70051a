"""The layers of a model: recompute them in the backward pass, or shard their weights over ranks."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from trinity_db.errors import ConfigError

T = TypeVar("T")


def layers_of(model: Any) -> list[torch.nn.Module]:
    """The repeated blocks of a model. The list is empty if transformers does not mark them."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def recompute(model: Any) -> None:
    """Keep only the input of each layer, and compute its inner values again in the backward pass.

    transformers can do this in training mode only, and training mode would switch on dropout.

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
    """The outermost module of sharded modules. Its call runs a function while the outer weights are whole.

    FSDP gathers the weights outside of layers (embeddings, norm, head) when the outermost module is called.
    `Forward` calls parts of a model and reads the weight of its head. So it must not call the model itself,
    and calls this module instead.
    """

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.inner = torch.nn.ModuleList(modules)

    def forward(self, compute: Callable[[], T]) -> T:
        return compute()


def shard(modules: Sequence[torch.nn.Module], layers: Sequence[torch.nn.Module], mesh: DeviceMesh) -> Root:
    """Shard the modules' weights over the ranks (PyTorch's FSDP2). Each rank keeps its part.

    The forward pass gathers one layer at a time, and the backward pass does so again. Between two calls no
    rank has whole weights.
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
