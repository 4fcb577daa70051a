"""Settings of optimizers: `optimizer: adafactor`, or `optimizer: {name: muon, momentum: 0.9}`.

Configurations are read without torch; `trainer/learner/optimizer.py` creates the optimizer.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from trinity_db.config.base import Change, Settings


class _Adam(Settings):
    beta1: Annotated[float, Change.DATED] = Field(0.9, ge=0, lt=1)
    """Decay of the running mean of gradients."""
    beta2: Annotated[float, Change.DATED] = Field(0.999, ge=0, lt=1)
    """Decay of the running mean of squared gradients."""
    epsilon: Annotated[float, Change.DATED] = Field(1e-8, gt=0, le=1)
    """Added to the root of the mean of squares."""


class AdamW(_Adam):
    """AdamW, fused: 8 bytes of state per trained parameter in float32."""

    name: Literal["adamw"] = "adamw"


class AdamW8bit(_Adam):
    """AdamW with 2 bytes of state per trained parameter, from the package bitsandbytes. Parameters with fewer
    than 4096 elements have their state in float32."""

    name: Literal["adamw_8bit"] = "adamw_8bit"
    paged: bool = False
    """On a GPU, move state that does not fit to main memory."""


class Adafactor(Settings):
    """Adafactor: per matrix the state of one row and one column. The rate is relative to the size of the
    weights: 1e-3 changes each matrix by about a thousandth of its size."""

    name: Literal["adafactor"] = "adafactor"


class Sgd(Settings):
    """Gradient descent: no state without momentum."""

    name: Literal["sgd"] = "sgd"
    momentum: Annotated[float, Change.DATED] = Field(0.0, ge=0, lt=1)
    """Share of the last update in the next one."""


class Muon(Settings):
    """Muon for matrices: orthogonalised updates, with 4 bytes of state per parameter. Embeddings, the value
    head and parameters that are not matrices get AdamW. Updates are scaled to the size of AdamW's, so that
    learning_rate fits both."""

    name: Literal["muon"] = "muon"
    momentum: Annotated[float, Change.DATED] = Field(0.95, ge=0, lt=1)
    """Share of the last update in the next one, for matrices."""


class OwnOptimizer(Settings):
    """Your own optimizer, in the configuration `path/to/file.py:Class` with its options next to it."""

    name: Literal["own"] = "own"
    function: str
    """Location: path/to/file.py:Class. It is called with groups of parameters, lr and the options, like the
    classes of torch.optim."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the class."""


def _as_mapping(value: Any) -> Any:
    """Read a name as a mapping with that name. A class in a user's file becomes the optimizer `own`."""
    if isinstance(value, dict) and "name" not in value:
        raise ValueError("it needs a name, such as {name: muon, momentum: 0.9}")
    chosen = {"name": value} if isinstance(value, str) else value
    if not isinstance(chosen, dict) or ".py:" not in str(chosen["name"]):
        return chosen
    options = {key: option for key, option in chosen.items() if key != "name"}
    return {"name": "own", "function": chosen["name"], "options": options}


OptimizerConfig = Annotated[
    AdamW | AdamW8bit | Adafactor | Sgd | Muon | OwnOptimizer,
    Field(discriminator="name"),
    BeforeValidator(_as_mapping),
]
"""Settings of an optimizer, selected with `name`."""

NEEDS_WHOLE = ("muon", "adafactor", "adamw_8bit")
"""Optimizers that need whole matrices for their state."""
