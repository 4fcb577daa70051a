"""Options of parts that compositions read, in addition to the parts' own options.

Options of a built-in part are in the signature of its function (`built_in.py`), options of the user's own
part in `options`.
"""

from typing import Any, Literal

from pydantic import Field

from trinity_db.config.base import Settings


class PartChoice(Settings):
    """A part, selected by name."""

    name: str


class Own(PartChoice):
    """A part of your own, in the configuration `path/to/file.py:function` with its options next to it."""

    name: Literal["own"] = "own"
    function: str
    """Location: path/to/file.py:function."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the function."""


class ImportanceWeight(PartChoice):
    """A correction that weights a token by proximal/behaviour; ratios are then relative to proximal."""

    proximal: Literal["recomputed", "interpolated"] = "recomputed"
    """Policy that ratios are relative to. recomputed: the policy at the start of the step. interpolated: a
    policy between it and the policy that sampled the row; the staler the row, the closer to the policy
    at the start of the step."""


class OwnCorrection(Own, ImportanceWeight):
    """A correction of your own."""


class Values(PartChoice):
    """Training of the value head."""

    coefficient: float = Field(0.5, ge=0)
    """Weight of the value loss, half the squared error, relative to the policy loss."""
    clip_range: float | None = Field(0.2, gt=0)
    """Maximum distance of a value from its value at the start of the step, in units of reward. None: no
    maximum. With one update per batch it has no effect, because values have not moved yet."""


class OwnValues(Own, Values):
    """Your own estimate of advantages from rewards and values."""


class Divergence(PartChoice):
    """Use of a divergence estimate."""

    coefficient: float = Field(0.001, ge=0)
    """Cost of one nat of divergence, in units of the loss or of the reward."""
    applies_to: Literal["loss", "reward"] = "loss"
    """loss: the divergence is added to each token's loss. reward: its sum over a response is subtracted from
    the reward; over all steps of an attempt if only the last reward counts (multi_step_group, remax)."""
    target: float | None = Field(None, gt=0)
    """Target divergence in nats per token, towards which the coefficient adapts from step to step. None:
    fixed coefficient."""
    horizon: int = Field(10_000, ge=1)
    """Number of sequences in which an adaptive coefficient changes by at most a fifth."""


class DivergenceInReward(Divergence):
    """Use of an estimate that is not suitable as a loss."""

    applies_to: Literal["loss", "reward"] = "reward"
    """Only reward. As a loss, k1 has an expected gradient of zero."""


class OwnDivergence(Own, Divergence):
    """Your own divergence."""


class Distilled(PartChoice):
    """A per-token advantage from a teacher, added to the advantage from the reward."""

    coefficient: float = Field(1.0, gt=0, allow_inf_nan=False)
    """Factor of the advantage from the teacher."""


class OwnDistillation(Own, Distilled):
    """Your own distillation."""


class PairLoss(PartChoice):
    """A loss of preference pairs, which can be summed with others."""

    weight: float = Field(1.0, gt=0)
    """Weight of this loss in a sum of losses."""


class OwnPairLoss(Own, PairLoss):
    """Your own loss of preference pairs."""
