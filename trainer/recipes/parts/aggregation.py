"""Aggregation: how the losses of tokens are averaged over all rows of an update.

Each function returns a micro-batch's share of a mean over the rows of one update of the weights: all rows of
the step, unless `trainer.minibatches` divides them. It is a sum over the micro-batch, divided by a count from
`Totals`, so that the shares add up to the same mean for any size of micro-batch. With counts of the
micro-batch alone (TRL's `grpo` and `bnpo`, Trinity-RFT), the weight of a token would depend on how rows are
split.

Shapes: values [B, K] of B sequences and K token columns, mask [B, K] bool. Numbers outside the mask have no
effect, even NaN. The mean over sequences excludes a sequence without trained tokens, like in verl; TRL and
Trinity-RFT count it as 0. In the formulas m is the mask, |y| = Σ_t m, v the values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from trinity_db.trainer.recipes.parts.built_in import built_in

if TYPE_CHECKING:
    from torch import Tensor

    from trinity_db.trainer.recipes.parts.totals import Totals


@built_in()
def token_mean(values: Tensor, mask: Tensor, totals: Totals) -> Tensor:
    """All trained tokens of the step have equal weight.

    Σ v·m / Σ m: all trained tokens of the step have equal weight, so long sequences weigh more.

    Source: DAPO, arXiv 2503.14476 section 3.3. TRL's `dapo`, verl's and prime-rl's default.
    """
    return values.masked_fill(~mask, 0.0).sum() / totals.tokens


@built_in()
def seq_mean_token_sum(values: Tensor, mask: Tensor, totals: Totals) -> Tensor:
    """The mean over sequences of the sums over their tokens.

    mean_i Σ_t v·m: the policy gradient in its original form, with the sum of a sequence's log-probabilities.

    Source: REINFORCE and RLOO, arXiv 2402.14740. TRL's RLOO and `luspo` use it.
    """
    return values.masked_fill(~mask, 0.0).sum() / totals.sequences


@built_in()
def seq_mean_token_mean(values: Tensor, mask: Tensor, totals: Totals) -> Tensor:
    """The mean over sequences of the means over their tokens: sequences have equal weight.

    mean_i (Σ_t v·m / |y_i|): sequences have equal weight, so a token of a long sequence weighs less.

    Source: GRPO, arXiv 2402.03300 equation 3, and GSPO, 2507.18071 equation 5.
    """
    lengths = mask.sum(dim=1).clamp(min=1)
    return (values.masked_fill(~mask, 0.0).sum(dim=1) / lengths).sum() / totals.sequences


@built_in()
def seq_mean_token_sum_norm(
    values: Tensor, mask: Tensor, totals: Totals, *, length: Annotated[int, Field(ge=1)]
) -> Tensor:
    """The mean over sequences of the sums over their tokens, divided by a constant length (Dr. GRPO).

    mean_i (Σ_t v·m / length): with a constant length, a token's weight does not depend on its sequence.

    The length only scales the loss relative to the learning rate and other terms.

    Args:
        length: Constant length in tokens: usually the maximum of a response.

    Source: Dr. GRPO, arXiv 2503.20783 section 3. TRL's `dr_grpo` and verl also divide by the number of
    sequences (verl's length is the padded one, unless one is given). Trinity-RFT does not divide by that
    number.
    """
    return seq_mean_token_sum(values, mask, totals) / length
