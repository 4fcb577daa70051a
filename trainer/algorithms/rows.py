"""What passes between the learner and an algorithm.

Shapes: B sequences of one micro-batch, K columns: the positions at which any of them trains.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

Shares = dict[str, Tensor]
"""Scalars by name, "loss" among them. Each is this micro-batch's share of a mean over the whole step:
its sum divided by the step's total. The learner only adds shares up, so that the size of a
micro-batch cannot change a result."""


@dataclass(frozen=True)
class Rows:
    """The sequences of one micro-batch, as the policy being trained sees them."""

    mask: Tensor
    """[B, K] bool, True where a token is trained. Whatever stands elsewhere must not reach a result."""
    logprobs: Tensor
    """[B, K] Log-probability of each token under the policy being trained; the gradient flows here."""
    entropy: Tensor
    """[B, K] Entropy of the distribution each token was taken from, in nats. No gradient."""
    correct: Tensor
    """[B, K] bool, True where the token is also the likeliest one."""
    behaviour: Tensor | None = None
    """[B, K] Log-probability under the policy that sampled the token, as stored then."""
    reference: Tensor | None = None
    """[B, K] Log-probability under the frozen starting model."""
    advantages: Tensor | None = None
    """[B] Advantage of each sequence."""


@dataclass(frozen=True)
class Totals:
    """Counts of a whole optimizer step, over all its micro-batches."""

    tokens: int
    """Trained tokens."""
    items: int
    """Sequences, or pairs where the algorithm takes pairs."""


class Algorithm(Protocol):
    """From rows to a loss."""

    @property
    def sequences_per_item(self) -> int:
        """2 where sequences come in pairs, chosen and rejected in turn, that stay together; else 1."""

    @property
    def needs_reference(self) -> bool:
        """Whether the learner must compute `Rows.reference`."""

    def shares(self, rows: Rows, totals: Totals) -> Shares:
        """The micro-batch's share of the loss and of the algorithm's metrics."""
