"""Losses of preference pairs: pure functions of log-probabilities, one loss per pair.

Shapes: N pairs, everything [N]. `chosen` and `rejected` are the sums of the log-probabilities of a response's
trained tokens under the policy; they have the gradient. `chosen_reference` and `rejected_reference` are the
same sums under the reference. `chosen_length` and `rejected_length` are the numbers of these tokens, at least
1. In the formulas h_c = chosen - chosen_reference and h_r = rejected - rejected_reference are the log-ratios,
|c| and |r| the lengths, ε is `label_smoothing`, σ the logistic function. A configuration may sum several
losses.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from trinity_db.trainer.recipes.parts.built_in import built_in
from trinity_db.trainer.recipes.parts.options import PairLoss
from trinity_db.trainer.recipes.parts.properties import having

if TYPE_CHECKING:
    from torch import Tensor

MAX_MEAN_LOGPROB = -1e-7  # nats; closer to 0 the odds p/(1-p) are infinite in float32


@built_in(PairLoss)
def sigmoid(
    chosen: Tensor,
    rejected: Tensor,
    chosen_reference: Tensor,
    rejected_reference: Tensor,
    *,
    beta: Annotated[float, Field(gt=0)] = 0.1,
) -> Tensor:
    """Direct preference optimisation (DPO).

    [N] -log σ(β(h_c - h_r)): the likelihood of the preference in the Bradley-Terry model.

    Args:
        beta: Regularisation towards the starting model; larger is stronger.

    Source: DPO, arXiv 2305.18290 equation 7.
    """
    return -_logsigmoid(beta * _margin(chosen, rejected, chosen_reference, rejected_reference))


@built_in(PairLoss)
def hinge(
    chosen: Tensor,
    rejected: Tensor,
    chosen_reference: Tensor,
    rejected_reference: Tensor,
    *,
    beta: Annotated[float, Field(gt=0)] = 0.1,
) -> Tensor:
    """Hinge loss: zero once the margin relative to the starting model is wide enough (SLiC).

    [N] max(0, 1 - β(h_c - h_r)): the loss is 0 once the margin is 1/β nats.

    Args:
        beta: The loss is zero from a margin of 1/beta, in nats.

    Source: SLiC-HF, arXiv 2305.10425, with DPO's log-ratios like in RSO, arXiv 2309.06657.
    """
    return (1 - beta * _margin(chosen, rejected, chosen_reference, rejected_reference)).relu()


@built_in(PairLoss)
def ipo(
    chosen: Tensor,
    rejected: Tensor,
    chosen_reference: Tensor,
    rejected_reference: Tensor,
    chosen_length: Tensor,
    rejected_length: Tensor,
    *,
    beta: Annotated[float, Field(gt=0)] = 0.1,
) -> Tensor:
    """Pulls the margin per token towards a finite target, so that no pair is overfitted (IPO).

    [N] (h_c/|c| - h_r/|r| - 1/(2β))²: moves the margin to a finite value, so that no pair is overfitted.

    Args:
        beta: The target margin is 1/(2 beta), in nats per token.

    Source: IPO, arXiv 2310.12036 equation 17 (β is its τ). The paper has sums over tokens. With means over
    tokens, β has the same effect at any length; TRL (after asking the authors) and AReaL use means too.
    """
    chosen_mean = (chosen - chosen_reference) / chosen_length
    rejected_mean = (rejected - rejected_reference) / rejected_length
    return (chosen_mean - rejected_mean - 1 / (2 * beta)) ** 2


@built_in(PairLoss)
def robust(
    chosen: Tensor,
    rejected: Tensor,
    chosen_reference: Tensor,
    rejected_reference: Tensor,
    *,
    beta: Annotated[float, Field(gt=0)] = 0.1,
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.1,
) -> Tensor:
    """DPO's loss, unbiased if labels are flipped with a known probability.

    [N] (-(1-ε)·log σ(βΔ) + ε·log σ(-βΔ)) / (1-2ε), Δ = h_c - h_r: unbiased under flipped labels.

    If each label is flipped with probability ε, the expectation is DPO's loss with the true labels.

    Args:
        beta: Regularisation towards the starting model; larger is stronger.
        label_smoothing: Probability that a label is flipped.

    Source: robust DPO, arXiv 2403.00409 section 3.
    """
    margin = beta * _margin(chosen, rejected, chosen_reference, rejected_reference)
    unflipped, flipped = (1 - label_smoothing) * _logsigmoid(margin), label_smoothing * _logsigmoid(-margin)
    return (flipped - unflipped) / (1 - 2 * label_smoothing)


@built_in(PairLoss)
def cdpo(
    chosen: Tensor,
    rejected: Tensor,
    chosen_reference: Tensor,
    rejected_reference: Tensor,
    *,
    beta: Annotated[float, Field(gt=0)] = 0.1,
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.1,
) -> Tensor:
    """Conservative DPO: each label is assumed to be true with a probability below one.

    [N] -(1-ε)·log σ(βΔ) - ε·log σ(-βΔ), Δ = h_c - h_r: cross-entropy with a label of probability 1-ε.

    Args:
        beta: Regularisation towards the starting model; larger is stronger.
        label_smoothing: Probability that a label is flipped.

    Source: E. Mitchell, "A note on DPO with noisy preferences" (2023). OpenRLHF has it. In TRL 1.16,
    `label_smoothing` has this effect on CPO, and none on DPO's sigmoid loss.
    """
    margin = beta * _margin(chosen, rejected, chosen_reference, rejected_reference)
    return _smoothed(margin, label_smoothing)


@built_in(PairLoss)
def sigmoid_norm(
    chosen: Tensor,
    rejected: Tensor,
    chosen_reference: Tensor,
    rejected_reference: Tensor,
    chosen_length: Tensor,
    rejected_length: Tensor,
    *,
    beta: Annotated[float, Field(gt=0)] = 0.1,
) -> Tensor:
    """DPO with log-probabilities per token, so that length alone has no effect.

    [N] -log σ(β(h_c/|c| - h_r/|r|)): DPO per token, so that length alone does not lower the loss.

    The log-ratios are means over tokens, so β should be larger than in DPO by about a response's length.

    Args:
        beta: Regularisation towards the starting model; larger is stronger. For means over tokens 5 is a
            usual value.

    Source: Tülu 3, arXiv 2411.15124 section 5.
    """
    chosen_mean = (chosen - chosen_reference) / chosen_length
    rejected_mean = (rejected - rejected_reference) / rejected_length
    return -_logsigmoid(beta * (chosen_mean - rejected_mean))


@built_in(PairLoss)
def exo_pair(
    chosen: Tensor,
    rejected: Tensor,
    chosen_reference: Tensor,
    rejected_reference: Tensor,
    *,
    beta: Annotated[float, Field(gt=0)] = 0.1,
    label_smoothing: Annotated[float, Field(gt=0, lt=0.5)] = 1e-3,
) -> Tensor:
    """Reverse KL divergence of the policy's choice between the responses from the label (EXO).

    [N] q·(log q - log(1-ε)) + (1-q)·(log(1-q) - log ε), q = σ(β(h_c - h_r)).

    The reverse KL divergence of the policy's choice between the two from a label of probability 1-ε; ε > 0.

    Args:
        beta: Regularisation towards the starting model; larger is stronger.
        label_smoothing: Probability that a label is flipped; the divergence is infinite at 0.

    Source: EXO, arXiv 2402.00856 equation 16.
    """
    margin = beta * _margin(chosen, rejected, chosen_reference, rejected_reference)
    of_chosen = margin.sigmoid() * (_logsigmoid(margin) - math.log1p(-label_smoothing))
    return of_chosen + (-margin).sigmoid() * (_logsigmoid(-margin) - math.log(label_smoothing))


@built_in(PairLoss)
def nca_pair(
    chosen: Tensor,
    rejected: Tensor,
    chosen_reference: Tensor,
    rejected_reference: Tensor,
    *,
    beta: Annotated[float, Field(gt=0)] = 0.1,
) -> Tensor:
    """Compares each response with noise, which keeps the chosen one's likelihood up (NCA).

    [N] -log σ(βh_c) - ½·log σ(-βh_c) - ½·log σ(-βh_r): each response against noise, not against the other.

    With DPO the chosen response's likelihood may fall together with the rejected one's. This loss prevents
    that.

    Args:
        beta: Regularisation towards the starting model; larger is stronger.

    Source: NCA, arXiv 2402.05369, its loss for two responses and hard labels.
    """
    chosen_reward = beta * (chosen - chosen_reference)
    rejected_reward = beta * (rejected - rejected_reference)
    noise = 0.5 * (_logsigmoid(-chosen_reward) + _logsigmoid(-rejected_reward))
    return -_logsigmoid(chosen_reward) - noise


@built_in(PairLoss)
def apo_zero(
    chosen: Tensor,
    rejected: Tensor,
    chosen_reference: Tensor,
    rejected_reference: Tensor,
    *,
    beta: Annotated[float, Field(gt=0)] = 0.1,
) -> Tensor:
    """Raises chosen and lowers rejected responses, for chosen responses better than the model's own (APO).

    [N] 1 - σ(βh_c) + σ(βh_r): raises the chosen response and lowers the rejected one.

    Suitable if chosen responses are better than the model's own.

    Args:
        beta: Regularisation towards the starting model; larger is stronger.

    Source: APO, arXiv 2408.06266 equation 7.
    """
    chosen_loss = 1 - (beta * (chosen - chosen_reference)).sigmoid()
    return chosen_loss + (beta * (rejected - rejected_reference)).sigmoid()


@built_in(PairLoss)
def apo_down(
    chosen: Tensor,
    rejected: Tensor,
    chosen_reference: Tensor,
    rejected_reference: Tensor,
    *,
    beta: Annotated[float, Field(gt=0)] = 0.1,
) -> Tensor:
    """Lowers both responses, the rejected one more, for chosen responses worse than the model's own (APO).

    [N] σ(βh_c) + 1 - σ(β(h_c - h_r)): lowers both responses, and the rejected one more.

    Suitable if chosen responses are worse than the model's own.

    Args:
        beta: Regularisation towards the starting model; larger is stronger.

    Source: APO, arXiv 2408.06266 equation 8.
    """
    margin = beta * _margin(chosen, rejected, chosen_reference, rejected_reference)
    return (beta * (chosen - chosen_reference)).sigmoid() + 1 - margin.sigmoid()


@built_in(PairLoss)
def cpo(
    chosen: Tensor,
    rejected: Tensor,
    *,
    beta: Annotated[float, Field(gt=0)] = 0.1,
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0,
) -> Tensor:
    """DPO's loss without a reference (CPO). Combine it with chosen_nll, which replaces the reference.

    [N] -(1-ε)·log σ(βd) - ε·log σ(-βd), d = chosen - rejected: DPO with a uniform reference.

    CPO adds `chosen_nll`, which replaces the reference.

    Args:
        beta: Factor of the difference of log-probabilities.
        label_smoothing: Probability that a label is flipped.

    Source: CPO, arXiv 2401.08417 equation 3; the smoothing is TRL's.
    """
    return _smoothed(beta * (chosen - rejected), label_smoothing)


@built_in(PairLoss)
def cpo_hinge(chosen: Tensor, rejected: Tensor, *, beta: Annotated[float, Field(gt=0)] = 0.1) -> Tensor:
    """CPO with the hinge loss: zero once the margin is wide enough.

    [N] max(0, 1 - β(chosen - rejected)): CPO with the hinge loss, like in TRL.

    Args:
        beta: The loss is zero from a margin of 1/beta, in nats.

    Source: SLiC-HF, arXiv 2305.10425 (its δ is 1/β).
    """
    return (1 - beta * (chosen - rejected)).relu()


@built_in(PairLoss)
def cpo_ipo(
    chosen: Tensor,
    rejected: Tensor,
    chosen_length: Tensor,
    rejected_length: Tensor,
    *,
    beta: Annotated[float, Field(gt=0)] = 0.1,
) -> Tensor:
    """CPO that pulls the margin per token towards a finite target.

    [N] (chosen/|c| - rejected/|r| - 1/(2β))²: CPO with IPO's loss, like in TRL.

    Args:
        beta: The target margin is 1/(2 beta), in nats per token.

    Source: IPO, arXiv 2310.12036 equation 17, without a reference and with means over tokens.
    """
    return (chosen / chosen_length - rejected / rejected_length - 1 / (2 * beta)) ** 2


@built_in(PairLoss)
def simpo(
    chosen: Tensor,
    rejected: Tensor,
    chosen_length: Tensor,
    rejected_length: Tensor,
    *,
    beta: Annotated[float, Field(gt=0)] = 2.0,
    gamma: Annotated[float, Field(ge=0)] = 0.5,
) -> Tensor:
    """Log-probabilities per token without a reference, with a target margin (SimPO).

    [N] -log σ(β(chosen/|c| - rejected/|r|) - γ): no reference, and a target margin γ.

    Args:
        beta: Factor of the difference of log-probabilities per token. The authors use 2 to 10.
        gamma: Target margin of the product. The authors start from a quarter of beta.

    Source: SimPO, arXiv 2405.14734 equation 6. The defaults are the starting values of its authors (β 2 to
    10, γ a quarter of β or more). TRL's CPO has the same γ as `simpo_gamma`, but its default β is 0.1, a
    twentieth of the paper's.
    """
    return -_logsigmoid(beta * (chosen / chosen_length - rejected / rejected_length) - gamma)


@built_in(PairLoss)
@having(metrics=lambda losses, options: {"log_odds_ratio": -losses / options["beta"]})
def odds_ratio(
    chosen: Tensor,
    rejected: Tensor,
    chosen_length: Tensor,
    rejected_length: Tensor,
    *,
    beta: Annotated[float, Field(gt=0)] = 0.1,
) -> Tensor:
    """The odds ratio of chosen and rejected response (ORPO), in addition to chosen_nll.

    [N] -β·log σ(log odds(p_c) - log odds(p_r)), odds(p) = p/(1-p), p the geometric mean over tokens.

    ORPO adds `chosen_nll`. β is the paper's λ.

    Args:
        beta: Weight relative to the likelihood of the chosen response: lambda in the paper.

    Source: ORPO, arXiv 2403.07691 equations 4 and 7.
    """
    margin = _log_odds(chosen / chosen_length) - _log_odds(rejected / rejected_length)
    return -beta * _logsigmoid(margin)


@built_in(PairLoss)
@having(metrics=lambda losses, options: {"nll_loss": losses})
def chosen_nll(chosen: Tensor, chosen_length: Tensor) -> Tensor:
    """The chosen response's negative log-likelihood per token, added to another loss.

    [N] -chosen/|c|: the chosen response's negative log-likelihood per token, added to another loss.

    Sources: ORPO, arXiv 2403.07691 equation 6; CPO, arXiv 2401.08417 section 3; added to DPO, arXiv
    2404.19733. Only the response counts, like in TRL's CPO and in the paper of ORPO. TRL's ORPO counts the
    chosen prompt too, but rows have no log-probabilities of their prompts. Pairs have equal weight. TRL takes
    the mean over the tokens of a micro-batch, which is the same for one pair.
    """
    return -chosen / chosen_length


def _margin(chosen: Tensor, rejected: Tensor, chosen_reference: Tensor, rejected_reference: Tensor) -> Tensor:
    return (chosen - chosen_reference) - (rejected - rejected_reference)


def _smoothed(margin: Tensor, label_smoothing: float) -> Tensor:
    return -(1 - label_smoothing) * _logsigmoid(margin) - label_smoothing * _logsigmoid(-margin)


def _log_odds(logprob: Tensor) -> Tensor:
    logprob = logprob.clamp(max=MAX_MEAN_LOGPROB)
    return logprob - (-logprob.expm1()).log()


def _logsigmoid(values: Tensor) -> Tensor:
    from torch.nn.functional import logsigmoid

    return logsigmoid(values)
