"""Advantages of a run that a program outside of trinity-db trains. It has no loss."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinity_db.trainer.algorithms.interface import Algorithm, Columns, Shares
from trinity_db.trainer.recipes.parts.columns import Origin, names_of
from trinity_db.trainer.recipes.parts.kinds import part
from trinity_db.trainer.recipes.parts.totals import Totals
from trinity_db.trainer.recipes.recipes import ExternalConfig


class External(Algorithm):
    """Computes what a draw records. The program reads it with the rows."""

    def __init__(self, config: ExternalConfig) -> None:
        self._advantage = part("advantage", config.advantage)

    @property
    def needs(self) -> dict[str, str]:
        return {}

    @property
    def compares(self) -> frozenset[str]:
        return names_of(Origin.ATTEMPT).intersection(self._advantage.columns)

    def advantages(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        values: NDArray[np.float64] = self._advantage(columns)
        return values

    def shares(self, rows: Columns, totals: Totals) -> Shares:
        raise AssertionError("another program computes the loss")
