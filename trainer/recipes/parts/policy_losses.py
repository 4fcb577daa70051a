"""Policy losses: compute one loss per token from log-probabilities and advantages.

Each is a pure function of the columns that its parameters name. It returns "loss" [B, K]. If it limits the
influence of tokens, it also returns "clip_ratio" [B, K], which is 1.0 for limited tokens, and if it excludes
tokens on purpose, "unmasked_ratio" [B, K], which is 1.0 for the others. A micro-batch has B sequences and K
token columns. Advantages are [B, 1] or [B, K]. Numbers outside the mask are set to 0 first, so that they
affect neither loss nor gradient. In the formulas r is the ratio of probabilities now/old, A the advantage,
and sg(.) stops the gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from trinity_db.trainer.recipes.parts.built_in import built_in

if TYPE_CHECKING:
    from torch import Tensor

MAX_LOG_RATIO = 20.0  # nats; e^20 is far outside any clip range and still finite in float32


def log_ratio(logprobs: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """[B, K] log(now/old) of each token, clamped to ±20 so that its exponential stays finite."""
    return _masked(logprobs - old, mask).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


@built_in()
def ppo_clip(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2,
    clip_high: Annotated[float, Field(gt=0)] = 0.2,
    dual_clip: Annotated[float | None, Field(gt=1)] = None,
) -> dict[str, Tensor]:
    """The clipped probability ratio of PPO.

    max(-A·r, -A·clamp(r, 1 - clip_low, 1 + clip_high)): leaving the range does not lower the loss.

    With `dual_clip` the loss is at most -A·dual_clip where A < 0. This bounds the influence of a token that
    has become much more likely. Off by default, like in PPO and TRL. verl and Trinity-RFT always use 3.

    Args:
        clip_low: The probability ratio new/old is clipped below 1 - clip_low.
        clip_high: The probability ratio new/old is clipped above 1 + clip_high. The recipe dapo uses 0.28.
        dual_clip: Limit of the ratio for tokens with a negative advantage. None: no limit.

    Sources: PPO, arXiv 1707.06347 equation 7; two widths, DAPO, arXiv 2503.14476 section 3.1; dual-clip
    PPO, arXiv 1912.09729.
    """
    ratio, advantages = log_ratio(logprobs, old, mask).exp(), _masked(advantages, mask)
    loss, cut = _clipped(ratio, advantages, clip_low, clip_high)
    if dual_clip is not None:
        loss = loss.minimum(-advantages * dual_clip).where(advantages < 0, loss)
        cut = cut | ((advantages < 0) & (ratio > dual_clip))
    return {"loss": loss, "clip_ratio": cut.float()}


@built_in()
def policy_gradient(
    logprobs: Tensor, advantages: Tensor, mask: Tensor, *, tau: Annotated[float, Field(ge=0)] = 0.0
) -> dict[str, Tensor]:
    """Advantage times log-probability, without a ratio (REINFORCE).

    -A·log p / (1 + tau): REINFORCE, without a ratio to the policy that sampled the tokens.

    `tau` is OPMD's weight of the divergence from the current policy. In this form it only scales the loss. It
    is 1 in Trinity-RFT's OPMD and AsymRE; verl's gpg has no such weight.

    Args:
        tau: The loss is divided by 1 + tau. In OPMD, tau is the regularisation towards the current policy.

    Sources: REINFORCE, Williams 1992; OPMD, Trinity-RFT, arXiv 2505.17826; AsymRE, arXiv 2506.20520.
    """
    return {"loss": -_masked(advantages, mask) * _masked(logprobs, mask) / (1 + tau)}


@built_in()
def sequence_clip(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2,
    clip_high: Annotated[float, Field(gt=0)] = 0.2,
) -> dict[str, Tensor]:
    """The clipped probability ratio of the whole response.

    `ppo_clip` of the whole sequence's ratio, exp(Σ_t log r_t), the same for all its tokens.

    A response is one action here, like in RLOO. With seq_mean_token_mean it equals TRL's RLOO: the mean over
    sequences of one clipped term each. verl, Trinity-RFT and OpenRLHF clip RLOO by token, like `ppo_clip`.
    The ratio of a long response leaves the range immediately. `gspo` avoids this with a mean over tokens.

    Args:
        clip_low: The ratio is clipped below 1 - clip_low.
        clip_high: The ratio is clipped above 1 + clip_high.

    Sources: RLOO, arXiv 2402.14740; the clipping, TRL's RLOOTrainer.
    """
    total = log_ratio(logprobs, old, mask).sum(dim=1, keepdim=True)
    ratio = total.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    loss, cut = _clipped(ratio, _masked(advantages, mask), clip_low, clip_high)
    return {"loss": loss, "clip_ratio": cut.float()}


@built_in()
def gspo(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 3e-4,
    clip_high: Annotated[float, Field(gt=0)] = 4e-4,
) -> dict[str, Tensor]:
    """The clipped ratio of a response per token: the geometric mean of its tokens' ratios (GSPO).

    `ppo_clip` of w_t = sg(s)·p_t/sg(p_t), where s = exp(mean_t log r_t) is the sequence's ratio.

    Tokens of a sequence are clipped together, and each has only the gradient of its probability. With
    one advantage per sequence and seq_mean_token_mean, value and gradient equal the sequence form (TRL,
    AReaL, OpenRLHF). verl and Trinity-RFT have this token form.

    Args:
        clip_low: The mean ratio is clipped below 1 - clip_low. It moves far less than a token's ratio.
        clip_high: The mean ratio is clipped above 1 + clip_high.

    Source: GSPO, arXiv 2507.18071 section 4.3 (GSPO-token); the widths, its section 5.1.
    """
    sequence = _mean_log_ratio(logprobs, old, mask)
    trained = _masked(logprobs, mask)
    ratio = (trained - trained.detach() + sequence).exp()
    loss, cut = _clipped(ratio, _masked(advantages, mask), clip_low, clip_high)
    return {"loss": loss, "clip_ratio": cut.float()}


@built_in()
def cispo(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: Annotated[float, Field(gt=0, le=1)] = 1.0,
    clip_high: Annotated[float, Field(gt=0)] = 0.28,
    mask_clipped: bool = False,
) -> dict[str, Tensor]:
    """Policy gradient weighted by a clipped ratio; every token keeps its gradient (CISPO).

    -sg(clamp(r, 1 - clip_low, 1 + clip_high))·A·log p: the weight is clipped, and no token is excluded.

    "clip_ratio" is 1.0 where the weight was clipped; such a token keeps its gradient. The upper bound is 1 +
    clip_high, like in the paper, verl and Trinity-RFT. TRL's epsilon_high is the bound itself, so its 5.0 is
    clip_high = 4.0 here. clip_low = 1.0 means no lower bound, like in the paper and TRL.

    `mask_clipped` selects the paper's unified form: tokens whose ratio has left the range in the direction of
    their advantage are excluded, like with PPO's clipping. "unmasked_ratio" is 1.0 for the others;
    Trinity-RFT calls their share masked_frac.

    Args:
        clip_low: The weight is at least 1 - clip_low. 1: no lower bound.
        clip_high: The weight is at most 1 + clip_high.
        mask_clipped: Exclude tokens with a positive advantage above the range, and tokens with a negative
            advantage below it.

    Source: CISPO, MiniMax-M1, arXiv 2506.13585 equations 4 and 5; with the mask, equations 6 and 7.
    """
    ratio, advantages = log_ratio(logprobs, old, mask).exp().detach(), _masked(advantages, mask)
    weight = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = -weight * advantages * _masked(logprobs, mask)
    terms = {"loss": loss, "clip_ratio": (weight != ratio).float()}
    if not mask_clipped:
        return terms
    cut = _beyond(ratio, advantages, clip_low, clip_high)
    return terms | {"loss": loss.masked_fill(cut, 0.0), "unmasked_ratio": (~cut).float()}


@built_in()
def sapo(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    temperature_positive: Annotated[float, Field(gt=0)] = 1.0,
    temperature_negative: Annotated[float, Field(gt=0)] = 1.05,
) -> dict[str, Tensor]:
    """A smooth gate instead of clipping (SAPO).

    -A·(4/τ)·sigmoid(τ·(r - 1)): instead of clipping, a gate that closes smoothly as r leaves 1.

    τ is temperature_positive where A > 0, else temperature_negative. At r = 1 the gradient equals the policy
    gradient. The gradient flows through the gate, like in the paper, TRL, verl and AReaL. Trinity-RFT
    detaches the gate and multiplies it by log p, which doubles the gradient at r = 1, and the gate never
    closes.

    Args:
        temperature_positive: Steepness of the gate for tokens with a positive advantage. A larger value
            closes it faster.
        temperature_negative: Steepness of the gate for all other tokens.

    Source: SAPO, arXiv 2511.20347.
    """
    ratio, advantages = log_ratio(logprobs, old, mask).exp(), _masked(advantages, mask)
    temperature = advantages.new_full(advantages.shape, temperature_negative)
    temperature = temperature.masked_fill(advantages > 0, temperature_positive)
    return {"loss": -advantages * (temperature * (ratio - 1)).sigmoid() * 4 / temperature}


@built_in()
def sppo(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_range: Annotated[float, Field(gt=0)] = 0.3,
) -> dict[str, Tensor]:
    """Advantage times log-ratio within a range, zero outside (softmax PPO).

    -A·log r while 1/(1 + clip_range) <= r <= 1 + clip_range, else 0: PPO's surrogate of the logarithm.

    Tokens outside the range are excluded for either sign of A, unlike in PPO. This is the softmax form of
    mirror ascent. Self-play preference optimisation is another method with the same abbreviation.

    Args:
        clip_range: The range is from 1 / (1 + clip_range) to 1 + clip_range.

    Sources: softmax PPO, arXiv 2108.05828; the range, Trinity-RFT's sPPO.
    """
    change = log_ratio(logprobs, old, mask)
    ratio = change.exp()
    cut = (ratio < 1 / (1 + clip_range)) | (ratio > 1 + clip_range)
    return {"loss": -_masked(advantages, mask) * change.masked_fill(cut, 0.0), "clip_ratio": cut.float()}


@built_in()
def topr(
    logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, *, threshold: float = 0.0
) -> dict[str, Tensor]:
    """Good responses have full weight; bad responses weigh less once they have become unlikely (TOPR).

    -sg(α)·A·log p, with α = min(r, 1) where A <= threshold, else 1: bad responses may weigh less.

    Good responses count fully, even if another policy sampled them. Bad responses that are already unlikely
    have a small weight. The paper uses the reward for A, and the ratio of the whole sequence for r, which is
    near 0 or above 1 for long responses. Here r is the ratio of a token, like in Trinity-RFT. "clip_ratio" is
    1.0 where r was lowered to 1.

    Args:
        threshold: A response is bad if its advantage is at most this.

    Source: TOPR, arXiv 2503.14286.
    """
    ratio, advantages = log_ratio(logprobs, old, mask).exp().detach(), _masked(advantages, mask)
    bad = advantages <= threshold
    weight = ratio.clamp(max=1.0).where(bad, 1.0)
    return {"loss": -weight * advantages * _masked(logprobs, mask), "clip_ratio": (bad & (ratio > 1)).float()}


@built_in()
def dppo(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: Annotated[float, Field(gt=0, le=1)] = 0.2,
    clip_high: Annotated[float, Field(gt=0, le=1)] = 0.2,
    max_ratio: Annotated[float, Field(gt=1)] = 20.0,
) -> dict[str, Tensor]:
    """Excludes tokens by the change of their probability, not by the ratio (DPPO).

    -sg(min(r, max_ratio))·A·log p, excluded where the probability itself has moved too far.

    A token is excluded if p - p_old > clip_high and A > 0, or if p - p_old < -clip_low and A < 0. This
    difference is the token's total variation. Unlike the ratio, it stays small for rare tokens. Equal to
    verl's dppo_tv. prime-rl's default loss has the same gradient, without `max_ratio`, and with (log r)² as a
    separate term.

    Args:
        clip_low: A token with a negative advantage is excluded once its probability has fallen by more than
            this.
        clip_high: A token with a positive advantage is excluded once its probability has risen by more than
            this.
        max_ratio: Maximum weight of a token, which is its ratio.

    Source: DPPO, arXiv 2602.04879, binary total variation; max_ratio, its section 5.4.
    """
    change, advantages = log_ratio(logprobs, old, mask).detach(), _masked(advantages, mask)
    trained, start = _masked(logprobs, mask), _masked(old, mask)
    moved = trained.detach().exp() - start.exp()
    cut = ((advantages > 0) & (moved > clip_high)) | ((advantages < 0) & (moved < -clip_low))
    loss = -change.exp().clamp(max=max_ratio) * advantages * trained
    return {"loss": loss.masked_fill(cut, 0.0), "clip_ratio": cut.float()}


def _rec_options_go_together(options: Any) -> None:
    if options.weight == "sequence_ratio" and options.clip_mode != "sequence_one_side":
        raise ValueError("weight sequence_ratio requires clip_mode sequence_one_side")
    if (options.regularizer == "none") != (options.coefficient == 0):
        raise ValueError("a regularizer needs a coefficient above 0, and a coefficient a regularizer")


@built_in(check=_rec_options_go_together)
def rec(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_mode: Literal["none", "two_side", "one_side", "sequence_one_side", "ring"] = "none",
    clip_low: Annotated[float, Field(gt=0, le=1)] = 0.2,
    clip_high: Annotated[float, Field(gt=0)] = 0.2,
    outer_low: Annotated[float, Field(gt=0, le=1)] = 0.6,
    outer_high: Annotated[float, Field(gt=0)] = 2.0,
    weight: Literal["none", "ratio", "sequence_ratio", "advantage"] = "none",
    temperature: Annotated[float, Field(gt=0)] = 1.0,
    regularizer: Literal["none", "k2", "forward_kl"] = "none",
    coefficient: Annotated[float, Field(ge=0)] = 0.0,
) -> dict[str, Tensor]:
    """REINFORCE with a choice of clipping, weights and regularisers (REC).

    -sg(w)·A·log p for the tokens that are not excluded, plus a regulariser for all tokens. w is 1, r, s =
    exp(mean_t log r_t), or exp(A/temperature). Tokens are excluded by r, or by s (sequence_one_side). The
    regulariser is coefficient·(log r)² (k2), or -coefficient·log p (forward_kl).

    Trinity-RFT aggregates sequence_one_side with seq_mean_token_mean, and all others with token_mean. Source:
    REC, arXiv 2509.24203, like in Trinity-RFT.

    Args:
        clip_mode: Tokens to exclude. two_side: those with a ratio outside the range. one_side: those outside
            in the direction of their advantage. sequence_one_side: the same for the geometric mean of a
            response's ratios. ring: those outside the range, except those far outside, against the direction
            of their advantage.
        clip_low: The range starts at 1 - clip_low.
        clip_high: The range ends at 1 + clip_high.
        outer_low: With ring: for a positive advantage, ratios up to 1 - outer_low are far outside.
        outer_high: With ring: for a negative advantage, ratios from 1 + outer_high are far outside.
        weight: Weight of a token: its ratio, the geometric mean of its response, or
            exp(advantage/temperature).
        temperature: For `weight: advantage`, in units of advantage.
        regularizer: Term added to the loss: the squared log-ratio (k2), or the negative log-likelihood of the
            sampled tokens (forward_kl).
        coefficient: Factor of the regulariser.
    """
    change = log_ratio(logprobs, old, mask)
    trained, advantages = _masked(logprobs, mask), _masked(advantages, mask)
    ratio, sequence_ratio = change.detach().exp(), _mean_log_ratio(logprobs, old, mask).exp()
    compared = sequence_ratio if clip_mode == "sequence_one_side" else ratio
    cut = _left_out_by_rec(clip_mode, compared, advantages, (clip_low, clip_high), (outer_low, outer_high))
    weights = _weights_of_rec(weight, ratio, sequence_ratio, advantages / temperature)
    penalties = {"none": change.new_zeros(change.shape), "k2": change.square(), "forward_kl": -trained}
    loss = (-weights * advantages * trained).masked_fill(cut, 0.0) + coefficient * penalties[regularizer]
    return {"loss": loss, "clip_ratio": cut.float()}


def _left_out_by_rec(
    clip_mode: str,
    ratio: Tensor,
    advantages: Tensor,
    inner: tuple[float, float],
    outer: tuple[float, float],
) -> Tensor:
    """[B, K] True for excluded tokens. The ratio is [B, K], or [B, 1] for whole sequences."""
    outside = (ratio < 1 - inner[0]) | (ratio > 1 + inner[1])
    match clip_mode:
        case "two_side":
            return outside
        case "one_side" | "sequence_one_side":
            return _beyond(ratio, advantages, *inner)
        case "ring":
            return outside & ~_beyond(ratio, -advantages, *outer)
        case _:
            return outside.new_zeros(outside.shape)


def _weights_of_rec(weight: str, ratio: Tensor, sequence_ratio: Tensor, tempered: Tensor) -> Tensor:
    """[B, K] or [B, 1] The weight of each token. `tempered` are the advantages over the temperature."""
    match weight:
        case "ratio":
            return ratio
        case "sequence_ratio":
            return sequence_ratio
        case "advantage":
            return tempered.exp()
        case _:
            return ratio.new_ones(ratio.shape)


def _masked(values: Tensor, mask: Tensor) -> Tensor:
    """[B, K] The values, 0 outside the mask. Values [B, 1] are repeated for each token."""
    return values.masked_fill(~mask, 0.0)


def _mean_log_ratio(logprobs: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """[B, 1] The mean of a sequence's log-ratios over its trained tokens. No gradient."""
    change = log_ratio(logprobs.detach(), old, mask)
    return change.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)


def _clipped(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """The clipped surrogate [B, K], and True where it is flat, so that a token adds no gradient."""
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = (-advantages * ratio).maximum(-advantages * clipped)
    return loss, _beyond(ratio, advantages, clip_low, clip_high)


def _beyond(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """[B, K] True where the ratio has left the range in the direction of the advantage."""
    return ((advantages > 0) & (ratio > 1 + clip_high)) | ((advantages < 0) & (ratio < 1 - clip_low))
