"""Time steps of Mamba layers, and the limit that transformers applies to them.

transformers 5.23 applies a lower limit, `time_step_min`, to Nemotron-H and Zamba2, which is meant for random
initialization. The published models have no limit (its pull request 48989 measures a difference of 0.03
nats), and token-by-token decoding never applies one.
"""

from typing import Any

UNLIMITED = (0.0, float("inf"))
_LIMITED_WRONGLY = ("NemotronHMamba2Mixer", "Zamba2MambaMixer")


def limit_as_configured(model: Any) -> None:
    """Set the layers' limit to that of the model's configuration."""
    limit = getattr(model.config, "time_step_limit", None) or UNLIMITED
    for module in model.modules():
        if type(module).__name__ in _LIMITED_WRONGLY:
            module.time_step_limit = tuple(limit)


def has_limit(model: Any) -> bool:
    """Whether a layer limits its time steps, unlike transformers' decoding."""
    limits = (getattr(module, "time_step_limit", None) for module in model.modules())
    return any(limit is not None and tuple(limit) != UNLIMITED for limit in limits)
