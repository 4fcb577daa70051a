"""Policy losses against verl's, Trinity-RFT's and TRL's, aggregated as the peer does it."""

from collections import defaultdict
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from trinity.algorithm.policy_loss_fn import POLICY_LOSS_FN
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.config.actor import ActorConfig

from tests.others.peers.cases import Case, agree, every_case
from trinity_db.trainer.recipes.parts import policy_losses as ours

NO_BOUND = 1e9  # for bounds that a peer cannot leave out, or ours


def token_mean(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum() / mask.sum()


def sequence_mean(values: Tensor, mask: Tensor) -> Tensor:
    return ((values * mask).sum(dim=1) / mask.sum(dim=1)).mean()


def by_verl(
    name: str, case: Case, advantages: Tensor, aggregation: str = "token-mean", **config: Any
) -> Tensor:
    actor = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **config)
    mask = case.mask.double()
    advantages = advantages.expand_as(mask)
    loss: Tensor = get_policy_loss_fn(name)(case.old, case.logprobs, advantages, mask, aggregation, actor)[0]
    return loss


def by_trinity(name: str, case: Case, advantages: Tensor, **options: Any) -> Tensor:
    function = POLICY_LOSS_FN.get(name)(backend="tinker", **options)
    loss: Tensor = function(
        logprob=case.logprobs,
        old_logprob=case.old,
        action_mask=case.mask,
        advantages=advantages.expand_as(case.mask),
    )[0]
    return loss


def by_trl(trainer: type, case: Case, *, args: dict[str, Any] | None = None, **settings: Any) -> Tensor:
    """A trainer's loss without the trainer: it finds the log-probabilities where it looks for its model's."""
    mask = case.mask.double()
    prompts = torch.zeros(len(mask), 1, dtype=torch.long)
    this = SimpleNamespace(
        **{"epsilon_low": 0.2, "epsilon_high": 0.2, "importance_sampling_level": "token"} | settings,
        args=SimpleNamespace(**{"delta": None, "steps_per_generation": 1} | (args or {})),
        _get_per_token_logps_and_entropies=lambda *_, **__: (case.logprobs, torch.zeros_like(mask), None),
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        _metrics=defaultdict(lambda: defaultdict(list)),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        beta=0.0,
        use_vllm=False,
        _entropy_bonus_enabled=False,
    )
    inputs = {
        "prompt_ids": prompts,
        "prompt_mask": prompts,
        "completion_ids": torch.zeros_like(case.mask, dtype=torch.long),
        "completion_mask": mask,
        "advantages": case.advantages[:, 0],
        "old_per_token_logps": case.old,
        "old_logps": (case.old * mask).sum(dim=1),
        "num_items_in_batch": mask.sum(),
    }
    loss: Tensor = trainer._compute_loss(this, None, inputs)  # type: ignore[attr-defined]
    return loss


@every_case
def test_ppo_clip_with_dual_clip_is_verls_and_trinitys(case: Case) -> None:
    for advantages in (case.advantages, case.token_advantages):
        losses = ours.ppo_clip(case.logprobs, case.old, advantages, case.mask, clip_high=0.28, dual_clip=3.0)
        mine = token_mean(losses["loss"], case.mask)
        bounds: dict[str, Any] = {
            "clip_ratio": 0.2,
            "clip_ratio_low": 0.2,
            "clip_ratio_high": 0.28,
            "clip_ratio_c": 3.0,
        }
        agree(
            "ppo_clip, dual clip", "verl", mine, by_verl("vanilla", case, advantages, **bounds), case.logprobs
        )
        theirs = by_trinity(
            "ppo", case, advantages, clip_range_low=0.2, clip_range_high=0.28, clip_ratio_c=3.0
        )
        agree("ppo_clip, dual clip", "Trinity-RFT", mine, theirs, case.logprobs)


@every_case
def test_ppo_clip_is_trls_and_without_dual_clip_verls(case: Case) -> None:
    losses = ours.ppo_clip(case.logprobs, case.old, case.advantages, case.mask)["loss"]
    theirs = by_trl(GRPOTrainer, case, loss_type="grpo")
    agree("ppo_clip", "TRL", sequence_mean(losses, case.mask), theirs, case.logprobs)
    theirs = by_trl(GRPOTrainer, case, loss_type="dapo")
    agree("ppo_clip", "TRL", token_mean(losses, case.mask), theirs, case.logprobs)
    theirs = by_verl("vanilla", case, case.advantages, clip_ratio_c=NO_BOUND)
    agree("ppo_clip", "verl", token_mean(losses, case.mask), theirs, case.logprobs)


@every_case
def test_policy_gradient_is_verls_gpg_and_trinitys_opmd(case: Case) -> None:
    advantages = case.token_advantages
    losses = ours.policy_gradient(case.logprobs, advantages, case.mask)["loss"]
    mine = token_mean(losses, case.mask)
    agree("policy_gradient", "verl", mine, by_verl("gpg", case, advantages), case.logprobs)
    for tau in (0.5, 1.0):
        losses = ours.policy_gradient(case.logprobs, advantages, case.mask, tau=tau)["loss"]
        theirs = by_trinity("opmd", case, advantages, tau=tau)
        agree("policy_gradient, tau", "Trinity-RFT", token_mean(losses, case.mask), theirs, case.logprobs)


@every_case
def test_sequence_clip_is_trls_rloo(case: Case) -> None:
    losses = ours.sequence_clip(case.logprobs, case.old, case.advantages, case.mask)["loss"]
    mine = sequence_mean(losses, case.mask)
    agree("sequence_clip", "TRL", mine, by_trl(RLOOTrainer, case), case.logprobs)


@every_case
@pytest.mark.parametrize(("low", "high"), [(3e-4, 4e-4), (0.2, 0.4)])
def test_gspo_is_verls_trinitys_and_trls(case: Case, low: float, high: float) -> None:
    for advantages in (case.advantages, case.token_advantages):
        losses = ours.gspo(case.logprobs, case.old, advantages, case.mask, clip_low=low, clip_high=high)[
            "loss"
        ]
        mine = sequence_mean(losses, case.mask)
        theirs = by_verl(
            "gspo", case, advantages, "seq-mean-token-mean", clip_ratio_low=low, clip_ratio_high=high
        )
        agree("gspo", "verl", mine, theirs, case.logprobs)
        theirs = by_trinity("gspo", case, advantages, clip_range_low=low, clip_range_high=high)
        agree("gspo", "Trinity-RFT", mine, theirs, case.logprobs)
        if advantages is case.advantages:
            theirs = by_trl(
                GRPOTrainer,
                case,
                loss_type="grpo",
                importance_sampling_level="sequence",
                epsilon_low=low,
                epsilon_high=high,
            )
            agree("gspo", "TRL", mine, theirs, case.logprobs)


@every_case
def test_cispo_is_verls_trinitys_and_trls(case: Case) -> None:
    losses = ours.cispo(case.logprobs, case.old, case.token_advantages, case.mask)["loss"]
    mine = token_mean(losses, case.mask)
    theirs = by_verl("cispo", case, case.token_advantages, clip_ratio_low=1.0, clip_ratio_high=0.28)
    agree("cispo", "verl", mine, theirs, case.logprobs)
    agree("cispo", "Trinity-RFT", mine, by_trinity("cispo", case, case.token_advantages), case.logprobs)
    losses = ours.cispo(case.logprobs, case.old, case.advantages, case.mask, clip_high=4.0)["loss"]
    theirs = by_trl(GRPOTrainer, case, loss_type="cispo", epsilon_high=5.0)
    agree("cispo", "TRL", token_mean(losses, case.mask), theirs, case.logprobs)


@every_case
def test_sapo_is_verls_and_trls(case: Case) -> None:
    losses = ours.sapo(case.logprobs, case.old, case.token_advantages, case.mask)["loss"]
    theirs = by_verl("sapo", case, case.token_advantages, tau_pos=1.0, tau_neg=1.05)
    agree("sapo", "verl", sequence_mean(losses, case.mask), theirs, case.logprobs)
    losses = ours.sapo(
        case.logprobs,
        case.old,
        case.advantages,
        case.mask,
        temperature_positive=2.0,
        temperature_negative=3.5,
    )["loss"]
    temperatures = {"sapo_temperature_pos": 2.0, "sapo_temperature_neg": 3.5}
    theirs = by_trl(GRPOTrainer, case, loss_type="sapo", args=temperatures)
    agree("sapo", "TRL", sequence_mean(losses, case.mask), theirs, case.logprobs)


@every_case
def test_sppo_is_trinitys(case: Case) -> None:
    losses = ours.sppo(case.logprobs, case.old, case.token_advantages, case.mask)["loss"]
    theirs = by_trinity("sppo", case, case.token_advantages)
    agree("sppo", "Trinity-RFT", token_mean(losses, case.mask), theirs, case.logprobs)


@every_case
@pytest.mark.parametrize("threshold", [0.0, 0.5])
def test_topr_is_trinitys(case: Case, threshold: float) -> None:
    losses = ours.topr(case.logprobs, case.old, case.advantages, case.mask, threshold=threshold)["loss"]
    theirs = by_trinity("topr", case, case.advantages, advantage_threshold=threshold)
    agree("topr", "Trinity-RFT", token_mean(losses, case.mask), theirs, case.logprobs)


@every_case
def test_dppo_is_verls(case: Case) -> None:
    for bound in (20.0, 1.5):
        losses = ours.dppo(
            case.logprobs, case.old, case.token_advantages, case.mask, clip_low=0.1, max_ratio=bound
        )["loss"]
        theirs = by_verl(
            "dppo_tv",
            case,
            case.token_advantages,
            clip_ratio_low=0.1,
            clip_ratio_high=0.2,
            clip_ratio_c=bound,
        )
        agree("dppo", "verl", token_mean(losses, case.mask), theirs, case.logprobs)


CLIP_MODES = {
    "none": "none",
    "two_side": "two-side",
    "one_side": "one-side",
    "sequence_one_side": "gspo-one-side",
    "ring": "ring",
}
WEIGHTS = {
    "none": "none",
    "ratio": "importance_sampling",
    "sequence_ratio": "gspo_importance_sampling",
    "advantage": "advantage",
}
REGULARIZERS = {"none": "none", "k2": "k2", "forward_kl": "forward-kl"}
RECS = [
    (clip_mode, weight, regularizer)
    for clip_mode, weight, regularizer in product(CLIP_MODES, WEIGHTS, REGULARIZERS)
    if weight != "sequence_ratio" or clip_mode == "sequence_one_side"  # on others the peer fails
]


@every_case
@pytest.mark.parametrize(("clip_mode", "weight", "regularizer"), RECS)
def test_rec_is_trinitys(case: Case, clip_mode: Any, weight: Any, regularizer: Any) -> None:
    coefficient = 0.0 if regularizer == "none" else 0.3
    losses = ours.rec(
        case.logprobs,
        case.old,
        case.token_advantages,
        case.mask,
        clip_mode=clip_mode,
        weight=weight,
        temperature=0.7,
        regularizer=regularizer,
        coefficient=coefficient,
        outer_low=0.4,
        outer_high=0.5,
    )["loss"]
    theirs = by_trinity(
        "rec",
        case,
        case.token_advantages,
        clip_mode=CLIP_MODES[clip_mode],
        weight=WEIGHTS[weight],
        temp=0.7,
        regularizer=REGULARIZERS[regularizer],
        regularizer_coef=coefficient,
        epsilon_low_prime=0.4,
        epsilon_high_prime=0.5,
    )
    aggregate = sequence_mean if clip_mode == "sequence_one_side" else token_mean
    agree(f"rec, {clip_mode}", "Trinity-RFT", aggregate(losses, case.mask), theirs, case.logprobs)
