"""Losses of responses that are labelled good or bad: pure functions, one loss per response.

Shapes: N responses, everything [N]. `response` is the sum of the log-probabilities of a response's trained
tokens under the policy; it has the gradient. `response_reference` is the same sum under the reference.
`response_length` is the number of these tokens. `desirable` is True for a good response. `divergence` is one
number for all, without gradient: the policy's divergence from the reference, on responses to other prompts.
In the formulas h = response - response_reference is the log-ratio, z = `divergence`, σ the logistic function.
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

    As in prospect theory, the value of a response is its gain or loss against a reference point, z, and each
    further gain has less value.

    Source: KTO, arXiv 2402.01306 equations 7 and 8. Its λ_D and λ_U are the algorithm's weights.
    """
    gain = beta * (response - response_reference - divergence)
    return 1 - torch.where(desirable, gain, -gain).sigmoid()


def apo_zero_unpaired(
    response: Tensor, response_reference: Tensor, desirable: Tensor, *, beta: float = 0.1
) -> Tensor:
    """[N] 1 - σ(βh) of a good response, σ(βh) of a bad one: `kto` with z = 0.

    Source: APO, arXiv 2408.06266 equation 7, for single responses as in TRL.
    """
    ratio = beta * (response - response_reference)
    return 1 - torch.where(desirable, ratio, -ratio).sigmoid()
