"""Corrections against verl's rollout correction, TRL's off-policy mask and Trinity-RFT's sequence masking.

TRL truncates and masks inside a method that also generates, AReaL cannot be installed here: loops in
tests/unit/test_corrections.py stand for both.
"""

from typing import Literal

import pytest
from torch import Tensor
from trinity.algorithm.policy_loss_fn import POLICY_LOSS_FN
from trl import GRPOTrainer
from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
from verl.workers.config.actor import ActorConfig

from tests.others.peers.cases import Case, agree, every_case
from trinity_db.trainer.recipes.parts.aggregation import token_mean
from trinity_db.trainer.recipes.parts.corrections import (
    masked_importance_sampling,
    off_policy_sequence_masking,
    truncated_importance_sampling,
)
from trinity_db.trainer.recipes.parts.policy_losses import ppo_clip
from trinity_db.trainer.recipes.parts.totals import Totals

Level = Literal["token", "sequence"]
NEVER = 1e9  # a dual clip that is never met, where the peer has no way to leave it off


def mean(values: Tensor, case: Case) -> Tensor:
    sequences = len(case.mask)
    return token_mean(values, case.mask, Totals(int(case.mask.sum()), sequences, sequences))


def verl_weights(case: Case, level: Level, threshold: float | str) -> Tensor:
    weights: Tensor
    weights, _ = compute_rollout_correction_weights(
        case.old - case.behaviour, case.mask.double(), level, threshold
    )
    return weights


@every_case
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("high", [1.1, 2.0, 5.0])
def test_truncated_importance_sampling(case: Case, level: Level, high: float) -> None:
    weights = truncated_importance_sampling(case.old, case.behaviour, case.mask, level=level, high=high)
    agree(f"truncated_importance_sampling, {level}", "verl", weights, verl_weights(case, level, high))


@every_case
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(("low", "high"), [(0.5, 5.0), (0.7, 1.3)])
def test_masked_importance_sampling(case: Case, level: Level, low: float, high: float) -> None:
    weights = masked_importance_sampling(case.old, case.behaviour, case.mask, level=level, low=low, high=high)
    theirs = verl_weights(case, level, f"{low}_{high}")
    agree(f"masked_importance_sampling, {level}", "verl", weights, theirs)


@every_case
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_decoupled_ppo(case: Case, level: Level) -> None:
    """The proximal policy, `old`, is what the ratio is relative to; the weight is proximal/behaviour."""
    weights = truncated_importance_sampling(case.old, case.behaviour, case.mask, level=level, high=2.0)
    loss = ppo_clip(case.logprobs, case.old, case.advantages, case.mask)["loss"]
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio=0.2, clip_ratio_c=NEVER
    )
    theirs, _ = compute_policy_loss_vanilla(
        case.old,
        case.logprobs,
        case.advantages.expand_as(case.mask),
        case.mask.double(),
        config=config,
        rollout_is_weights=verl_weights(case, level, 2.0),
    )
    agree(f"decoupled PPO, {level}", "verl", mean(loss * weights, case), theirs, case.logprobs)


@every_case
@pytest.mark.parametrize("threshold", [0.02, 0.1])
def test_off_policy_sequence_masking(case: Case, threshold: float) -> None:
    weights = off_policy_sequence_masking(
        case.logprobs, case.behaviour, case.mask, case.advantages, threshold=threshold
    )
    mask = case.mask.double()
    theirs = GRPOTrainer.get_off_policy_mask(case.advantages, case.logprobs, case.behaviour, mask, threshold)
    agree("off_policy_sequence_masking", "TRL", weights, theirs * mask)


@every_case
@pytest.mark.parametrize("per", ["sequence", "token"])
def test_ppo_with_off_policy_sequence_masking(case: Case, per: str) -> None:
    advantages = case.advantages if per == "sequence" else case.token_advantages
    weights = off_policy_sequence_masking(case.logprobs, case.behaviour, case.mask, advantages)
    loss = ppo_clip(case.logprobs, case.behaviour, advantages, case.mask)["loss"]
    trinity = POLICY_LOSS_FN.get("ppo")(
        backend="tinker", clip_range=0.2, clip_ratio_c=NEVER, enable_sequence_masking=True
    )
    theirs, _ = trinity(
        logprob=case.logprobs,
        old_logprob=case.behaviour,
        action_mask=case.mask,
        advantages=advantages.expand_as(case.mask),
    )
    part = f"PPO with sequence masking, advantages per {per}"
    agree(part, "Trinity-RFT", mean(loss * weights, case), theirs, case.logprobs)


@every_case
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_bounds_are_met_and_not_by_all(case: Case, level: Level) -> None:
    """Else the tests above would compare less than they say."""
    masked = masked_importance_sampling(case.old, case.behaviour, case.mask, level=level, low=0.7, high=1.3)
    assert 0 < (masked[case.mask] == 0).sum() < case.mask.sum()
    cut = truncated_importance_sampling(case.old, case.behaviour, case.mask, level=level, high=1.1) == 1.1
    assert 0 < cut[case.mask].sum() < case.mask.sum()
