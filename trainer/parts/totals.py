"""Counts of the rows that an update learns from. Aggregations divide by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Totals:
    """Counts of all rows that one update of the weights learns from, over all its micro-batches."""

    tokens: int
    """Trained tokens."""
    sequences: int
    """Sequences with at least one trained token."""
    items: int
    """Sequences, or pairs where the algorithm takes pairs."""
    _: KW_ONLY
    desirable_items: int = 0
    """Those of the sequences that are labelled good."""
    expert_tokens: int = 0
    """Those of the tokens that belong to expert rows."""
    expert_sequences: int = 0
    """Those of the sequences that are expert rows."""
    same_version_tokens: int = 0
    """Those of the tokens that were sampled by the version whose weights the step starts from."""


def count(rows: Mapping[str, Tensor], chosen: Sequence[int], width: int) -> Totals:
    """Count some rows of a step. All of them are trained on.

    Args:
        rows: the columns of the whole step.
        width: sequences of an item.
    """
    columns = ("mask", "desirable", "is_expert", "same_version")
    found = {name: rows[name][list(chosen)] for name in columns if name in rows}
    lengths = found["mask"].sum(dim=1)
    expert = lengths[found["is_expert"]] if "is_expert" in found else lengths[:0]
    same = found["same_version"] & found["mask"] if "same_version" in found else lengths[:0]
    return Totals(
        tokens=int(lengths.sum()),
        sequences=int((lengths > 0).sum()),
        items=len(chosen) // width,
        desirable_items=int(found["desirable"].sum()) if "desirable" in found else 0,
        expert_tokens=int(expert.sum()),
        expert_sequences=int((expert > 0).sum()),
        same_version_tokens=int(same.sum()),
    )
