"""Distillation: an advantage for each token from a teacher's log-probabilities of the sampled tokens.

The store keeps the teacher's log-probabilities of the sampled tokens, not whole distributions. This suffices:
each function here returns an A for which E_y[A(y)·∇log π(y)], the expectation over the policy's own tokens,
is exactly the gradient of -D(π, teacher) at a position; the tests enumerate it. D is summed over the
positions of the policy's own responses. No gradient flows through the sampling, like in GKD, arXiv
2306.13649. The divergence itself is not such an A, because its gradient has a second term.

Shapes: B sequences, K token columns. Results are [B, K], without gradient, 0 where the mask is False. `old`
is the policy that ratios are relative to: the policy that sampled the tokens, or the proximal policy if a
correction reads it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from trinity_db.trainer.recipes.parts.built_in import built_in
from trinity_db.trainer.recipes.parts.options import Distilled

if TYPE_CHECKING:
    from torch import Tensor


@built_in(Distilled)
def reverse_kl(old: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """The log-ratio of teacher and policy. Minimises KL(policy ‖ teacher), which seeks the teacher's modes.

    [B, K] log teacher - log old: lowers KL(policy ‖ teacher).

    The second term of the gradient is zero in expectation. A token's advantage contains no later tokens.

    Sources: Thinking Machines Lab, "On-Policy Distillation" (2025); MiniLLM, arXiv 2306.08543. Equal to
    Trinity-RFT's `on_policy_distill`, and to TRL's IW-OPD without its weights. prime-rl's `ref_kl` uses the
    policy being trained for `old`, which is equal at the start of a step.
    """
    return (teacher - old).detach().masked_fill(~mask, 0.0)


@built_in(Distilled)
def jsd(
    old: Tensor, teacher: Tensor, mask: Tensor, *, beta: Annotated[float, Field(gt=0, lt=1)] = 0.5
) -> Tensor:
    """Minimises the generalised Jensen-Shannon divergence, in which each token's weight is bounded (GKD).

    [B, K] (1 - β)·(log m - log old), m = β·teacher + (1 - β)·old: lowers the generalised JSD.

    JSD_β = β·KL(teacher ‖ m) + (1 - β)·KL(policy ‖ m). As E_π[f(u)] with u = teacher/π, it is
    f(u) = βu·log u - w·log w with w = βu + 1 - β = m/π. Its gradient is E_π[(f(u) - u·f'(u))·∇log π], and
    f(u) - u·f'(u) = -(1 - β)·log w. So A is at least (1 - β)·log(1 - β), however small the teacher's
    probability. As β goes to 0, A/β becomes teacher/π - 1, which lowers KL(teacher ‖ policy). As β goes to 1,
    A/(1 - β) becomes `reverse_kl`.

    Args:
        beta: The teacher's share in the mixture that both are compared with. Near 0 the policy covers all
        likely
            tokens of the teacher, near 1 it seeks the teacher's modes. The gradient is small at both ends:
            raise coefficient.

    Source: GKD, arXiv 2306.13649 equation 1; TRL's GKD has the same β. Trinity-RFT's `jsd` differs: its A,
    log m - β·log teacher - (1 - β)·log π, is positive for all tokens where the two policies differ, also for
    tokens that the teacher would never choose. It takes both terms at the policy's token, although one of
    them is an expectation over the teacher's tokens.
    """
    mixture = (teacher + math.log(beta)).logaddexp(old + math.log1p(-beta))
    return (1 - beta) * (mixture - old).detach().masked_fill(~mask, 0.0)
