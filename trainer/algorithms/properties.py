"""What a composition has to know about a part beyond its signature. A user's own part can say the same.

from trinity_db.trainer.algorithms.properties import having

@having(last_rewards=True)
def mine(rewards, groups, rollouts, steps): ...
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
Metrics = Callable[[Any, Mapping[str, Any]], dict[str, Any]]
"""From a part's result, without gradient, and its options to metrics of the same shape, by name."""


@dataclass(frozen=True)
class Properties:
    """Of one part. The defaults hold for a part that says nothing."""

    last_rewards: bool = False
    """An advantage: it reads only the reward of an attempt's last step. A divergence that is taken off the
    reward is then summed over all steps of the attempt, and taken off that one."""
    rewards_themselves: bool = False
    """An advantage: it is the reward itself and compares nothing. A divergence that is taken off the reward
    is then charged token by token, and a value part may be the baseline."""
    metrics: Metrics | None = None
    """A preference loss: what is measured of it beside the loss."""


_DEFAULT = Properties()


def having(
    *, last_rewards: bool = False, rewards_themselves: bool = False, metrics: Metrics | None = None
) -> Callable[[Function], Function]:
    """Mark a part with its properties; see `Properties`."""

    def mark(function: Function) -> Function:
        function.properties = Properties(  # type: ignore[attr-defined]
            last_rewards=last_rewards, rewards_themselves=rewards_themselves, metrics=metrics
        )
        return function

    return mark


def properties_of(function: Callable[..., Any]) -> Properties:
    """The properties that a part was marked with."""
    return getattr(function, "properties", _DEFAULT)
