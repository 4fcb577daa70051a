"""What aggregations divide by: the counts of a step."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Totals:
    """Counts of a whole optimizer step, over all its micro-batches."""

    tokens: int
    """Trained tokens."""
    sequences: int
    """Sequences with at least one trained token."""
    items: int
    """Sequences, or pairs where the algorithm takes pairs."""
    expert_tokens: int = 0
    """Those of the tokens that belong to expert rows."""
    expert_sequences: int = 0
    """Those of the sequences that are expert rows."""
    same_version_tokens: int = 0
    """Those of the tokens that were sampled by the version whose weights the step starts from."""
