"""Counts of the rows in an update, used as denominators by aggregations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Totals:
    """Counts of all rows in one update of the weights, over all its micro-batches."""

    tokens: int
    """Trained tokens."""
    sequences: int
    """Sequences with at least one trained token."""
    items: int
    """Sequences, or pairs if the algorithm uses pairs."""
    _: KW_ONLY
    desirable_items: int = 0
    """Sequences labelled good."""
    expert_tokens: int = 0
    """Trained tokens of expert rows."""
    expert_sequences: int = 0
    """Sequences that are expert rows."""
    same_version_tokens: int = 0
    """Trained tokens sampled by the version whose weights the step starts from."""


def count(rows: Mapping[str, Tensor], chosen: Sequence[int], width: int) -> Totals:
    """Count the chosen rows of a step. All of them are trained on.

    Args:
        rows: Columns of the whole step.
        width: Sequences per item.
    """
    columns = ("mask", "desirable", "is_expert", "same_version")
    columns_of_rows = {name: rows[name][list(chosen)] for name in columns if name in rows}
    lengths = columns_of_rows["mask"].sum(dim=1)
    expert = lengths[columns_of_rows["is_expert"]] if "is_expert" in columns_of_rows else lengths[:0]
    same = (
        columns_of_rows["same_version"] & columns_of_rows["mask"]
        if "same_version" in columns_of_rows
        else lengths[:0]
    )
    return Totals(
        tokens=int(lengths.sum()),
        sequences=int((lengths > 0).sum()),
        items=len(chosen) // width,
        desirable_items=int(columns_of_rows["desirable"].sum()) if "desirable" in columns_of_rows else 0,
        expert_tokens=int(expert.sum()),
        expert_sequences=int((expert > 0).sum()),
        same_version_tokens=int(same.sum()),
    )
