"""The content of a version's file of weights.

A version may have its weights in fewer bits than the trainer (`trainer.publish_dtype`). The trainer's own
weights are not changed by a single bit.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from trinity_db.models.model_folder import stays_exact
from trinity_db.models.rounding import round_to, seed_names, without_adapter


@contextmanager
def rounded(
    model: Any, dtype: torch.dtype, merged: Iterable[tuple[torch.nn.Parameter, Tensor]] = ()
) -> Iterator[None]:
    """Within this `with`, the model's parameters have the values in a version's file.

    The exact values are kept on the CPU. Each rank rounds its part of a sharded parameter.

    Args:
        merged: Parameters that have another value in the file, and this value.
    """
    exact: dict[int, tuple[Tensor, Tensor]] = {}

    def put(parameter: Tensor, value: Tensor) -> None:
        own, new = local_part(parameter), local_part(value)
        exact.setdefault(id(parameter), (own, own.to("cpu", copy=True)))
        own.copy_(new)

    with torch.no_grad():
        try:
            for parameter, value in merged:
                put(parameter, value)
            seeds = seed_names(model)
            for name, parameter in model.named_parameters():
                own_name = without_adapter(name)
                if not stays_exact(model, own_name):
                    put(parameter, _rounded(parameter, seeds[own_name], dtype))
            yield
        finally:
            for own, before in exact.values():
                own.copy_(before)


def _rounded(parameter: Tensor, seed_name: str, dtype: torch.dtype) -> Tensor:
    """Return the values of this rank's rows in the file."""
    return round_to(local_part(parameter), seed_name, dtype, first_element(parameter))


def first_element(parameter: Tensor) -> int:
    """Return the number of elements of a parameter before this rank's rows; 0 if it is not sharded."""
    if not isinstance(parameter, DTensor):
        return 0
    _, offset = compute_local_shape_and_global_offset(
        parameter.shape, parameter.device_mesh, parameter.placements
    )
    return offset[0] * math.prod(parameter.shape[1:]) if offset else 0


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's rows of a tensor; all if it is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()
