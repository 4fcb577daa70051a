"""Options of what a teacher is worth, `algorithms/distillation.py`: a class each, as `options.py` says."""

from typing import Annotated, Literal

from pydantic import Field

from trinity_db.settings import Settings
from trinity_db.trainer.options import Own


class Distilled(Settings):
    """An advantage of each token that a teacher gives, beside that of the reward."""

    coefficient: float = Field(1.0, gt=0, allow_inf_nan=False)
    """What it is multiplied by before it is added. The algorithm's own: the function does not see it."""


class ReverseKl(Distilled):
    """The log-ratio of teacher and policy: towards KL(policy ‖ teacher), which seeks its modes."""

    name: Literal["reverse_kl"] = "reverse_kl"


class Jsd(Distilled):
    """Towards the generalised Jensen-Shannon divergence, of which no token can weigh without bound (GKD)."""

    name: Literal["jsd"] = "jsd"
    beta: float = Field(0.5, gt=0, lt=1)
    """The teacher's share in the mixture that both are compared with: near 0 it covers what the teacher would
    say, near 1 it seeks its modes; both with a small gradient, which a coefficient makes up for."""


class OwnDistillation(Distilled, Own):
    """One of one's own."""


Distillation = Annotated[ReverseKl | Jsd | OwnDistillation, Field(discriminator="name")]
