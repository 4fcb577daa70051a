"""Estimates of the divergence from the reference against verl, Trinity-RFT and TRL, and what is made of them.

TRL has its estimates inside the loss of a trainer: the loss with a coefficient of 1 less that with 0 is the
estimate's mean. `self` is what the method reads of the trainer.
"""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from trinity.algorithm.kl_fn import KL_FN
from trl import GRPOTrainer
from verl.trainer.ppo.core_algos import AdaptiveKLController, kl_penalty

from tests.others.peers.cases import Case, agree, every_case
from trinity_db.trainer.recipes.parts import kl
from trinity_db.trainer.recipes.parts.aggregation import token_mean
from trinity_db.trainer.recipes.parts.totals import Totals

VERL = {"k1": "k1", "k2": "k2", "low_var": "low_var_kl", "abs": "abs"}
TRINITY = {**VERL, "k3": "k3"}


def mean(values: Tensor, case: Case) -> Tensor:
    sequences = len(case.mask)
    return token_mean(values, case.mask, Totals(int(case.mask.sum()), sequences, sequences))


def trl_loss(case: Case, beta: float, *, is_corrected: bool) -> Tensor:
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (
            case.logprobs,
            torch.zeros_like(case.mask, dtype=torch.float64),
            None,
        ),
        _metrics={"train": defaultdict(list)},
        _entropy_bonus_enabled=False,
        accelerator=SimpleNamespace(gather=lambda x: x, reduce=lambda x, reduction: x, num_processes=1),
        args=SimpleNamespace(delta=None, steps_per_generation=1, use_bias_correction_kl=is_corrected),
        aux_loss_enabled=False,
        beta=beta,
        current_gradient_accumulation_steps=1,
        epsilon_high=0.2,
        epsilon_low=0.2,
        importance_sampling_level="token",
        loss_type="dapo",
        model=SimpleNamespace(training=True),
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        use_vllm=False,
    )
    inputs = {
        "prompt_ids": torch.zeros(len(case.mask), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(case.mask), 1, dtype=torch.long),
        "completion_ids": torch.zeros_like(case.mask, dtype=torch.long),
        "completion_mask": case.mask.long(),
        "advantages": case.advantages[:, 0],
        "old_per_token_logps": case.old,
        "ref_per_token_logps": case.reference,
        "num_items_in_batch": case.mask.sum(),
    }
    loss: Tensor = GRPOTrainer._compute_loss(trainer, None, inputs)
    return loss


@every_case
@pytest.mark.parametrize("name", VERL)
def test_estimates_against_verl(case: Case, name: str) -> None:
    ours = getattr(kl, name)(case.logprobs, case.reference, case.mask)
    theirs = kl_penalty(case.logprobs, case.reference, VERL[name]) * case.mask
    agree(name, "verl", ours, theirs, case.logprobs)


@every_case
@pytest.mark.parametrize("name", TRINITY)
def test_estimates_against_trinity(case: Case, name: str) -> None:
    ours = mean(getattr(kl, name)(case.logprobs, case.reference, case.mask), case)
    theirs, _ = KL_FN.get(TRINITY[name])(kl_coef=1.0).calculate_kl_loss(
        case.logprobs, case.reference, case.mask, "token-mean"
    )
    agree(name, "Trinity-RFT", ours, theirs, case.logprobs)


@every_case
def test_corrected_k3_against_trinity_where_it_does_not_cut_the_ratio_off(case: Case) -> None:
    mask = case.mask & ((case.logprobs - case.old).exp() < 2).detach()
    ours = kl.corrected_k3(case.logprobs, case.reference, case.old, mask)
    trinity = KL_FN.get("corrected_k3")(kl_coef=1.0)
    theirs = trinity.calculate_kl(case.logprobs, case.reference, case.old) * mask
    agree("corrected_k3", "Trinity-RFT", ours, theirs, case.logprobs)


@every_case
@pytest.mark.parametrize("name", ["k3", "corrected_k3"])
def test_estimates_as_a_loss_against_trl(case: Case, name: str) -> None:
    is_corrected = name == "corrected_k3"
    columns = (case.reference, case.old) if is_corrected else (case.reference,)
    ours = mean(getattr(kl, name)(case.logprobs, *columns, case.mask), case)
    theirs = trl_loss(case, 1.0, is_corrected=is_corrected) - trl_loss(case, 0.0, is_corrected=is_corrected)
    agree(name, "TRL", ours, theirs, case.logprobs)


@every_case
def test_the_penalty_in_the_reward_against_trinity(case: Case) -> None:
    estimates = kl.k1(case.old, case.reference, case.mask)
    ours = kl.penalised_rewards(case.rewards, estimates, case.mask, coefficient=0.05)
    last = case.mask.cumsum(dim=1).argmax(dim=1)
    scores = torch.zeros_like(case.old).index_put((torch.arange(len(last)), last), case.rewards)

    class Batch(dict[str, Tensor]):
        batch_size = case.mask.shape

    batch = Batch(
        responses=case.mask.long(),
        token_level_scores=scores,
        attention_mask=case.mask,
        response_mask=case.mask,
        old_log_probs=case.old,
        ref_log_prob=case.reference,
    )
    trinity = KL_FN.get("k1")(kl_coef=0.05)
    experiences, metrics = trinity.apply_kl_penalty_to_reward(SimpleNamespace(batch=batch))
    agree("penalised_rewards", "Trinity-RFT", ours, experiences.batch["token_level_rewards"].sum(dim=1))
    means = estimates.sum(dim=1) / case.mask.sum(dim=1)
    assert metrics["kl"] == pytest.approx(means.mean().item())


def test_the_adaptive_coefficient_against_verl() -> None:
    controller = AdaptiveKLController(init_kl_coef=0.02, target_kl=0.1, horizon=1000)
    coefficient = torch.tensor(0.02, dtype=torch.float64)
    for measured in (0.1, 0.11, 5.0, 0.095, 0.0):
        adapted = kl.adapted_coefficient(coefficient.item(), measured, target=0.1, horizon=1000, sequences=64)
        controller.update(measured, 64)
        coefficient = torch.tensor(adapted, dtype=torch.float64)
        theirs = torch.tensor(controller.value, dtype=torch.float64)
        agree("adapted_coefficient", "verl", coefficient, theirs)
