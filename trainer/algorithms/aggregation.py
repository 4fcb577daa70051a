"""Aggregation: how the losses of tokens are averaged over an optimizer step.

Each function returns this micro-batch's share of a mean over the whole step: a sum divided by a count of the
whole step, from `Totals`. So the shares add up to the mean for any size of micro-batch. A count of the
micro-batch alone (TRL's `grpo` and `bnpo`, Trinity-RFT) would weigh tokens by how rows are split.

Shapes: values [B, K] of B sequences and K token columns, mask [B, K] bool. Numbers where it is False do not
count, not even NaN. A sequence without a trained token is not in the mean over sequences, as in verl; TRL and
Trinity-RFT count it as 0. In the formulas m is the mask, |y| = Σ_t m, v the values.
"""

from torch import Tensor

from trinity_db.trainer.algorithms.interface import Totals


def token_mean(values: Tensor, mask: Tensor, totals: Totals) -> Tensor:
    """Σ v·m / Σ m: each trained token of the step weighs alike, so that long sequences weigh more.

    Source: DAPO, arXiv 2503.14476 section 3.3. TRL's `dapo`, verl's and prime-rl's default.
    """
    return values.masked_fill(~mask, 0.0).sum() / totals.tokens


def seq_mean_token_sum(values: Tensor, mask: Tensor, totals: Totals) -> Tensor:
    """mean_i Σ_t v·m: the policy gradient as it is derived, with the sum of a sequence's log-probabilities.

    Source: REINFORCE and RLOO, arXiv 2402.14740. TRL's RLOO is so, its `luspo` too.
    """
    return values.masked_fill(~mask, 0.0).sum() / totals.sequences


def seq_mean_token_mean(values: Tensor, mask: Tensor, totals: Totals) -> Tensor:
    """mean_i (Σ_t v·m / |y_i|): each sequence weighs alike, so that a token of a long one weighs less.

    Source: GRPO, arXiv 2402.03300 equation 3, and GSPO, 2507.18071 equation 5.
    """
    lengths = mask.sum(dim=1).clamp(min=1)
    return (values.masked_fill(~mask, 0.0).sum(dim=1) / lengths).sum() / totals.sequences


def seq_mean_token_sum_norm(values: Tensor, mask: Tensor, totals: Totals, *, length: int) -> Tensor:
    """mean_i (Σ_t v·m / length): one constant for all, so that no sequence's length sets its tokens' weight.

    Args:
        length: tokens; usually the most that a response may have. It scales the loss against the learning
            rate and other terms, nothing else.

    Source: Dr. GRPO, arXiv 2503.20783 section 3. TRL's `dr_grpo` and verl divide by the number of
    sequences as here (verl by the padded length, unless one is stated); Trinity-RFT does not divide by it.
    """
    return seq_mean_token_sum(values, mask, totals) / length
