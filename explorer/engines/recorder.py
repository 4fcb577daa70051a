"""Records which experts the routers of a mixture choose while the engine `transformers` samples.

Shapes: B rows of a batch, L columns of a call, R routers, K experts of a token.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trinity_db.errors import ConfigError
from trinity_db.models.routing import routers_of


class Routing:
    """The experts of one response, as far as it went through the model."""

    def __init__(self) -> None:
        self._parts: list[NDArray[Any]] = []

    def add(self, choice: NDArray[Any], length: int) -> None:
        """Add the experts of the newest tokens.

        Args:
            choice: [L, R, K] of the columns of a call. The response stands at their right. Tokens that were
                computed before, by other weights, keep their experts.
            length: tokens so far, prompt included.
        """
        new = length - sum(map(len, self._parts))
        self._parts.append(choice[len(choice) - new :])

    @property
    def whole(self) -> NDArray[Any] | None:
        """[m, R, K] None if nothing was recorded."""
        return np.concatenate(self._parts) if self._parts else None


class Recorder:
    """Records what the routers of a model choose.

    Raises:
        ConfigError: it has no routers whose choice can be recorded.
    """

    def __init__(self, model: Any) -> None:
        found = routers_of(model)
        if found is None:
            raise ConfigError(
                f"explorer.record_routing: {type(model).__name__} has no routers whose choice of experts can "
                "be recorded; leave it out."
            )
        self._routers = found
        self._dtype = np.uint8 if found.experts <= 256 else np.uint16

    @contextmanager
    def recording(self, shape: Sequence[int], rows: Sequence[tuple[Routing, int]]) -> Iterator[None]:
        """Within this `with`, one call of the model adds what is chosen to the rows.

        Args:
            shape: [B, L] of the call.
            rows: the routing of each row, and its tokens so far.
        """
        with self._routers.noting() as notes:
            yield
        choice = torch.stack(notes, dim=1).view(*shape, len(notes), -1).cpu().numpy().astype(self._dtype)
        for (routing, length), of_row in zip(rows, choice, strict=True):
            routing.add(of_row, length)
