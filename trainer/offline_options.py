"""Options of the losses of pairs, labelled responses and demonstrations: as `options.py` says."""

from typing import Annotated, Literal

from pydantic import Field

from trinity_db.settings import Settings
from trinity_db.trainer.options import Own

# Preference losses: algorithms/preference_losses.py

HoldsToStart = Annotated[
    float,
    Field(gt=0, description="How strongly the policy is held to the starting model: more is stronger."),
]
WideMargin = Annotated[float, Field(gt=0, description="A margin of 1/beta, in nats, is wide enough.")]
FiniteMargin = Annotated[
    float, Field(gt=0, description="The finite margin is 1/(2 beta), in nats per token.")
]
FlippedLabels = Annotated[float, Field(ge=0, lt=0.5, description="Chance that a label is flipped.")]


class PairLoss(Settings):
    """A loss of preference pairs, one of several that may be added up."""

    weight: float = Field(1.0, gt=0)
    """Weight of this loss where several are added."""


class Sigmoid(PairLoss):
    """Direct preference optimisation (DPO)."""

    name: Literal["sigmoid"] = "sigmoid"
    beta: HoldsToStart = 0.1


class Hinge(PairLoss):
    """A pair whose margin over the starting model's is wide enough adds nothing more (SLiC)."""

    name: Literal["hinge"] = "hinge"
    beta: WideMargin = 0.1


class Ipo(PairLoss):
    """Pulls the margin per token towards a finite one, so that no pair is overfitted (IPO)."""

    name: Literal["ipo"] = "ipo"
    beta: FiniteMargin = 0.1


class Robust(PairLoss):
    """DPO's loss, unbiased where labels are flipped with a known chance."""

    name: Literal["robust"] = "robust"
    beta: HoldsToStart = 0.1
    label_smoothing: FlippedLabels = 0.1


class Cdpo(PairLoss):
    """Conservative DPO: each label is taken as true with a chance below one."""

    name: Literal["cdpo"] = "cdpo"
    beta: HoldsToStart = 0.1
    label_smoothing: FlippedLabels = 0.1


class SigmoidNorm(PairLoss):
    """DPO with log-probabilities per token, so that length alone earns nothing."""

    name: Literal["sigmoid_norm"] = "sigmoid_norm"
    beta: float = Field(0.1, gt=0)
    """How strongly the policy is held to the starting model. Of means over tokens: 5 is a usual value."""


class ExoPair(PairLoss):
    """The policy's choice between the two, by reverse KL to the label (EXO)."""

    name: Literal["exo_pair"] = "exo_pair"
    beta: HoldsToStart = 0.1
    label_smoothing: float = Field(1e-3, gt=0, lt=0.5)
    """Chance that a label is flipped; the divergence is infinite at 0."""


class NcaPair(PairLoss):
    """Each response against noise, which keeps the chosen one's likelihood up (NCA)."""

    name: Literal["nca_pair"] = "nca_pair"
    beta: HoldsToStart = 0.1


class ApoZero(PairLoss):
    """Chosen up and rejected down: for chosen responses better than the model's own (APO)."""

    name: Literal["apo_zero"] = "apo_zero"
    beta: HoldsToStart = 0.1


class ApoDown(PairLoss):
    """Both down, rejected more: for chosen responses worse than the model's own (APO)."""

    name: Literal["apo_down"] = "apo_down"
    beta: HoldsToStart = 0.1


class Cpo(PairLoss):
    """DPO's loss without a reference (CPO). Put chosen_nll beside it, which does the reference's work."""

    name: Literal["cpo"] = "cpo"
    beta: float = Field(0.1, gt=0)
    """The difference of log-probabilities is multiplied by this."""
    label_smoothing: FlippedLabels = 0.0


class CpoHinge(PairLoss):
    """CPO in which a pair with a wide enough margin adds nothing more."""

    name: Literal["cpo_hinge"] = "cpo_hinge"
    beta: WideMargin = 0.1


class CpoIpo(PairLoss):
    """CPO that pulls the margin per token towards a finite one."""

    name: Literal["cpo_ipo"] = "cpo_ipo"
    beta: FiniteMargin = 0.1


class Simpo(PairLoss):
    """Log-probabilities per token without a reference, and a margin to be reached (SimPO)."""

    name: Literal["simpo"] = "simpo"
    beta: float = Field(2.0, gt=0)
    """The difference of log-probabilities per token is multiplied by this. The authors use 2 to 10."""
    gamma: float = Field(0.5, ge=0)
    """The margin that the product should exceed. The authors start from a quarter of beta."""


class OddsRatio(PairLoss):
    """The ratio of the odds of chosen and rejected response (ORPO); chosen_nll stands beside it."""

    name: Literal["odds_ratio"] = "odds_ratio"
    beta: float = Field(0.1, gt=0)
    """Weight beside the likelihood of the chosen response: lambda in the paper."""


class ChosenNll(PairLoss):
    """The chosen response's negative log-likelihood per token, beside another loss."""

    name: Literal["chosen_nll"] = "chosen_nll"


class OwnPairLoss(PairLoss, Own):
    """A loss of preference pairs of your own."""


PreferenceLoss = Annotated[
    Sigmoid
    | Hinge
    | Ipo
    | Robust
    | Cdpo
    | SigmoidNorm
    | ExoPair
    | NcaPair
    | ApoZero
    | ApoDown
    | Cpo
    | CpoHinge
    | CpoIpo
    | Simpo
    | OddsRatio
    | ChosenNll
    | OwnPairLoss,
    Field(discriminator="name"),
]


# Label losses: algorithms/label_losses.py


class Kto(Settings):
    """Compares each response's log-ratio with the policy's average divergence (KTO)."""

    name: Literal["kto"] = "kto"
    beta: HoldsToStart = 0.1


class ApoZeroUnpaired(Settings):
    """Good responses up, bad ones down: for good ones that are better than the model's own (APO)."""

    name: Literal["apo_zero_unpaired"] = "apo_zero_unpaired"
    beta: HoldsToStart = 0.1


LabelLoss = Annotated[Kto | ApoZeroUnpaired | Own, Field(discriminator="name")]


# Supervised losses: algorithms/supervised_losses.py


class Nll(Settings):
    """The negative log-likelihood of each trained token."""

    name: Literal["nll"] = "nll"


class Dft(Settings):
    """The negative log-likelihood, each token weighed by its probability (dynamic fine-tuning)."""

    name: Literal["dft"] = "dft"


class Phi(Settings):
    """The negative log-likelihood, each token weighed by how undecided the policy is about it (CHORD-φ)."""

    name: Literal["phi"] = "phi"


SupervisedLoss = Annotated[Nll | Dft | Phi | Own, Field(discriminator="name")]
