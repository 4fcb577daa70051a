"""What a version has in the file of its weights.

A version may have its weights in fewer bits than the trainer (`trainer.publish_dtype`). The trainer's own
stay as they are, bit for bit.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from trinity_db.models.model_folder import stays_exact


@contextmanager
def rounded(
    model: Any, dtype: torch.dtype, merged: Iterable[tuple[torch.nn.Parameter, Tensor]] = ()
) -> Iterator[None]:
    """Within this `with`, the model's parameters have the values that they have in a version's file.

    The exact values wait on the CPU. Of a sharded parameter each rank rounds its part.

    Args:
        merged: parameters that have another value in the file, and this value.
    """
    exact: dict[int, tuple[Tensor, Tensor]] = {}

    def put(parameter: Tensor, value: Tensor) -> None:
        own, new = _local(parameter), _local(value)
        exact.setdefault(id(parameter), (own, own.to("cpu", copy=True)))
        own.copy_(new)

    with torch.no_grad():
        try:
            for parameter, value in merged:
                put(parameter, value)
            for name, parameter in model.named_parameters():
                if not stays_exact(model, name):
                    put(parameter, parameter.to(dtype))
            yield
        finally:
            for own, before in exact.values():
                own.copy_(before)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()
