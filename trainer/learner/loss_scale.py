"""Loss scaling in float16, so that small gradients do not become zero and large ones not infinite.

Below 6e-8 a float16 number is zero. So the loss is multiplied by a power of two before the backward pass, and
the gradient, which is in float32, is divided by it. This is the dynamic loss scaling of mixed precision
(Micikevicius et al., 2018, arXiv 1710.03740), except that an update whose gradient overflows is not skipped:
its gradient is recomputed with a smaller factor, so that no row of a batch is lost.
"""

from typing import Any

START = 2.0**16
UPDATES_TO_GROW = 400
"""Consecutive updates without an overflow after which the factor doubles."""


class LossScale:
    """The loss scale of a run: 1 in any format except float16.

    Args:
        dtype: Number format of the forward and backward passes.
    """

    def __init__(self, dtype: str) -> None:
        self._scales = dtype == "float16"
        self.factor = START if self._scales else 1.0
        self._updates = 0

    def lower(self) -> bool:
        """Halve the factor after an overflow. Return whether it could be halved."""
        if self.factor <= 1.0:
            return False
        self.factor /= 2
        self._updates = 0
        return True

    def count_update(self) -> None:
        """Count an update with a finite gradient. The factor doubles after UPDATES_TO_GROW."""
        if not self._scales:
            return
        self._updates += 1
        if self._updates >= UPDATES_TO_GROW:
            self.factor *= 2
            self._updates = 0

    def metrics(self) -> dict[str, float]:
        return {"loss_scale": self.factor} if self._scales else {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for `load_state_dict`; empty in any format except float16."""
        return {"factor": self.factor, "updates": self._updates} if self._scales else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`. After another format the factor is the default."""
        if self._scales and state:
            self.factor, self._updates = state["factor"], state["updates"]
