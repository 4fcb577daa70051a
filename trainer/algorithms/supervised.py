"""Supervised: raises the likelihood of demonstrated responses, or of the policy's own best responses."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinity_db.trainer.algorithms.interface import Algorithm, Columns, Shares
from trinity_db.trainer.recipes.parts.aggregation import token_mean
from trinity_db.trainer.recipes.parts.kinds import needs, part
from trinity_db.trainer.recipes.parts.totals import Totals
from trinity_db.trainer.recipes.recipes import SupervisedConfig


class Supervised(Algorithm):
    """Imitates imported rows, or rows of rollout groups with a reward above a limit."""

    def __init__(self, config: SupervisedConfig) -> None:
        self._limit = config.reward_above
        self._loss = part("supervised loss", config.loss)
        self._mean = part("aggregation", config.aggregation)

    @property
    def needs(self) -> dict[str, str]:
        readers = needs([self._loss])
        return {"entropy": readers["entropy"]} if "entropy" in readers else {}

    def advantages(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        assert self._limit is not None
        return (columns["rewards"] > self._limit).astype(np.float64)

    def prepare(self, rows: Columns) -> tuple[Columns, dict[str, float]]:
        """Mask rows without an advantage: they are not trained on, and do not count."""
        if self._limit is None:
            return rows, {}
        return {**rows, "mask": rows["mask"] & (rows["advantages"] > 0)}, {}

    def shares(self, rows: Columns, totals: Totals) -> Shares:
        mask = rows["mask"]
        values = self._loss(rows) * rows["weight"][:, None]
        return {
            "loss": self._mean({"values": values, "mask": mask, "totals": totals}),
            "mean_token_accuracy": token_mean(rows["correct"].to(values), mask, totals),
            "entropy": token_mean(rows["entropy"], mask, totals),
        }
