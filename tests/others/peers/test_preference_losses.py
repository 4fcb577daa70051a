"""Losses of preference pairs against TRL's trainers and, where a pair stands alone, Trinity-RFT.

TRL's methods are called without a trainer: `self` and the model are what the method reads of them.
The first half of a case's rows is chosen, the second half rejected.
"""

import inspect
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from trinity.algorithm.policy_loss_fn import POLICY_LOSS_FN
from trl import DPOTrainer
from trl.experimental.cpo import CPOTrainer
from trl.experimental.orpo import ORPOTrainer

from tests.others.peers.cases import Case, agree, every_case
from trinity_db.trainer.recipes.parts import preference_losses
from trinity_db.trainer.recipes.parts.preference_losses import (
    cdpo,
    chosen_nll,
    cpo,
    cpo_hinge,
    cpo_ipo,
    odds_ratio,
    sigmoid,
    simpo,
)

ACCELERATOR = SimpleNamespace(
    device=torch.device("cpu"), gather=lambda value: value, gather_for_metrics=lambda value: value
)


def ours(loss: Callable[..., Tensor], case: Case, **options: float) -> Tensor:
    """[N]"""
    lengths, sums = case.mask.sum(dim=1), (case.logprobs * case.mask).sum(dim=1)
    references = (case.reference * case.mask).sum(dim=1)
    columns = {}
    for name, value in (("", sums), ("_reference", references), ("_length", lengths)):
        columns[f"chosen{name}"], columns[f"rejected{name}"] = value.chunk(2)
    parameters = inspect.signature(loss).parameters.values()
    return loss(*[columns[one.name] for one in parameters if one.kind is not one.KEYWORD_ONLY], **options)


def trl_dpo(case: Case, loss_type: str, **options: float) -> Tensor:
    """Its mean over the pairs."""
    trainer = SimpleNamespace(
        accelerator=ACCELERATOR,
        model=SimpleNamespace(training=True),
        aux_loss_enabled=False,
        ld_alpha=None,
        precompute_ref_logps=True,
        f_divergence_type="reverse_kl",
        loss_types=[loss_type],
        loss_weights=[1.0],
        use_weighting=False,
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
        **({"beta": 0.1, "label_smoothing": 0.0} | options),
    )
    # A token before each response, since a column of ours stands for the token after it.
    completions = torch.nn.functional.pad(case.mask, (1, 0)).long()
    references = (case.reference * case.mask).sum(dim=1).chunk(2)
    inputs = {
        "input_ids": torch.zeros_like(completions),
        "attention_mask": torch.ones_like(completions),
        "completion_mask": completions,
        "ref_chosen_logps": references[0],
        "ref_rejected_logps": references[1],
    }
    unused = torch.zeros(case.mask.shape)
    outputs = SimpleNamespace(
        log_probs=case.logprobs * case.mask, entropy=unused, mean_logits=unused, is_top1=unused > 0
    )
    loss: Tensor = DPOTrainer._compute_loss(trainer, lambda **_: outputs, inputs, False)
    return loss


def trl_cpo(responses: tuple[Tensor, ...], loss_type: str, **options: float) -> Tensor:
    """[N]"""
    trainer = SimpleNamespace(
        accelerator=ACCELERATOR,
        alpha=0.0,
        loss_type=loss_type,
        **({"beta": 0.1, "label_smoothing": 0.0, "simpo_gamma": 0.5} | options),
    )
    losses: Tensor = CPOTrainer.cpo_loss(trainer, *responses)[0]
    return losses


def sums(case: Case) -> tuple[Tensor, ...]:
    return (case.logprobs * case.mask).sum(dim=1).chunk(2)


def means(case: Case) -> tuple[Tensor, ...]:
    return ((case.logprobs * case.mask).sum(dim=1) / case.mask.sum(dim=1)).chunk(2)


def one_pair(case: Case, index: int) -> dict[str, Any]:
    """The rows of a pair in turn, chosen and rejected, as Trinity-RFT has them."""
    rows = [index, index + len(case.mask) // 2]
    return {
        "logprob": case.logprobs[rows],
        "ref_logprob": case.reference[rows],
        "action_mask": case.mask[rows],
    }


@every_case
@pytest.mark.parametrize("beta", [0.1, 0.7])
@pytest.mark.parametrize(
    "name",
    ["sigmoid", "hinge", "ipo", "sigmoid_norm", "nca_pair", "apo_zero", "apo_down"],
)
def test_dpo_losses_are_those_of_trl(case: Case, name: str, beta: float) -> None:
    loss = ours(getattr(preference_losses, name), case, beta=beta)
    agree(f"preference {name}", "TRL", loss.mean(), trl_dpo(case, name, beta=beta), case.logprobs)


@every_case
@pytest.mark.parametrize("label_smoothing", [1e-3, 0.1, 0.3])
@pytest.mark.parametrize("name", ["robust", "exo_pair"])
def test_dpo_losses_of_doubtful_labels_are_those_of_trl(
    case: Case, name: str, label_smoothing: float
) -> None:
    loss = ours(getattr(preference_losses, name), case, beta=0.4, label_smoothing=label_smoothing)
    theirs = trl_dpo(case, name, beta=0.4, label_smoothing=label_smoothing)
    agree(f"preference {name}", "TRL", loss.mean(), theirs, case.logprobs)


@every_case
def test_cdpo_is_trls_smoothed_cpo_of_log_ratios(case: Case) -> None:
    ratios = ((case.logprobs - case.reference) * case.mask).sum(dim=1).chunk(2)
    theirs = trl_cpo(ratios, "sigmoid", beta=0.4, label_smoothing=0.2)
    loss = ours(cdpo, case, beta=0.4, label_smoothing=0.2)
    agree("preference cdpo", "TRL", loss, theirs, case.logprobs)


@every_case
@pytest.mark.parametrize(("loss", "label_smoothing"), [(sigmoid, 0.0), (cdpo, 0.2)])
def test_dpo_is_trinitys_pair_by_pair(
    case: Case, loss: Callable[..., Tensor], label_smoothing: float
) -> None:
    # Pair by pair, since Trinity-RFT 0.6.0 makes one margin of all pairs that it is given.
    peer = POLICY_LOSS_FN.get("dpo")(backend="tinker", beta=0.1, label_smoothing=label_smoothing)
    theirs = torch.stack([peer(**one_pair(case, index))[0] for index in range(len(case.mask) // 2)])
    options = {"label_smoothing": label_smoothing} if label_smoothing else {}
    mine = ours(loss, case, beta=0.1, **options)
    agree(f"preference {loss.__name__}", "Trinity-RFT", mine, theirs, case.logprobs)


@every_case
@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
def test_cpo_is_that_of_trl(case: Case, label_smoothing: float) -> None:
    theirs = trl_cpo(sums(case), "sigmoid", beta=0.3, label_smoothing=label_smoothing)
    loss = ours(cpo, case, beta=0.3, label_smoothing=label_smoothing)
    agree("preference cpo", "TRL", loss, theirs, case.logprobs)


@every_case
def test_hinge_and_ipo_forms_of_cpo_are_those_of_trl(case: Case) -> None:
    hinge = trl_cpo(sums(case), "hinge", beta=0.3)
    agree("preference cpo_hinge", "TRL", ours(cpo_hinge, case, beta=0.3), hinge, case.logprobs)
    ipo = trl_cpo(means(case), "ipo", beta=0.3)
    agree("preference cpo_ipo", "TRL", ours(cpo_ipo, case, beta=0.3), ipo, case.logprobs)


@every_case
@pytest.mark.parametrize(("beta", "gamma"), [(2.0, 0.5), (0.1, 0.5), (10.0, 3.0)])
def test_simpo_is_that_of_trl(case: Case, beta: float, gamma: float) -> None:
    theirs = trl_cpo(means(case), "simpo", beta=beta, simpo_gamma=gamma)
    agree("preference simpo", "TRL", ours(simpo, case, beta=beta, gamma=gamma), theirs, case.logprobs)


@every_case
def test_the_odds_ratio_is_that_of_trl(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "float", Tensor.double)  # TRL rounds to float32 on the way
    trainer = SimpleNamespace(accelerator=ACCELERATOR, beta=0.1)
    theirs = ORPOTrainer.odds_ratio_loss(trainer, *means(case))[0]
    # TRL returns the share that it subtracts from the likelihood's loss.
    agree("preference odds_ratio", "TRL", ours(odds_ratio, case), -theirs, case.logprobs)


@every_case
def test_the_likelihood_of_chosen_responses_is_that_of_trl_pair_by_pair(case: Case) -> None:
    # Pair by pair, since TRL weighs each token of a micro-batch alike.
    half = len(case.mask) // 2
    pairs = [
        Case(**{name: column[[index, index + half]] for name, column in vars(case).items()})
        for index in range(half)
    ]
    theirs = torch.stack([trl_dpo(pair, "sft") for pair in pairs])
    agree("preference chosen_nll", "TRL", ours(chosen_nll, case), theirs, case.logprobs)
