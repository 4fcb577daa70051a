"""What passes between the learner and an algorithm: columns by name, in two phases of a step.

First the algorithm sees the whole step's rows without gradient (`prepare`), then micro-batch by
micro-batch with it (`shares`). Shapes: B sequences of the step or of a micro-batch, K the most
trained tokens of one; a row's trained tokens stand at its left, in order.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Columns = Mapping[str, Tensor]
"""Tensors by the names in `columns.py`. The positional parameters of a part name those that it reads."""

Shares = dict[str, Tensor]
"""Scalars by name, "loss" among them. Each is this micro-batch's share of a mean over the whole step:
its sum divided by the step's total. The learner only adds shares up, so that the size of a
micro-batch cannot change a result."""


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
    """Of the tokens, those of expert rows."""
    expert_sequences: int = 0
    """Of the sequences, those that are expert rows."""


class Algorithm(ABC):
    """From rows to a loss. What most compositions do nothing about has its place here."""

    width = 1
    """Sequences of an item: 2 where they come in pairs, chosen and rejected in turn, else 1."""

    @property
    @abstractmethod
    def needs(self) -> dict[str, str]:
        """The columns that it reads beyond mask, logprobs, correct and weight, each with who asks for it.

        Whoever reads `values` has them in both phases.
        """

    @property
    def compares(self) -> frozenset[str]:
        """What its advantages read beyond rewards and groups: of rollouts, steps, states and greedy."""
        return frozenset()

    def advantages(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """[n] Of rows of rollout groups, at the draw, from rewards, groups and what it compares; recorded."""
        raise AssertionError("it draws no rollout groups")

    def prepare(self, rows: Columns) -> tuple[Columns, dict[str, float]]:
        """The whole step's rows with what follows from them, and metrics of that.

        The mask may lose rows: they are not trained on, and do not count.
        """
        return rows, {}

    @abstractmethod
    def shares(self, rows: Columns, totals: Totals) -> Shares:
        """The micro-batch's share of the loss and of the algorithm's metrics."""

    def learned(self, metrics: dict[str, float], totals: Totals) -> dict[str, float]:
        """Told after each step what its metrics were; adapts what it adapts, and returns metrics of that."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What it has learned itself, such as an adaptive coefficient."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        assert not state, "nothing is learned but the weights"
