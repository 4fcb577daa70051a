"""The time steps of Mamba layers, and the limit that transformers sets them.

transformers 5.23 gives Nemotron-H and Zamba2 a lower limit, `time_step_min`, which is for making random
weights. The published models have none (its pull request 48989 measures 0.03 nats between the two), and
decoding token by token never has one.
"""

from typing import Any

UNLIMITED = (0.0, float("inf"))
_LIMITED_WRONGLY = ("NemotronHMamba2Mixer", "Zamba2MambaMixer")


def limit_as_configured(model: Any) -> None:
    """Give the layers of a model the limit that its configuration has."""
    limit = getattr(model.config, "time_step_limit", None) or UNLIMITED
    for module in model.modules():
        if type(module).__name__ in _LIMITED_WRONGLY:
            module.time_step_limit = tuple(limit)


def has_limit(model: Any) -> bool:
    """Whether a layer limits its time steps. transformers decodes it without the limit."""
    limits = (getattr(module, "time_step_limit", None) for module in model.modules())
    return any(limit is not None and tuple(limit) != UNLIMITED for limit in limits)
