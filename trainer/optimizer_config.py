"""Settings of the optimizers: `optimizer: adafactor`, or `optimizer: {name: muon, momentum: 0.9}`.

A configuration is read without torch. `trainer/learner/optimizer.py` makes an optimizer of them.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from trinity_db.settings import Change, Settings


class _Adam(Settings):
    beta1: Annotated[float, Change.DATED] = Field(0.9, ge=0, lt=1)
    """Decay of the mean of the gradients."""
    beta2: Annotated[float, Change.DATED] = Field(0.999, ge=0, lt=1)
    """Decay of the mean of their squares."""
    epsilon: Annotated[float, Change.DATED] = Field(1e-8, gt=0, le=1)
    """Added to the root of the mean of squares."""


class AdamW(_Adam):
    """AdamW, fused: 8 bytes of state for each trained parameter in float32."""

    name: Literal["adamw"] = "adamw"


class AdamW8bit(_Adam):
    """AdamW whose state has 2 bytes for each trained parameter, of the package bitsandbytes. Parameters with
    less than 4096 numbers keep a state in float32."""

    name: Literal["adamw_8bit"] = "adamw_8bit"
    paged: bool = False
    """On a GPU, state that does not fit moves to main memory."""


class Adafactor(Settings):
    """Adafactor: for each matrix a state of one row and one column. The rate is relative to the size of the
    weights: 1e-3 moves each matrix by about a thousandth of its size."""

    name: Literal["adafactor"] = "adafactor"


class Sgd(Settings):
    """Gradient descent: no state without momentum."""

    name: Literal["sgd"] = "sgd"
    momentum: Annotated[float, Change.DATED] = Field(0.0, ge=0, lt=1)
    """Share of the last update in the next one."""


class Muon(Settings):
    """Muon for matrices: their updates are made orthogonal, with 4 bytes of state for each parameter.
    Embeddings, the value head and all that is no matrix get AdamW. Updates are scaled to the size of AdamW's,
    so that learning_rate fits both."""

    name: Literal["muon"] = "muon"
    momentum: Annotated[float, Change.DATED] = Field(0.95, ge=0, lt=1)
    """Share of the last update in the next one, for matrices."""


class OwnOptimizer(Settings):
    """An optimizer of your own, in the configuration `path/to/file.py:Class` with its options beside it."""

    name: Literal["own"] = "own"
    function: str
    """Where it is: path/to/file.py:Class. It is called with groups of parameters, lr and the options, as the
    classes of torch.optim are."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Its keyword arguments."""


def _as_mapping(value: Any) -> Any:
    """Read a name as a mapping with that name. A class in a user's file becomes the optimizer `own`."""
    if isinstance(value, dict) and "name" not in value:
        raise ValueError("name it, as in {name: muon, momentum: 0.9}")
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
"""The settings of one optimizer. `name` says which one."""

NEEDS_WHOLE = ("muon", "adafactor", "adamw_8bit")
"""Optimizers that need whole matrices for their state."""
