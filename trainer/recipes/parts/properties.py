"""Properties of a part that its signature does not show. A user's own part is marked in the same way.

from trinity_db.trainer.recipes.parts.properties import having

@having(last_rewards=True)
def mine(rewards, groups, rollouts, steps): ...
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
Metrics = Callable[[Any, Mapping[str, Any]], dict[str, Any]]
"""Computes metrics from a part's result, without gradient, and its options. Each has the result's shape."""


@dataclass(frozen=True)
class Properties:
    """Properties of a part. The defaults apply to unmarked parts."""

    last_rewards: bool = False
    """For an advantage that reads only the reward of an attempt's last step. If the divergence is subtracted
    from the reward, it is summed over all steps of the attempt and subtracted from that reward."""
    rewards_themselves: bool = False
    """For an advantage that equals the reward and compares nothing. If the divergence is subtracted from the
    reward, it is subtracted token by token. A value part may be the baseline."""
    row_by_row: bool = False
    """For a correction: the weights of a row depend on that row alone. A step with one update then gets the
    policy at its start from the pass with gradient, unless another part compares rows by that policy."""
    metrics: Metrics | None = None
    """For a preference loss: computes further metrics from its losses."""


_DEFAULT = Properties()


def having(
    *,
    last_rewards: bool = False,
    rewards_themselves: bool = False,
    row_by_row: bool = False,
    metrics: Metrics | None = None,
) -> Callable[[Function], Function]:
    """Mark a part with `Properties`."""

    def mark(function: Function) -> Function:
        function.properties = Properties(  # type: ignore[attr-defined]
            last_rewards=last_rewards,
            rewards_themselves=rewards_themselves,
            row_by_row=row_by_row,
            metrics=metrics,
        )
        return function

    return mark


def properties_of(function: Callable[..., Any]) -> Properties:
    """Return the properties of a part."""
    return getattr(function, "properties", _DEFAULT)
