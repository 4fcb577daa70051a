"""Values, and PPO as a whole, against verl's and Trinity-RFT's, and against TRL's former PPOTrainer.

Trinity-RFT's estimate does not know tokens between two turns, and computes with whatever value stands behind
a row's end: it is given rows of one turn, with zeros there. TRL 1.16 has no PPO any more; its loss of values
stands here as TRL's ppo_trainer.py had it until then.
"""

import numpy as np
import pytest
import torch
from torch import Tensor
from trinity.algorithm.advantage_fn.ppo_advantage import PPOAdvantageFn
from verl import DataProto
from verl.trainer.ppo import core_algos
from verl.workers.config.actor import ActorConfig

from tests.others.peers.cases import Case, agree, every_case
from tests.support.recipes import recipe
from trinity_db.trainer.algorithms.compositions import create
from trinity_db.trainer.recipes.parts.advantages import whiten
from trinity_db.trainer.recipes.parts.totals import Totals
from trinity_db.trainer.recipes.parts.values import gae, token_rewards, value_loss

DISCOUNTS = pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (1.0, 0.95), (0.9, 0.7), (0.99, 0.0)])


def rewards_by_token(case: Case) -> Tensor:
    return token_rewards(case.rewards, 0.1 * case.token_advantages, case.mask)


def whitened(advantages: Tensor, mask: Tensor) -> Tensor:
    rows = whiten([row[kept].numpy() for row, kept in zip(advantages, mask, strict=True)])
    return torch.from_numpy(np.concatenate(rows))


@every_case
@DISCOUNTS
def test_advantages_and_returns_are_verls(case: Case, gamma: float, lam: float) -> None:
    values, mask = case.reference, case.mask
    theirs, returns = core_algos.compute_gae_advantage_return(
        rewards_by_token(case), values, mask.double(), gamma, lam
    )
    ours = gae(rewards_by_token(case), values, mask, gamma=gamma, lam=lam)
    agree("gae, returns", "verl", (ours + values)[mask], returns[mask])
    agree("gae, whiten", "verl", whitened(ours, mask), theirs[mask])


@every_case
@DISCOUNTS
def test_advantages_and_returns_of_single_turns_are_trinitys(case: Case, gamma: float, lam: float) -> None:
    single = [row for row in range(len(case.mask)) if row != 4]  # which has two turns
    mask, values = case.mask[single], case.reference[single].masked_fill(~case.mask[single], 0.0)
    rewards = rewards_by_token(case)[single]
    rows = {"token_level_rewards": rewards, "values": values, "response_mask": mask.double()}
    found, _ = PPOAdvantageFn(gamma=gamma, lam=lam)(DataProto.from_dict(tensors=rows))
    ours = gae(rewards, values, mask, gamma=gamma, lam=lam)
    agree("gae, returns", "Trinity-RFT", (ours + values)[mask], found.batch["returns"][mask])
    agree("gae, whiten", "Trinity-RFT", whitened(ours, mask), found.batch["advantages"][mask])


def values_of(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Values that take a gradient, those before, which are up to several clip ranges away, and returns."""
    old = case.token_advantages
    return (old + (case.logprobs - case.old).detach()).requires_grad_(), old, case.reference


@every_case
@pytest.mark.parametrize("clip_range", [0.2, 0.5])
def test_the_loss_of_values_is_verls(case: Case, clip_range: float) -> None:
    values, old, returns = values_of(case)
    mask = case.mask
    ours = value_loss(values, old, returns, mask, clip_range=clip_range)
    theirs, clipped = core_algos.compute_value_loss(values, returns, old, mask.double(), clip_range)
    agree("value_loss, clipped", "verl", ours["loss"].sum() / mask.sum(), theirs, values)
    agree("value_loss, clip_ratio", "verl", ours["clip_ratio"].sum() / mask.sum(), clipped)
    assert 0 < float(clipped) < 1


@every_case
def test_the_loss_of_values_is_trls(case: Case) -> None:
    values, old, returns = values_of(case)
    mask = case.mask
    ours = value_loss(values, old, returns, mask, clip_range=0.2)["loss"].sum() / mask.sum()
    clipped = torch.clamp(values, old - 0.2, old + 0.2)
    larger = torch.max(torch.square(values - returns), torch.square(clipped - returns))
    agree("value_loss, clipped", "TRL", ours, 0.5 * larger[mask].mean(), values)


@every_case
def test_without_a_range_the_loss_of_values_is_verls_with_a_wide_one(case: Case) -> None:
    values, old, returns = values_of(case)
    ours = value_loss(values, old, returns, case.mask, clip_range=None)["loss"].sum() / case.mask.sum()
    theirs, _ = core_algos.compute_value_loss(values, returns, old, case.mask.double(), 1e9)
    agree("value_loss", "verl", ours, theirs, values)


@every_case
@pytest.mark.parametrize("coefficient", [0.0, 0.3])
def test_ppo_as_a_whole_is_verls(case: Case, coefficient: float) -> None:
    """From rewards and log-probabilities to the loss, with the divergence off the reward and a dual clip."""
    mask, weights = case.mask, case.mask.double()
    now = (case.token_advantages + 0.1 * case.reference).requires_grad_()
    kl = {"name": "k1", "coefficient": coefficient}
    value = {"gamma": 0.97, "lam": 0.9, "coefficient": 0.5}
    algorithm = create(recipe("ppo", kl=kl, value=value, dual_clip=3.0))
    rows = {
        "mask": mask,
        "behaviour": case.old,
        "reference": case.reference,
        "rewards": case.rewards,
        "groups": case.groups,
        "values": case.token_advantages,
        "weight": torch.ones(len(mask), dtype=torch.float64),
    }
    totals = Totals(int(mask.sum()), len(mask), len(mask))
    prepared, _ = algorithm.prepare(rows)
    asked = {"logprobs": case.logprobs, "values": now, "entropy": torch.zeros_like(now)}
    ours = algorithm.shares({**prepared, **asked}, totals)["loss"]

    scores = torch.zeros_like(now).masked_scatter(mask, rewards_at_the_end(case)[mask])
    penalties = coefficient * core_algos.kl_penalty(case.old, case.reference, "k1")
    advantages, returns = core_algos.compute_gae_advantage_return(
        scores - penalties * weights, case.token_advantages, weights, 0.97, 0.9
    )
    actor = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio_c=3.0)
    policy = core_algos.get_policy_loss_fn("vanilla")(
        case.old, case.logprobs, advantages, weights, "token-mean", actor
    )[0]
    critic, _ = core_algos.compute_value_loss(now, returns, case.token_advantages, weights, 0.2)
    agree("ppo, from reward to loss", "verl", ours, policy + 0.5 * critic, case.logprobs, now)


def rewards_at_the_end(case: Case) -> Tensor:
    """[B, K] Each row's reward at its last trained token, row by row."""
    scores = torch.zeros(case.mask.shape, dtype=torch.float64)
    for row, kept in enumerate(case.mask):
        scores[row, kept.nonzero()[-1]] = case.rewards[row]
    return scores
