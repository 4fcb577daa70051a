"""Sums the shares that an algorithm computes for each micro-batch, over all ranks."""

from collections.abc import Sequence

import torch

from trinity_db.trainer.algorithms.interface import Shares
from trinity_db.trainer.distribution.ranks import Ranks


def combined(parts: Sequence[Shares], ranks: Ranks) -> dict[str, float]:
    """Return the metrics of all micro-batches of all ranks. All ranks call it together.

    A metric whose name ends in /min or /max is their minimum or maximum. Any other is their sum.

    Args:
        parts: Shares of this rank's micro-batches.
    """
    everywhere = [part for rank in ranks.gather(_as_floats(parts)) for part in rank]
    if not everywhere:  # no row of the batch trains
        return {"loss": 0.0}
    columns = {name: [part[name] for part in everywhere] for name in everywhere[0]}
    return {
        name: min(values) if name.endswith("/min") else max(values) if name.endswith("/max") else sum(values)
        for name, values in columns.items()
    }


def _as_floats(parts: Sequence[Shares]) -> list[dict[str, float]]:
    """Read the tensors in one transfer, because each separate read makes the CPU wait for the GPU."""
    if not parts:
        return []
    names = list(parts[0])
    table = torch.stack([torch.stack([part[name].float() for name in names]) for part in parts])
    return [dict(zip(names, row, strict=True)) for row in table.tolist()]
