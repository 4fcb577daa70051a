"""The layers of a model: recompute them in the backward pass, or shard their weights over ranks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from trinity_db.errors import ConfigError
from trinity_db.models.unread import UnreadModel

T = TypeVar("T")


def layers_of(model: Any) -> list[torch.nn.Module]:
    """The repeated blocks of a model. The list is empty if transformers does not mark them."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def recompute(model: Any, above: int = 0) -> None:
    """Keep only the input of each layer, and compute its inner values again in the backward pass.

    transformers can do this in training mode only, and training mode would switch on dropout.

    Args:
        above: calls with at most so many tokens keep the inner values.

    Raises:
        ConfigError: transformers does not mark the layers of this model.
    """
    layers = layers_of(model)
    if not layers:
        raise ConfigError(
            f"trainer.gradient_checkpointing: {type(model).__name__} cannot do it; leave it out."
        )
    for layer in layers:
        layer.forward = _recomputed(layer.forward, above)


def compile_layers(model: Any) -> None:
    """Let `torch.compile` fuse what each layer computes outside of its attention.

    All layers share what is compiled, for any number of tokens. Call it before `recompute`, and after the
    trials of `Forward`, which change the attention.

    Raises:
        ConfigError: transformers does not mark the layers of this model.
    """
    layers = layers_of(model)
    if not layers:
        raise ConfigError(f"trainer.compile: {type(model).__name__} has no marked layers; leave it out.")
    for layer in layers:
        layer.forward = torch.compile(layer.forward, dynamic=True)


def store_in(model: Any, dtype: torch.dtype) -> None:
    """Keep the weights of a frozen model's linear layers in the dtype that products are computed in.

    In 16 bits this is half the memory, and the same bits come out: autocast rounds a weight at each use. The
    embeddings stay in float32, because a vector that is looked up in them is not rounded.
    """
    if dtype == torch.float32:
        return
    embedded = model.get_input_embeddings().weight
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module.weight is not embedded:
            module.weight.data = module.weight.data.to(dtype)


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

    def sum_gradients_after(self, is_last: bool) -> None:
        """Before a backward pass: whether the ranks sum their gradients of the passes so far after it.

        Until then each rank adds up the gradients of whole weights, 4 bytes a parameter.
        """
        sharded = cast(FSDPModule, self)  # which fully_shard makes of it
        sharded.set_is_last_backward(is_last)
        sharded.set_requires_gradient_sync(is_last)


@dataclass(frozen=True)
class Sharding:
    """How weights are shared among ranks (PyTorch's FSDP2). Each rank keeps its part.

    Weights are gathered and gradients are summed in float32. So the ranks compute what one process computes.
    """

    mesh: DeviceMesh
    device: str
    offloads: bool
    """Whether the parts lie in the memory of the CPU, with gradients and optimizer, which steps there."""

    def of(self, unread: UnreadModel, *others: torch.nn.Module) -> Root:
        """Read a model, and shard it and the other modules, layer by layer.

        The forward pass gathers one layer at a time, and the backward pass does so again. Between two calls
        no rank has whole weights.
        """
        offload = CPUOffloadPolicy(self.mesh.device_type == "cuda") if self.offloads else OffloadPolicy()
        how: dict[str, Any] = {"mesh": self.mesh, "offload_policy": offload}
        for layer in layers_of(unread.model):
            unread.read(layer, self.device)
            fully_shard(layer, **how)
        unread.read(unread.model, self.device)
        root = Root([unread.model, *others])
        fully_shard(root, reshard_after_forward=True, **how)
        return root


def _recomputed(forward: Any, above: int) -> Any:
    def recomputed(*args: Any, **kwargs: Any) -> Any:
        hidden: torch.Tensor = args[0] if args else kwargs["hidden_states"]  # [B, T, H]
        if hidden.shape[:-1].numel() <= above:
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    return recomputed
