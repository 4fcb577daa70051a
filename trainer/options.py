"""Options of the parts that algorithms are composed of: a class for each part, without torch.

A class is named in the configuration by its `name`, which is also the name of the function in
`trainer/algorithms/` that it belongs to; its fields are that function's keyword-only parameters,
with the same defaults (a test holds them together). Each kind of part has a section, which ends in
the union of its classes: a new part is a class and its name in the union. Here are those of policy
gradients, and those that all share; advantages are in `advantage_options.py`, losses of pairs and of
demonstrations in `offline_options.py`.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from trinity_db.settings import Settings


class Own(Settings):
    """A part of your own, in the configuration `path/to/file.py:function` with its options beside it."""

    name: Literal["own"] = "own"
    function: str
    """Where it is: path/to/file.py:function."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Its keyword arguments."""


# Policy losses: algorithms/policy_losses.py


class PpoClip(Settings):
    """The clipped probability ratio of PPO."""

    name: Literal["ppo_clip"] = "ppo_clip"
    clip_low: float = Field(0.2, gt=0, lt=1)
    """Below 1 - clip_low the probability ratio new/old is clipped."""
    clip_high: float = Field(0.2, gt=0)
    """Above 1 + clip_high the probability ratio new/old is clipped. The recipe dapo takes 0.28."""
    dual_clip: float | None = Field(None, gt=1)
    """Limit of the ratio for tokens with a negative advantage. None: no limit."""


class PolicyGradient(Settings):
    """Advantage times log-probability, without a ratio (REINFORCE)."""

    name: Literal["policy_gradient"] = "policy_gradient"
    tau: float = Field(0.0, ge=0)
    """The loss is divided by 1 + tau. In OPMD, tau says how strongly the policy is held to the current
    one."""


class SequenceClip(Settings):
    """The clipped ratio of the probabilities of the whole response."""

    name: Literal["sequence_clip"] = "sequence_clip"
    clip_low: float = Field(0.2, gt=0, lt=1)
    """Below 1 - clip_low the ratio is clipped."""
    clip_high: float = Field(0.2, gt=0)
    """Above 1 + clip_high the ratio is clipped."""


class Gspo(Settings):
    """The clipped ratio of a response per token: the geometric mean of its tokens' ratios (GSPO)."""

    name: Literal["gspo"] = "gspo"
    clip_low: float = Field(3e-4, gt=0, lt=1)
    """Below 1 - clip_low the mean ratio is clipped. It moves far less than a token's ratio."""
    clip_high: float = Field(4e-4, gt=0)
    """Above 1 + clip_high the mean ratio is clipped."""


class Cispo(Settings):
    """Policy gradient weighed by a clipped ratio; every token keeps its gradient (CISPO)."""

    name: Literal["cispo"] = "cispo"
    clip_low: float = Field(1.0, gt=0, le=1)
    """The weight is at least 1 - clip_low. 1: no lower bound."""
    clip_high: float = Field(0.28, gt=0)
    """The weight is at most 1 + clip_high."""


class Sapo(Settings):
    """A smooth gate in place of clipping (SAPO)."""

    name: Literal["sapo"] = "sapo"
    temperature_positive: float = Field(1.0, gt=0)
    """How fast the gate closes for tokens with a positive advantage. A larger value closes it faster."""
    temperature_negative: float = Field(1.05, gt=0)
    """The same for all other tokens."""


class Sppo(Settings):
    """Advantage times log-ratio within a range, nothing outside (softmax PPO)."""

    name: Literal["sppo"] = "sppo"
    clip_range: float = Field(0.3, gt=0)
    """The range is from 1 / (1 + clip_range) to 1 + clip_range."""


class Topr(Settings):
    """Good responses have full weight. A bad one weighs less once it has become unlikely (TOPR)."""

    name: Literal["topr"] = "topr"
    threshold: float = 0.0
    """A response is bad if its advantage is at most this."""


class Dppo(Settings):
    """Leaves tokens out by how far their probability has moved, not by the ratio (DPPO)."""

    name: Literal["dppo"] = "dppo"
    clip_low: float = Field(0.2, gt=0, le=1)
    """A token with a negative advantage is left out once its probability has fallen by more than this."""
    clip_high: float = Field(0.2, gt=0, le=1)
    """A token with a positive advantage is left out once its probability has risen by more than this."""
    max_ratio: float = Field(20.0, gt=1)
    """The weight of a token, its ratio, is at most this."""


class Rec(Settings):
    """REINFORCE with a choice of clipping, weights and regularisers (REC)."""

    name: Literal["rec"] = "rec"
    clip_mode: Literal["none", "two_side", "one_side", "sequence_one_side", "ring"] = "none"
    """Which tokens are left out. two_side: those with a ratio outside the range. one_side: those outside
    in the direction of their advantage. sequence_one_side: the same for the geometric mean of a
    response's ratios. ring: those outside the range, unless they are far back."""
    clip_low: float = Field(0.2, gt=0, le=1)
    """The range reaches down to 1 - clip_low."""
    clip_high: float = Field(0.2, gt=0)
    """The range reaches up to 1 + clip_high."""
    outer_low: float = Field(0.6, gt=0, le=1)
    """With ring: far back, for a positive advantage, is at most 1 - outer_low."""
    outer_high: float = Field(2.0, gt=0)
    """With ring: far back, for a negative advantage, is at least 1 + outer_high."""
    weight: Literal["none", "ratio", "sequence_ratio", "advantage"] = "none"
    """The weight of a token: its ratio, the geometric mean of its response, or exp(advantage/temperature)."""
    temperature: float = Field(1.0, gt=0)
    """For `weight: advantage`, in units of advantage."""
    regularizer: Literal["none", "k2", "forward_kl"] = "none"
    """Added to the loss: the squared log-ratio (k2), or the negative log-likelihood of the sampled tokens
    (forward_kl)."""
    coefficient: float = Field(0.0, ge=0)
    """What the regulariser is multiplied by."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.weight == "sequence_ratio" and self.clip_mode != "sequence_one_side":
            raise ValueError("weight sequence_ratio goes with clip_mode sequence_one_side")
        if (self.regularizer == "none") != (self.coefficient == 0):
            raise ValueError("a regularizer needs a coefficient above 0, and a coefficient a regularizer")
        return self


PolicyLoss = Annotated[
    PpoClip | PolicyGradient | SequenceClip | Gspo | Cispo | Sapo | Sppo | Topr | Dppo | Rec | Own,
    Field(discriminator="name"),
]


# Corrections: algorithms/corrections.py


class ImportanceWeight(Settings):
    """A correction that weighs a token by proximal/behaviour; ratios are then relative to proximal."""

    proximal: Literal["recomputed", "interpolated"] = "recomputed"
    """The policy that ratios are relative to. recomputed: the policy at the start of the step.
    interpolated: a policy between the one that sampled the row and that one, nearer to it for staler
    rows."""


class TruncatedImportanceSampling(ImportanceWeight):
    """Weighs each token by proximal/behaviour, up to a bound."""

    name: Literal["truncated_importance_sampling"] = "truncated_importance_sampling"
    level: Literal["token", "sequence"] = "token"
    """token: one ratio for each token. sequence: all tokens of a sequence have the product of its ratios."""
    high: float = Field(2.0, gt=0)
    """The largest weight."""


class MaskedImportanceSampling(ImportanceWeight):
    """Weighs each token by proximal/behaviour, and leaves out what lies outside a range (IcePop)."""

    name: Literal["masked_importance_sampling"] = "masked_importance_sampling"
    level: Literal["token", "sequence"] = "token"
    """token: one ratio for each token. sequence: all tokens of a sequence have the product of its ratios."""
    low: float = Field(0.5, ge=0)
    """Ratios below it are left out."""
    high: float = Field(5.0, gt=0)
    """Ratios above it are left out."""

    @model_validator(mode="after")
    def _range_is_not_empty(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}, which leaves nothing; swap them")
        return self


class OffPolicySequenceMasking(Settings):
    """Leaves out bad responses that have become unlikely. Ratios stay relative to the policy that sampled."""

    name: Literal["off_policy_sequence_masking"] = "off_policy_sequence_masking"
    threshold: float = Field(0.1, ge=0)
    """How much less likely a response may have become, in nats per token on average."""


class M2po(ImportanceWeight):
    """Weighs each token by proximal/behaviour, and leaves out the tokens that stray most (M2PO).

    A batch makes one step, so the remaining tokens are not clipped, as in the paper.
    """

    name: Literal["m2po"] = "m2po"
    threshold: float = Field(0.04, gt=0)
    """Largest mean of squared log-ratios, in nats², over the tokens that the update moves further away."""

    @model_validator(mode="after")
    def _knows_the_whole_step(self) -> Self:
        if self.proximal == "interpolated":
            raise ValueError(
                "m2po compares all tokens of a step before its first update, where there is nothing to "
                "interpolate; leave proximal: recomputed"
            )
        return self


class OwnCorrection(ImportanceWeight, Own):
    """A correction of your own."""


Correction = Annotated[
    TruncatedImportanceSampling | MaskedImportanceSampling | OffPolicySequenceMasking | M2po | OwnCorrection,
    Field(discriminator="name"),
]


# Values: algorithms/values.py


class Values(Settings):
    """How the value head is trained."""

    coefficient: float = Field(0.5, ge=0)
    """Weight of the value loss, half the squared error, beside the policy loss."""
    clip_range: float | None = Field(0.2, gt=0)
    """How far an update may move a value from what it was at the start of the step, in units of reward. None:
    any distance. A batch makes one step, so values have not moved when it is computed."""


class Gae(Values):
    """Generalised advantage estimation: by how much each token came out better than the values expected."""

    name: Literal["gae"] = "gae"
    gamma: float = Field(1.0, gt=0, le=1)
    """How much of a reward counts one token earlier."""
    lam: float = Field(1.0, ge=0, le=1)
    """1 uses the reward itself and has no bias. 0 uses the value of the next token and has little
    variance."""


class OwnValues(Values, Own):
    """An estimate of your own: advantages from rewards and values."""


Value = Annotated[Gae | OwnValues, Field(discriminator="name")]


# Divergence from the reference: algorithms/kl.py


class Divergence(Settings):
    """How an estimate of the divergence is used."""

    coefficient: float = Field(0.001, ge=0)
    """Cost of one nat of divergence, in units of the loss or of the reward."""
    applies_to: Literal["loss", "reward"] = "loss"
    """loss: the divergence is added to each token's loss. reward: its sum over a response is taken off the
    reward; over all steps of an attempt where only the last reward counts (multi_step_group, remax)."""
    target: float | None = Field(None, gt=0)
    """The coefficient changes from step to step so that the divergence stays near this, in nats per token.
    None: the coefficient is fixed."""
    horizon: int = Field(10_000, ge=1)
    """Number of sequences in which a changing coefficient moves by at most a fifth."""


class K1(Divergence):
    """The log-ratio itself: unbiased, and in the reward only."""

    name: Literal["k1"] = "k1"
    applies_to: Literal["loss", "reward"] = "reward"
    """Only reward. As a loss, k1 has an expected gradient of zero."""

    @model_validator(mode="after")
    def _is_no_loss(self) -> Self:
        if self.applies_to == "loss":
            raise ValueError(
                "k1 as a loss has an expected gradient of zero; "
                "take k2 or corrected_k3, or set applies_to: reward"
            )
        return self


class K2(Divergence):
    """Half the square of the log-ratio; as a loss it has the gradient of KL(policy ‖ reference)."""

    name: Literal["k2"] = "k2"


class K3(Divergence):
    """Unbiased and never negative; as a loss it has the gradient of KL(reference ‖ policy)."""

    name: Literal["k3"] = "k3"


class LowVar(Divergence):
    """k3 within bounds."""

    name: Literal["low_var"] = "low_var"


class Abs(Divergence):
    """The size of the log-ratio."""

    name: Literal["abs"] = "abs"


class CorrectedK3(Divergence):
    """k3 times the probability ratio: as a loss it has the gradient of KL(policy ‖ reference)."""

    name: Literal["corrected_k3"] = "corrected_k3"

    @model_validator(mode="after")
    def _is_a_loss(self) -> Self:
        if self.applies_to == "reward":
            raise ValueError("corrected_k3 in the reward is k3, since nothing has moved yet; take k3")
        return self


class OwnDivergence(Divergence, Own):
    """A divergence of your own."""


Kl = Annotated[
    K1 | K2 | K3 | LowVar | Abs | CorrectedK3 | OwnDivergence,
    Field(discriminator="name"),
]


# Aggregation: algorithms/aggregation.py


class TokenMean(Settings):
    """Each trained token of the step weighs alike."""

    name: Literal["token_mean"] = "token_mean"


class SeqMeanTokenSum(Settings):
    """The mean over sequences of the sums over their tokens."""

    name: Literal["seq_mean_token_sum"] = "seq_mean_token_sum"


class SeqMeanTokenMean(Settings):
    """The mean over sequences of the means over their tokens: each sequence weighs alike."""

    name: Literal["seq_mean_token_mean"] = "seq_mean_token_mean"


class SeqMeanTokenSumNorm(Settings):
    """The mean over sequences of the sums over their tokens, divided by one length for all (Dr. GRPO)."""

    name: Literal["seq_mean_token_sum_norm"] = "seq_mean_token_sum_norm"
    length: int = Field(ge=1)
    """Tokens: usually the most that a response may have."""


Aggregation = Annotated[
    TokenMean | SeqMeanTokenSum | SeqMeanTokenMean | SeqMeanTokenSumNorm | Own,
    Field(discriminator="name"),
]
