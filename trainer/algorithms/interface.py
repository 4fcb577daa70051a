"""The interface between the learner and an algorithm: columns by name, in two phases of a step.

First the algorithm gets the rows of the whole step without gradient (`prepare`). Then it gets one micro-batch
after the other with gradient (`shares`). Shapes: B sequences of the step or of a micro-batch, K the most
trained tokens of one sequence. A row's trained tokens stand at its left, in order.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trinity_db.trainer.parts.totals import Totals

Columns = Mapping[str, Tensor]
"""Tensors by their names. `trainer/parts/columns.py` declares them."""

Shares = dict[str, Tensor]
"""Scalars by name, with "loss" among them. Each is a micro-batch's share of a mean over the rows of an
update: a sum over the micro-batch, divided by a count of them. The learner adds the shares up. So the
size of a micro-batch does not change a result."""


class Algorithm(ABC):
    """Computes a loss from rows. Compositions override the methods that they need."""

    width = 1
    """Sequences of an item: 2 for pairs (chosen, rejected, chosen, rejected, ...), else 1."""
    reads_ends = False
    """Whether it reads one number at the end of each row, of a reward head, in place of the trained tokens.
    Then `values` [B, 1] has it in `shares`."""

    @property
    @abstractmethod
    def needs(self) -> dict[str, str]:
        """The columns that it reads beyond mask, logprobs, correct and weight, each with its first reader.

        An algorithm that needs `values` gets them in both phases.
        """

    @property
    def compares(self) -> frozenset[str]:
        """The columns that its advantages read beyond rewards and groups: rollouts, steps, states, greedy."""
        return frozenset()

    @property
    def compares_start(self) -> bool:
        """Whether `prepare` needs the column `proximal`.

        If not, a step with one update has no pass for it. `prepare` and `shares` get rows without it, and
        `shares` takes `logprobs`, which are the same numbers until the weights change. Before several updates
        there is always such a pass.
        """
        return False

    def advantages(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """[n] Compute the advantages of rows of rollout groups. The draw calls it and records the result.

        Args:
            columns: rewards, groups, and the columns that `compares` names.
        """
        raise AssertionError("it draws no rollout groups")

    def prepare(self, rows: Columns) -> tuple[Columns, dict[str, float]]:
        """Return the rows of the whole step with the columns that follow from them, and metrics of these.

        The algorithm may clear the mask of a row. Such a row is not trained on, and does not count.
        """
        return rows, {}

    @abstractmethod
    def shares(self, rows: Columns, totals: Totals) -> Shares:
        """Compute a micro-batch's shares of the loss and of the algorithm's metrics."""

    def after_step(self, metrics: dict[str, float], totals: Totals) -> dict[str, float]:
        """Adapt the algorithm's own coefficients to the step's metrics. Return metrics of these."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The algorithm's own state, such as an adaptive coefficient."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        assert not state, "the algorithm has no state"
