"""The layers of a model: recompute them in the backward pass, or shard their weights over ranks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from trinity_db.errors import ConfigError
from trinity_db.models.lazy_weights import UnreadModel

T = TypeVar("T")


def layers_of(model: Any) -> list[torch.nn.Module]:
    """Return the repeated blocks of a model; empty if transformers does not mark them."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def recompute(model: Any, above: int = 0) -> None:
    """Keep only the input of each layer, and recompute its activations in the backward pass.

    transformers supports this only in training mode, which would enable dropout.

    Args:
        above: calls with at most this many tokens keep the activations.

    Raises:
        ConfigError: if transformers does not mark the layers of this model.
    """
    layers = layers_of(model)
    if not layers:
        raise ConfigError(
            f"trainer.gradient_checkpointing: {type(model).__name__} cannot do it; leave it out."
        )
    for layer in layers:
        layer.forward = _recomputed(layer.forward, above)


def compile_layers(model: Any) -> None:
    """Let `torch.compile` fuse each layer's operations outside attention.

    All layers share the compiled code, for any number of tokens. Call it before `recompute`, and after the
    trials of `Forward`, which change the attention.

    Raises:
        ConfigError: if transformers does not mark the layers of this model.
    """
    layers = layers_of(model)
    if not layers:
        raise ConfigError(f"trainer.compile: {type(model).__name__} has no marked layers; leave it out.")
    for layer in layers:
        layer.forward = torch.compile(layer.forward, dynamic=True)


def store_in(model: Any, dtype: torch.dtype) -> None:
    """Keep the weights of a frozen model's linear layers in the dtype of products.

    In 16 bits this takes half the memory with bitwise equal results: autocast rounds weights at each use. The
    embeddings stay in float32, because looked-up vectors are not rounded.
    """
    if dtype == torch.float32:
        return
    embedded = model.get_input_embeddings().weight
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module.weight is not embedded:
            module.weight.data = module.weight.data.to(dtype)


class Root(torch.nn.Module):
    """Outermost module of sharded modules. Its call runs a function while the outer weights are gathered.

    FSDP gathers the weights outside layers (embeddings, norm, head) when the outermost module is called.
    `Forward` calls parts of a model and reads its head's weight, so it calls this module rather than the
    model.
    """

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.inner = torch.nn.ModuleList(modules)

    def forward(self, compute: Callable[[], T]) -> T:
        return compute()

    def sum_gradients_after(self, is_last: bool) -> None:
        """Set before a backward pass whether the ranks sum their accumulated gradients after it.

        Until then each rank accumulates gradients of whole weights, 4 bytes per parameter.
        """
        sharded = cast(FSDPModule, self)  # fully_shard changes its class
        sharded.set_is_last_backward(is_last)
        sharded.set_requires_gradient_sync(is_last)


@dataclass(frozen=True)
class Sharding:
    """Sharding of weights over ranks (PyTorch's FSDP2).

    Weights are gathered and gradients are summed in float32, so the ranks compute the same as one process.
    """

    mesh: DeviceMesh
    device: str
    offloads: bool
    """Whether shards, gradients and optimizer are in CPU memory, where the optimizer steps."""

    def of(self, unread: UnreadModel, *others: torch.nn.Module) -> Root:
        """Read a model, and shard it and the other modules layer by layer.

        Forward and backward pass each gather one layer at a time. Between calls no rank has whole weights.
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
