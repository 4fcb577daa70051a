"""Losses of responses that are labelled good or bad: pure functions, one loss per response.

Shapes: N responses, everything [N]. `response` is the sum of the log-probabilities of a response's trained
tokens under the policy; it has the gradient. `response_reference` is the same sum under the reference.
`response_length` is the number of these tokens. `desirable` is True for a good response. `divergence` is one
number for all, without gradient: the policy's divergence from the reference, on responses to other prompts.
In the formulas h = response - response_reference is the log-ratio, z = `divergence`, σ the logistic function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from trinity_db.trainer.recipes.parts.built_in import built_in

if TYPE_CHECKING:
    from torch import Tensor


@built_in()
def kto(
    response: Tensor,
    response_reference: Tensor,
    desirable: Tensor,
    divergence: Tensor,
    *,
    beta: Annotated[float, Field(gt=0)] = 0.1,
) -> Tensor:
    """Compares each response's log-ratio with the policy's average divergence (KTO).

    [N] 1 - σ(β(h - z)) for a good response, 1 - σ(β(z - h)) for a bad one.

    As in prospect theory, the value of a response is its gain or loss against a reference point z, with
    diminishing returns.

    Args:
        beta: Regularisation towards the starting model; larger is stronger.

    Source: KTO, arXiv 2402.01306 equations 7 and 8. Its λ_D and λ_U are the algorithm's weights.
    """
    gain = beta * (response - response_reference - divergence)
    return 1 - gain.where(desirable, -gain).sigmoid()


@built_in()
def apo_zero_unpaired(
    response: Tensor,
    response_reference: Tensor,
    desirable: Tensor,
    *,
    beta: Annotated[float, Field(gt=0)] = 0.1,
) -> Tensor:
    """Raises good responses and lowers bad ones, if the good ones are better than the model's own (APO).

    [N] 1 - σ(βh) for a good response, σ(βh) for a bad one: `kto` with z = 0.

    Args:
        beta: Regularisation towards the starting model; larger is stronger.

    Source: APO, arXiv 2408.06266 equation 7, for single responses like in TRL.
    """
    ratio = beta * (response - response_reference)
    return 1 - ratio.where(desirable, -ratio).sigmoid()
