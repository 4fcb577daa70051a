"""Replays the experts that engines chose for tokens (`trinity_db/models/routing.py`).

Recorded choices are replayed, or only compared with the choices of the trainer's routers. Routers are looked
up when the first rows with a recorded choice arrive: all ranks see the same batch, and do this together.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from trinity_db.arrays.codec import Payload
from trinity_db.errors import ConfigError
from trinity_db.models.forward import Forward, Scored
from trinity_db.models.layers import Root
from trinity_db.models.routing import Routers, routers_of
from trinity_db.trainer.algorithms.interface import Shares
from trinity_db.trainer.config import TrainerConfig

logger = logging.getLogger(__name__)

METRIC = "sampling/routing_differs"
_INSTEAD = "set trainer.replay_routing: false"


class RecordedRouting:
    """The recorded choices of a policy's rows.

    Args:
        root: Module with this rank's part of the weights, if they are sharded.
    """

    def __init__(self, model: Any, forward: Forward, config: TrainerConfig, root: Root | None) -> None:
        self._model = model
        self._forward = forward
        self._root = root
        self._compiles = config.compile
        self._is_looked_for = False
        forward.replays = config.replay_routing

    def read(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        """Return the rows of a batch, without choices that are neither replayed nor compared. All ranks call
        it with the same rows.

        Raises:
            ConfigError: if choices should be replayed, and cannot be.
        """
        if all(payload.routing is None for payload in payloads):
            return payloads
        if not self._is_looked_for:
            self._look()
        return [self._fitting(payload) for payload in payloads]

    def _look(self) -> None:
        """Find the routers of the model.

        Raises:
            ConfigError: if choices should be replayed, and the model has no suitable routers.
        """
        self._is_looked_for = True
        name, why = type(self._model).__name__, None
        if self._compiles:
            why = "torch.compile does not see the choice of experts; remove trainer.compile"
        elif self._forward.layout == "alone":
            why = f"{name} processes rows one by one, and cannot replay the experts of several"
        else:
            routers = self._root(lambda: routers_of(self._model)) if self._root else routers_of(self._model)
            self._forward.routers = routers
            if routers is None:
                why = f"{name} has no routers that accept an engine's choice of experts"
        if why and self._forward.replays:
            raise ConfigError(f"trainer.replay_routing: {why}, or {_INSTEAD}.")
        if why:
            logger.warning("the recorded choice of experts is not compared: %s", why)

    def _fitting(self, payload: Payload) -> Payload:
        """Return a row with its choice, if the model supports it.

        Raises:
            ConfigError: if it should be replayed, and belongs to another model.
        """
        if payload.routing is None:
            return payload
        routers = self._forward.routers
        if routers is not None and _fits(payload, routers):
            return payload
        if routers is not None and self._forward.replays:
            _, layers, chosen = payload.routing.shape
            raise ConfigError(
                f"trainer.replay_routing: a row has {chosen} experts of {layers} layers, and the model "
                f"chooses {routers.chosen} of {routers.experts} in {len(routers)} layers: the engine records "
                f"them in another form, or runs another model; {_INSTEAD}."
            )
        return replace(payload, routing=None)

    def added(self, shares: Shares, scored: Scored, payloads: Sequence[Payload]) -> Shares:
        """Return a micro-batch's shares, with how often its routers would choose other experts.

        Args:
            payloads: All rows of the update.
        """
        routers = self._forward.routers
        if routers is None:
            return shares
        known = sum(len(payload.routing) for payload in payloads if payload.routing is not None)
        if not known:
            return shares
        differing = torch.zeros(()) if scored.differing is None else scored.differing
        share = differing.to(shares["loss"]) / (known * len(routers))
        return {**shares, METRIC: share}


def without(payloads: Sequence[Payload]) -> list[Payload]:
    """Return the rows without their choices, for models other than the policy."""
    return [payload if payload.routing is None else replace(payload, routing=None) for payload in payloads]


def _fits(payload: Payload, routers: Routers) -> bool:
    assert payload.routing is not None
    _, layers, chosen = payload.routing.shape
    places = routers.places_in(layers)
    if places is None or chosen != routers.chosen:
        return False
    return int(np.max(payload.routing[:, places])) < routers.experts
