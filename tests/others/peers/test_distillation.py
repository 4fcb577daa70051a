"""Distillation from stored log-probabilities against Trinity-RFT's advantage and TRL's divergence."""

from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from trinity.algorithm.advantage_fn import ADVANTAGE_FN
from trl.experimental.gkd import GKDTrainer
from trl.experimental.iw_opd import IWOPDTrainer
from verl import DataProto

from tests.others.peers.cases import Case, agree, every_case
from tests.support.recipes import recipe
from trinity_db.trainer.algorithms.compositions import create
from trinity_db.trainer.recipes.parts.distillation import jsd, reverse_kl
from trinity_db.trainer.recipes.parts.totals import Totals


def of_trinity(name: str, case: Case, **options: float) -> Tensor:
    """[B, K]"""
    columns = {
        "old_log_probs": case.old,
        "teacher_logprobs": case.reference,
        "response_mask": case.mask.double(),
    }
    found, _ = ADVANTAGE_FN.get(name)(**options)(DataProto.from_dict(tensors=columns))
    advantages: Tensor = found.batch["advantages"]
    return advantages


@every_case
def test_reverse_kl(case: Case) -> None:
    given = reverse_kl(case.old, case.reference, case.mask)
    agree("reverse_kl", "Trinity-RFT", given, of_trinity("on_policy_distill", case))
    # The end of Trinity-RFT's JSD where it is the same divergence.
    agree("reverse_kl, jsd at 0", "Trinity-RFT", given, of_trinity("jsd", case, lambda_coef=0.0))


def expected(logits: Tensor, teacher: Tensor, part: Callable[..., Tensor], **options: float) -> Tensor:
    """[T] Of each position the policy gradient's loss, in expectation over the policy's own tokens."""
    policy = logits.log_softmax(-1)
    advantages = part(policy.detach(), teacher.log_softmax(-1), torch.ones_like(policy).bool(), **options)
    return -(policy.exp().detach() * advantages * policy).sum(-1)


@pytest.mark.parametrize("spread", [0.3, 2.0])
@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9, None], ids=lambda beta: f"beta {beta}")
def test_the_expected_gradient_is_that_of_the_divergence(spread: float, beta: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    both = spread * torch.randn(2, 6, 11, generator=generator, dtype=torch.float64)
    logits, teacher = both[0].requires_grad_(), both[1]
    if beta is None:
        name, ours = "reverse_kl", expected(logits, teacher, reverse_kl)
    else:
        name, ours = "jsd", expected(logits, teacher, jsd, beta=beta)
    divergence = GKDTrainer.generalized_jsd_loss(
        logits[None], teacher[None], beta=1.0 if beta is None else beta, reduction="sum"
    )
    gradients = [torch.autograd.grad(loss, logits)[0] for loss in (ours.sum(), divergence)]
    agree(f"{name}, expected gradient", "TRL", *gradients)


@every_case
def test_a_loss_of_what_was_sampled(case: Case) -> None:
    """TRL weighs tokens by what came before them (IW-OPD); with gamma 0 it does not."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 11, case.mask.shape, generator=generator)
    logits = torch.randn(*case.mask.shape, 11, generator=generator, dtype=torch.float64, requires_grad=True)
    logprobs = logits.log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)
    algorithm = create(recipe("on_policy_distillation", loss="policy_gradient"))
    rows = {"behaviour": case.old, "teacher": case.reference, "mask": case.mask, "logprobs": logprobs}
    rows |= {"advantages": torch.zeros(len(tokens), 1).double(), "weight": torch.ones(len(tokens)).double()}
    prepared, _ = algorithm.prepare(rows)
    totals = Totals(int(case.mask.sum()), len(tokens), len(tokens))
    ours = algorithm.shares({**prepared, "entropy": torch.zeros_like(case.old)}, totals)["loss"]
    trainer = SimpleNamespace(temperature=1.0, iw_opd_gamma=0.0, iw_opd_epsilon=1e-8)
    trainer.model, trainer._metrics = SimpleNamespace(training=True), {"train": defaultdict(list)}
    labels = tokens.masked_fill(~case.mask, -100)
    columns = (logits, tokens, labels, case.reference, case.old)
    theirs = IWOPDTrainer._compute_iw_opd_loss(trainer, *columns)
    agree("on_policy_distillation", "TRL", ours, theirs, logits)
