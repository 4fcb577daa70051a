"""The interface between the learner and an algorithm: columns by name, in two phases of a step.

First the algorithm gets the rows of the whole step without gradient (`prepare`). Then it gets the
micro-batches, one after the other, with gradient (`shares`). Shapes: B sequences of the step or of a
micro-batch, K the most trained tokens of one sequence. A row's trained tokens are left-aligned, in order.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trinity_db.trainer.recipes.parts.totals import Totals

Columns = Mapping[str, Tensor]
"""Tensors by name. `trainer/recipes/parts/columns.py` declares them."""

Shares = dict[str, Tensor]
"""Scalars by name, including "loss". Each is a micro-batch's share of a mean over the rows of an update: a
sum over the micro-batch, divided by a count of them. The learner sums the shares, so that the size of a
micro-batch does not change a result."""


class Algorithm(ABC):
    """Computes a loss from rows. Compositions override the methods that they need."""

    width = 1
    """Sequences of an item: 2 for pairs (chosen, rejected, chosen, rejected, ...), else 1."""
    reads_ends = False
    """Whether the algorithm reads one number at the end of each row, from a reward head, instead of the
    trained tokens. Then it is in `values` [B, 1] in `shares`."""

    @property
    @abstractmethod
    def needs(self) -> dict[str, str]:
        """Columns needed in addition to mask, logprobs, correct and weight, each with its first reader.

        An algorithm that needs `values` gets them in both phases.
        """

    @property
    def compares(self) -> frozenset[str]:
        """Columns needed by its advantages in addition to rewards and groups: rollouts, steps, states,
        greedy."""
        return frozenset()

    @property
    def compares_start(self) -> bool:
        """Whether `prepare` needs the column `proximal`.

        If not, a step with one update has no pass for it. `prepare` and `shares` get rows without it, and
        `shares` uses `logprobs`, which are the same numbers until the weights change. A step with several
        updates always has such a pass.
        """
        return False

    def advantages(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """[n] Compute the advantages of rows of rollout groups. The draw calls it and records the result.

        Args:
            columns: Rewards, groups, and the columns named by `compares`.
        """
        raise AssertionError("it draws no rollout groups")

    def prepare(self, rows: Columns) -> tuple[Columns, dict[str, float]]:
        """Return the rows of the whole step with derived columns, and metrics of these.

        The algorithm may clear the mask of a row. Such a row is not trained on, and does not count.
        """
        return rows, {}

    @abstractmethod
    def shares(self, rows: Columns, totals: Totals) -> Shares:
        """Compute a micro-batch's shares of the loss and of the algorithm's metrics."""

    def after_step(self, metrics: dict[str, float], totals: Totals) -> dict[str, float]:
        """Adapt the algorithm's own coefficients to the step's metrics. Return metrics of the
        coefficients."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The algorithm's own state, such as an adaptive coefficient."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        assert not state, "the algorithm has no state"
