"""The loss that balances the load of experts, added to that of the algorithm (`trinity_db/models/router.py`).

Each update starts with a pass without gradient, in which the learner counts how often each expert is chosen.
Then each micro-batch adds its share.
"""

import logging
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from trinity_db.errors import ConfigError
from trinity_db.models.layers import Root
from trinity_db.models.router import balance, coefficient_of, experts_per_token
from trinity_db.trainer.algorithms.interface import Shares
from trinity_db.trainer.config import TrainerConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RouterLoss:
    """Coefficient of the loss, and the number of experts that a layer chooses for a token."""

    coefficient: float
    chosen: int

    def added(self, shares: Shares, load: Tensor, counts: Tensor) -> Shares:
        """Return a micro-batch's shares with this loss: weighted in `loss`, and unweighted as `aux_loss`."""
        share = balance(counts.to(load.dtype), load[1], self.chosen)
        return {**shares, "loss": shares["loss"] + self.coefficient * share, "aux_loss": share.detach()}


def router_loss_of(model: Any, config: TrainerConfig, root: Root | None) -> RouterLoss | None:
    """Return the loss of a model's routers, or None.

    Args:
        root: Module with this rank's part of the weights, if they are sharded.

    Raises:
        ConfigError: if `trainer.router_aux_loss_coef` is set, but the model has no such loss.
    """
    configured = config.router_aux_loss_coef
    coefficient = coefficient_of(model.config) if configured is None else configured
    if coefficient == 0:
        return None
    chosen = root(lambda: experts_per_token(model)) if root else experts_per_token(model)
    if chosen is None and configured is not None:
        raise ConfigError(
            f"trainer.router_aux_loss_coef: transformers computes no such loss for {type(model).__name__}; "
            "remove it."
        )
    if chosen is None:
        logger.warning("%s: router_aux_loss_coef of its config.json has no effect", type(model).__name__)
        return None
    logger.info("the load of experts is balanced, with the coefficient %s", coefficient)
    return RouterLoss(coefficient, chosen)
