"""Tensors on disk in parts: each rank writes its own rows, and any number of ranks can read them.

A sharded parameter is a DTensor; each rank has some of its rows, in the order of the ranks (FSDP2).
"""

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from trinity_db.models.weights_file import WeightsFile
from trinity_db.trainer.distribution.ranks import Ranks


def own_part(tensors: Mapping[str, Tensor], ranks: Ranks) -> WeightsFile:
    """Return the file of this rank: its rows of sharded tensors, and on the first rank all other tensors."""
    own = {
        name: tensor.to_local() if isinstance(tensor, DTensor) else tensor
        for name, tensor in tensors.items()
        if ranks.rank == 0 or isinstance(tensor, DTensor)
    }
    return WeightsFile(own)


class Parts:
    """The files of all ranks, read together. A tensor that is in only one file is whole there.

    Args:
        files: Files in the order of the ranks.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._holders: dict[str, list[Any]] = {}
        for file in files:
            opened: Any = safe_open(file, "pt")
            for name in opened.keys():  # noqa: SIM118 - not a dict
                self._holders.setdefault(name, []).append(opened)

    @property
    def names(self) -> Set[str]:
        """Names of all tensors."""
        return self._holders.keys()

    def read(self, name: str, parameter: Tensor) -> Tensor:
        """Read a tensor of the optimizer: sharded like its parameter if it has the same shape, else whole.

        The result is a copy. Tensors of safetensors map the file, which would keep its disk space after
        deletion, and an optimizer on the CPU uses what it loads without copying.
        """
        if not isinstance(parameter, DTensor) or self._shape(name) != list(parameter.shape):
            return self._rows(name, 0, None).clone()
        rows = self._own_rows(name, parameter).to(parameter.to_local().device)
        return DTensor.from_local(
            rows,
            parameter.device_mesh,
            parameter.placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )

    @torch.no_grad()
    def copy_into(self, name: str, tensor: Tensor) -> None:
        """Restore a tensor in place; for a sharded tensor, this rank's rows."""
        if isinstance(tensor, DTensor):
            tensor.to_local().copy_(self._own_rows(name, tensor))
        else:
            tensor.copy_(self._rows(name, 0, None))

    def _own_rows(self, name: str, tensor: DTensor) -> Tensor:
        shape, offset = compute_local_shape_and_global_offset(
            tensor.shape, tensor.device_mesh, tensor.placements
        )
        return self._rows(name, offset[0], offset[0] + shape[0]) if shape[0] else torch.empty(shape)

    def _rows(self, name: str, start: int, end: int | None) -> Tensor:
        """Return the rows from `start` up to `end`, exclusive; None: all."""
        holders = self._holders[name]
        if len(holders) == 1 and start == 0 and end is None:
            whole: Tensor = holders[0].get_tensor(name)
            return whole
        slices, first = [], 0
        for file in holders:
            part = file.get_slice(name)
            rows = part.get_shape()[0]
            low = max(start - first, 0)
            high = rows if end is None else min(end - first, rows)
            if low < high:
                slices.append(part[low:high])
            first += rows
        return torch.cat(slices)

    def _shape(self, name: str) -> list[int]:
        shapes = [file.get_slice(name).get_shape() for file in self._holders[name]]
        return [sum(shape[0] for shape in shapes), *shapes[0][1:]] if len(shapes) > 1 else shapes[0]
