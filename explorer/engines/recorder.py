"""Records the experts chosen by a mixture's routers while the engine `transformers` samples.

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
    """The experts chosen for one response so far."""

    def __init__(self) -> None:
        self._parts: list[NDArray[Any]] = []

    def add(self, choice: NDArray[Any], length: int) -> None:
        """Append the experts of the newest tokens.

        Args:
            choice: [L, R, K] of the columns of a call, right-aligned. Tokens computed before, with other
                weights, keep their experts.
            length: number of tokens so far, including the prompt.
        """
        new = length - sum(map(len, self._parts))
        self._parts.append(choice[len(choice) - new :])

    @property
    def whole(self) -> NDArray[Any] | None:
        """[m, R, K] All recorded experts; None if nothing was recorded."""
        return np.concatenate(self._parts) if self._parts else None


class Recorder:
    """Records the choices of a model's routers.

    Raises:
        ConfigError: if it has no supported routers.
    """

    def __init__(self, model: Any) -> None:
        routers = routers_of(model)
        if routers is None:
            raise ConfigError(
                f"explorer.record_routing: {type(model).__name__} has no routers whose choice of experts can "
                "be recorded; leave it out."
            )
        self._routers = routers
        self._dtype = np.uint8 if routers.experts <= 256 else np.uint16

    @contextmanager
    def recording(
        self,
        shape: Sequence[int],
        rows: Sequence[tuple[Routing, int]],
        copies: Sequence[int] | None = None,
    ) -> Iterator[None]:
        """Within this `with`, one call of the model appends the chosen experts to the rows.

        Args:
            shape: [B, L] of the call.
            rows: routing of each row, with its number of tokens so far.
            copies: index of the computed sequence of each row. None: its own.
        """
        with self._routers.noting() as notes:
            yield
        choice = torch.stack(notes, dim=1).view(*shape, len(notes), -1).cpu().numpy().astype(self._dtype)
        choices = choice if copies is None else [choice[copy] for copy in copies]
        for (routing, length), of_row in zip(rows, choices, strict=True):
            routing.add(of_row, length)
