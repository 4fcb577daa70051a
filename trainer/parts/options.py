"""Options of parts that compositions read, beside the options of the parts themselves.

The options of a built-in part stand in the signature of its function (`built_in.py`), those of the
user's own part under `options`.
"""

from typing import Any, Literal

from pydantic import Field

from trinity_db.settings import Settings


class Part(Settings):
    """A part, by its name."""

    name: str


class Own(Part):
    """A part of your own, in the configuration `path/to/file.py:function` with its options beside it."""

    name: Literal["own"] = "own"
    function: str
    """Where it is: path/to/file.py:function."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Its keyword arguments."""


class ImportanceWeight(Part):
    """A correction that weighs a token by proximal/behaviour; ratios are then relative to proximal."""

    proximal: Literal["recomputed", "interpolated"] = "recomputed"
    """The policy that ratios are relative to. recomputed: the policy at the start of the step.
    interpolated: a policy between the one that sampled the row and that one, nearer to it for staler
    rows."""


class OwnCorrection(Own, ImportanceWeight):
    """A correction of your own."""


class Values(Part):
    """How the value head is trained."""

    coefficient: float = Field(0.5, ge=0)
    """Weight of the value loss, half the squared error, beside the policy loss."""
    clip_range: float | None = Field(0.2, gt=0)
    """How far an update may move a value from what it was at the start of the step, in units of reward. None:
    any distance. With one update by a batch, values have not moved when it is computed."""


class OwnValues(Own, Values):
    """An estimate of your own: advantages from rewards and values."""


class Divergence(Part):
    """How an estimate of the divergence is used."""

    coefficient: float = Field(0.001, ge=0)
    """Cost of one nat of divergence, in units of the loss or of the reward."""
    applies_to: Literal["loss", "reward"] = "loss"
    """loss: the divergence is added to each token's loss. reward: its sum over a response is taken off the
    reward; over all steps of an attempt where only the last reward counts (multi_step_group, remax)."""
    target: float | None = Field(None, gt=0)
    """The coefficient changes from step to step so that the divergence stays near this, in nats per token.
    None: the coefficient is fixed."""
    horizon: int = Field(10_000, ge=1)
    """Number of sequences in which a changing coefficient moves by at most a fifth."""


class DivergenceInReward(Divergence):
    """How an estimate is used that is no loss."""

    applies_to: Literal["loss", "reward"] = "reward"
    """Only reward. As a loss, k1 has an expected gradient of zero."""


class OwnDivergence(Own, Divergence):
    """A divergence of your own."""


class Distilled(Part):
    """An advantage for each token that comes from a teacher, beside the advantage of the reward."""

    coefficient: float = Field(1.0, gt=0, allow_inf_nan=False)
    """The advantage from the teacher is multiplied by this before it is added."""


class OwnDistillation(Own, Distilled):
    """A distillation of your own."""


class PairLoss(Part):
    """A loss of preference pairs, one of several that may be added up."""

    weight: float = Field(1.0, gt=0)
    """Weight of this loss where several are added."""


class OwnPairLoss(Own, PairLoss):
    """A loss of preference pairs of your own."""
