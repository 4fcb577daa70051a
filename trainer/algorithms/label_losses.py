"""Losses of responses that are good or bad: pure functions of log-probabilities, one loss per response.

Shapes: N responses, everything [N]. `response` is the sum of the log-probabilities of a response's
trained tokens under the policy being trained (the gradient flows there), `response_reference` the same
under the frozen starting model, `response_length` the number of those tokens, `desirable` True for a
good one, `divergence` one number for all: how far the policy is from the starting model on responses
to other prompts, without gradient. In the formulas h = response - response_reference is the
log-ratio, z = `divergence`, σ the logistic function.
"""

import torch
from torch import Tensor


def kto(
    response: Tensor,
    response_reference: Tensor,
    desirable: Tensor,
    divergence: Tensor,
    *,
    beta: float = 0.1,
) -> Tensor:
    """[N] 1 - σ(β(h - z)) of a good response, 1 - σ(β(z - h)) of a bad one.

    As in prospect theory a response is worth what it gains or loses against a point of reference, z,
    and each further gain is worth less.

    Source: KTO, arXiv 2402.01306 equations 7 and 8, whose λ_D and λ_U are the algorithm's weights.
    """
    gain = beta * (response - response_reference - divergence)
    return 1 - torch.where(desirable, gain, -gain).sigmoid()


def apo_zero_unpaired(
    response: Tensor, response_reference: Tensor, desirable: Tensor, *, beta: float = 0.1
) -> Tensor:
    """[N] 1 - σ(βh) of a good response, σ(βh) of a bad one: `kto` against the starting model itself, z = 0.

    Source: APO, arXiv 2408.06266 equation 7 without its pairs, as TRL has it.
    """
    ratio = beta * (response - response_reference)
    return 1 - torch.where(desirable, ratio, -ratio).sigmoid()
