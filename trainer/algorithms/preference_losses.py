"""Losses of preference pairs: pure functions of log-probabilities, one loss per pair.

Shapes: N pairs, everything [N]. `chosen` and `rejected` are the sums of the log-probabilities of a response's
trained tokens under the policy; they have the gradient. `chosen_reference` and `rejected_reference` are the
same sums under the reference. `chosen_length` and `rejected_length` are the numbers of these tokens, at least
1. In the formulas h_c = chosen - chosen_reference and h_r = rejected - rejected_reference are the log-ratios,
|c| and |r| the lengths, ε is `label_smoothing`, σ the logistic function. A configuration may add up several
losses.
"""

import math

from torch import Tensor
from torch.nn.functional import logsigmoid

from trinity_db.trainer.algorithms.properties import having

MAX_MEAN_LOGPROB = -1e-7  # nats; nearer to 0 the odds p/(1-p) are infinite in float32


def sigmoid(
    chosen: Tensor,
    rejected: Tensor,
    chosen_reference: Tensor,
    rejected_reference: Tensor,
    *,
    beta: float = 0.1,
) -> Tensor:
    """[N] -log σ(β(h_c - h_r)): the likelihood of the preference in the Bradley-Terry model.

    Source: DPO, arXiv 2305.18290 equation 7.
    """
    return -logsigmoid(beta * _margin(chosen, rejected, chosen_reference, rejected_reference))


def hinge(
    chosen: Tensor,
    rejected: Tensor,
    chosen_reference: Tensor,
    rejected_reference: Tensor,
    *,
    beta: float = 0.1,
) -> Tensor:
    """[N] max(0, 1 - β(h_c - h_r)): the loss is 0 once the margin is 1/β nats.

    Source: SLiC-HF, arXiv 2305.10425, with DPO's log-ratios as in RSO, arXiv 2309.06657.
    """
    return (1 - beta * _margin(chosen, rejected, chosen_reference, rejected_reference)).relu()


def ipo(
    chosen: Tensor,
    rejected: Tensor,
    chosen_reference: Tensor,
    rejected_reference: Tensor,
    chosen_length: Tensor,
    rejected_length: Tensor,
    *,
    beta: float = 0.1,
) -> Tensor:
    """[N] (h_c/|c| - h_r/|r| - 1/(2β))²: moves the margin to a finite value, so that no pair is overfitted.

    Source: IPO, arXiv 2310.12036 equation 17 (β is its τ). The paper has sums over tokens. With means over
    tokens, β has the same effect at any length; TRL (after asking the authors) and AReaL take means too.
    """
    chosen_mean = (chosen - chosen_reference) / chosen_length
    rejected_mean = (rejected - rejected_reference) / rejected_length
    return (chosen_mean - rejected_mean - 1 / (2 * beta)) ** 2


def robust(
    chosen: Tensor,
    rejected: Tensor,
    chosen_reference: Tensor,
    rejected_reference: Tensor,
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.1,
) -> Tensor:
    """[N] (-(1-ε)·log σ(βΔ) + ε·log σ(-βΔ)) / (1-2ε), Δ = h_c - h_r: unbiased under flipped labels.

    If each label is flipped with probability ε, the expectation is DPO's loss with the true labels.

    Source: robust DPO, arXiv 2403.00409 section 3.
    """
    margin = beta * _margin(chosen, rejected, chosen_reference, rejected_reference)
    kept, flipped = (1 - label_smoothing) * logsigmoid(margin), label_smoothing * logsigmoid(-margin)
    return (flipped - kept) / (1 - 2 * label_smoothing)


def cdpo(
    chosen: Tensor,
    rejected: Tensor,
    chosen_reference: Tensor,
    rejected_reference: Tensor,
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.1,
) -> Tensor:
    """[N] -(1-ε)·log σ(βΔ) - ε·log σ(-βΔ), Δ = h_c - h_r: cross-entropy with a label of probability 1-ε.

    Source: E. Mitchell, "A note on DPO with noisy preferences" (2023). OpenRLHF has it. In TRL 1.16,
    `label_smoothing` has this effect on CPO, and none on DPO's sigmoid loss.
    """
    margin = beta * _margin(chosen, rejected, chosen_reference, rejected_reference)
    return _smoothed(margin, label_smoothing)


def sigmoid_norm(
    chosen: Tensor,
    rejected: Tensor,
    chosen_reference: Tensor,
    rejected_reference: Tensor,
    chosen_length: Tensor,
    rejected_length: Tensor,
    *,
    beta: float = 0.1,
) -> Tensor:
    """[N] -log σ(β(h_c/|c| - h_r/|r|)): DPO per token, so that length alone does not lower the loss.

    The log-ratios are means over tokens. So β should be larger than in DPO by about a response's length.

    Source: Tülu 3, arXiv 2411.15124 section 5.
    """
    chosen_mean = (chosen - chosen_reference) / chosen_length
    rejected_mean = (rejected - rejected_reference) / rejected_length
    return -logsigmoid(beta * (chosen_mean - rejected_mean))


def exo_pair(
    chosen: Tensor,
    rejected: Tensor,
    chosen_reference: Tensor,
    rejected_reference: Tensor,
    *,
    beta: float = 0.1,
    label_smoothing: float = 1e-3,
) -> Tensor:
    """[N] q·(log q - log(1-ε)) + (1-q)·(log(1-q) - log ε), q = σ(β(h_c - h_r)).

    The reverse KL divergence of the policy's choice between the two from a label of probability 1-ε; ε > 0.

    Source: EXO, arXiv 2402.00856 equation 16.
    """
    margin = beta * _margin(chosen, rejected, chosen_reference, rejected_reference)
    kept = margin.sigmoid() * (logsigmoid(margin) - math.log1p(-label_smoothing))
    return kept + (-margin).sigmoid() * (logsigmoid(-margin) - math.log(label_smoothing))


def nca_pair(
    chosen: Tensor,
    rejected: Tensor,
    chosen_reference: Tensor,
    rejected_reference: Tensor,
    *,
    beta: float = 0.1,
) -> Tensor:
    """[N] -log σ(βh_c) - ½·log σ(-βh_c) - ½·log σ(-βh_r): each response against noise, not against the other.

    With DPO the chosen response's likelihood may fall together with the rejected one's. This loss prevents
    it.

    Source: NCA, arXiv 2402.05369, its loss for two responses and hard labels.
    """
    chosen_reward = beta * (chosen - chosen_reference)
    rejected_reward = beta * (rejected - rejected_reference)
    noise = 0.5 * (logsigmoid(-chosen_reward) + logsigmoid(-rejected_reward))
    return -logsigmoid(chosen_reward) - noise


def apo_zero(
    chosen: Tensor,
    rejected: Tensor,
    chosen_reference: Tensor,
    rejected_reference: Tensor,
    *,
    beta: float = 0.1,
) -> Tensor:
    """[N] 1 - σ(βh_c) + σ(βh_r): raises the chosen response and lowers the rejected one.

    Use it if chosen responses are better than the model's own.

    Source: APO, arXiv 2408.06266 equation 7.
    """
    chosen_loss = 1 - (beta * (chosen - chosen_reference)).sigmoid()
    return chosen_loss + (beta * (rejected - rejected_reference)).sigmoid()


def apo_down(
    chosen: Tensor,
    rejected: Tensor,
    chosen_reference: Tensor,
    rejected_reference: Tensor,
    *,
    beta: float = 0.1,
) -> Tensor:
    """[N] σ(βh_c) + 1 - σ(β(h_c - h_r)): lowers both responses, and the rejected one more.

    Use it if chosen responses are worse than the model's own.

    Source: APO, arXiv 2408.06266 equation 8.
    """
    margin = beta * _margin(chosen, rejected, chosen_reference, rejected_reference)
    return (beta * (chosen - chosen_reference)).sigmoid() + 1 - margin.sigmoid()


def cpo(chosen: Tensor, rejected: Tensor, *, beta: float = 0.1, label_smoothing: float = 0.0) -> Tensor:
    """[N] -(1-ε)·log σ(βd) - ε·log σ(-βd), d = chosen - rejected: DPO as if the reference were uniform.

    CPO adds `chosen_nll`, which takes the place of the reference.

    Source: CPO, arXiv 2401.08417 equation 3; the smoothing is TRL's.
    """
    return _smoothed(beta * (chosen - rejected), label_smoothing)


def cpo_hinge(chosen: Tensor, rejected: Tensor, *, beta: float = 0.1) -> Tensor:
    """[N] max(0, 1 - β(chosen - rejected)): CPO with the hinge loss, as in TRL.

    Source: SLiC-HF, arXiv 2305.10425 (its δ is 1/β).
    """
    return (1 - beta * (chosen - rejected)).relu()


def cpo_ipo(
    chosen: Tensor,
    rejected: Tensor,
    chosen_length: Tensor,
    rejected_length: Tensor,
    *,
    beta: float = 0.1,
) -> Tensor:
    """[N] (chosen/|c| - rejected/|r| - 1/(2β))²: CPO with IPO's loss, as in TRL.

    Source: IPO, arXiv 2310.12036 equation 17, without a reference and with means over tokens.
    """
    return (chosen / chosen_length - rejected / rejected_length - 1 / (2 * beta)) ** 2


def simpo(
    chosen: Tensor,
    rejected: Tensor,
    chosen_length: Tensor,
    rejected_length: Tensor,
    *,
    beta: float = 2.0,
    gamma: float = 0.5,
) -> Tensor:
    """[N] -log σ(β(chosen/|c| - rejected/|r|) - γ): no reference, and a target margin γ.

    Source: SimPO, arXiv 2405.14734 equation 6. The defaults are the starting values of its authors (β 2 to
    10, γ a quarter of β or more). TRL's CPO has the same γ as `simpo_gamma`, but its default β is 0.1, a
    twentieth of the paper's.
    """
    return -logsigmoid(beta * (chosen / chosen_length - rejected / rejected_length) - gamma)


@having(metrics=lambda losses, options: {"log_odds_ratio": -losses / options["beta"]})
def odds_ratio(
    chosen: Tensor,
    rejected: Tensor,
    chosen_length: Tensor,
    rejected_length: Tensor,
    *,
    beta: float = 0.1,
) -> Tensor:
    """[N] -β·log σ(log odds(p_c) - log odds(p_r)), odds(p) = p/(1-p), p the geometric mean over tokens.

    ORPO adds `chosen_nll`. β is the paper's λ.

    Source: ORPO, arXiv 2403.07691 equations 4 and 7.
    """
    margin = _log_odds(chosen / chosen_length) - _log_odds(rejected / rejected_length)
    return -beta * logsigmoid(margin)


@having(metrics=lambda losses, options: {"nll_loss": losses})
def chosen_nll(chosen: Tensor, chosen_length: Tensor) -> Tensor:
    """[N] -chosen/|c|: the chosen response's negative log-likelihood per token, added to another loss.

    Sources: ORPO, arXiv 2403.07691 equation 6; CPO, arXiv 2401.08417 section 3; DPO with it, arXiv
    2404.19733. Only the response counts, as in TRL's CPO and in the paper of ORPO. TRL's ORPO counts the
    chosen prompt too, of which rows have no log-probabilities. All pairs weigh the same. TRL takes the mean
    over the tokens of a micro-batch, which is the same for one pair.
    """
    return -chosen / chosen_length


def _margin(chosen: Tensor, rejected: Tensor, chosen_reference: Tensor, rejected_reference: Tensor) -> Tensor:
    return (chosen - chosen_reference) - (rejected - rejected_reference)


def _smoothed(margin: Tensor, label_smoothing: float) -> Tensor:
    return -(1 - label_smoothing) * logsigmoid(margin) - label_smoothing * logsigmoid(-margin)


def _log_odds(logprob: Tensor) -> Tensor:
    logprob = logprob.clamp(max=MAX_MEAN_LOGPROB)
    return logprob - (-logprob.expm1()).log()
