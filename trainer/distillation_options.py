"""Options of what a teacher is worth, `algorithms/distillation.py`: a class each, as `options.py` says."""

from typing import Annotated, Literal

from pydantic import Field

from trinity_db.settings import Settings
from trinity_db.trainer.options import Own


class Distilled(Settings):
    """An advantage for each token that comes from a teacher, beside the advantage of the reward."""

    coefficient: float = Field(1.0, gt=0, allow_inf_nan=False)
    """The advantage from the teacher is multiplied by this before it is added."""


class ReverseKl(Distilled):
    """The log-ratio of teacher and policy. Minimises KL(policy ‖ teacher), which seeks the teacher's
    modes."""

    name: Literal["reverse_kl"] = "reverse_kl"


class Jsd(Distilled):
    """Minimises the generalised Jensen-Shannon divergence, in which each token's weight is bounded (GKD)."""

    name: Literal["jsd"] = "jsd"
    beta: float = Field(0.5, gt=0, lt=1)
    """The teacher's share in the mixture that both are compared with. Near 0 the policy covers what the
    teacher would say, near 1 it seeks the teacher's modes. The gradient is small at both ends: raise
    coefficient."""


class OwnDistillation(Distilled, Own):
    """A distillation of your own."""


Distillation = Annotated[ReverseKl | Jsd | OwnDistillation, Field(discriminator="name")]
