"""Losses of good and bad responses against TRL's KTO trainer.

Its method is called without a trainer, as in test_preference_losses.py. Every other row of a case is good,
and the divergence is that of random log-probabilities of other responses.
"""

import inspect
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from trl import KTOTrainer

from tests.others.peers.cases import Case, agree, every_case
from tests.others.peers.test_preference_losses import ACCELERATOR
from tests.support.recipes import recipe
from trinity_db.trainer.algorithms.compositions import create
from trinity_db.trainer.recipes.parts.label_losses import apo_zero_unpaired, kto
from trinity_db.trainer.recipes.parts.totals import Totals

WEIGHTS = (1.0, 1.0), (1.4, 0.7)


def desirable(case: Case) -> Tensor:
    """[N] bool"""
    return torch.arange(len(case.mask)) % 2 == 0


def mismatched(case: Case, shift: float) -> Tensor:
    """[N] Log-ratios of other responses; shifted, so that their mean has either sign."""
    return ((case.old - case.reference) * case.mask).sum(dim=1) + shift


def trl_kto(case: Case, loss_type: str, beta: float, weights: tuple[float, float], shift: float) -> Tensor:
    """Its mean over the rows."""
    trainer = SimpleNamespace(
        accelerator=ACCELERATOR,
        model=SimpleNamespace(training=True),
        aux_loss_enabled=False,
        precompute_ref_logps=True,
        calculate_KL=loss_type == "kto",
        loss_type=loss_type,
        beta=beta,
        desirable_weight=weights[0],
        undesirable_weight=weights[1],
        _compute_kl_logps=lambda model, batch: mismatched(case, shift),
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
    )
    # A token before each response, since a column of ours stands for the token after it.
    completions = torch.nn.functional.pad(case.mask, (1, 0)).long()
    inputs = {
        "input_ids": torch.zeros_like(completions),
        "attention_mask": torch.ones_like(completions),
        "completion_mask": completions,
        "label": desirable(case),
        "ref_logps": (case.reference * case.mask).sum(dim=1),
        "ref_KL_logps": torch.zeros(len(case.mask), dtype=torch.float64),
    }
    unused = torch.zeros(case.mask.shape)
    outputs = SimpleNamespace(log_probs=case.logprobs * case.mask, entropy=unused, mean_logits=unused)
    loss: Tensor = KTOTrainer._compute_loss(trainer, lambda **_: outputs, inputs, False)
    return loss


@every_case
@pytest.mark.parametrize("beta", [0.1, 0.7])
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("shift", [-20.0, 0.0, 20.0])
@pytest.mark.parametrize("loss", [kto, apo_zero_unpaired])
def test_label_losses_are_those_of_trl(
    case: Case, loss: Callable[..., Tensor], beta: float, weights: tuple[float, float], shift: float
) -> None:
    columns = {
        "response": (case.logprobs * case.mask).sum(dim=1),
        "response_reference": (case.reference * case.mask).sum(dim=1),
        "desirable": desirable(case),
        "divergence": mismatched(case, shift).mean().clamp(min=0).expand(len(case.mask)),
    }
    parameters = inspect.signature(loss).parameters.values()
    losses = loss(*[columns[one.name] for one in parameters if one.kind is not one.KEYWORD_ONLY], beta=beta)
    good, bad = (torch.tensor(weight, dtype=torch.float64) for weight in weights)
    ours = (torch.where(desirable(case), good, bad) * losses).mean()
    theirs = trl_kto(case, loss.__name__, beta, weights, shift)
    agree(f"label {loss.__name__}", "TRL", ours, theirs, case.logprobs)


@every_case
@pytest.mark.parametrize("name", ["kto", "apo_zero_unpaired"])
def test_the_step_of_the_algorithm_is_that_of_trl(case: Case, name: str) -> None:
    weights = {"desirable_weight": 1.4, "undesirable_weight": 0.7}
    rows = {
        "mask": case.mask,
        "logprobs": case.logprobs,
        "reference": case.reference,
        "rewards": desirable(case).double() - 0.5,
        "mismatched": mismatched(case, 2.0),
        "entropy": torch.zeros(case.mask.shape),
    }
    algorithm = create(recipe("kto", loss=name, beta=0.3, **weights))
    prepared, _ = algorithm.prepare(rows)
    count = len(case.mask)
    loss = algorithm.shares(prepared, Totals(int(case.mask.sum()), count, count))["loss"]
    theirs = trl_kto(case, name, 0.3, (1.4, 0.7), 2.0)
    agree(f"algorithm kto, {name}", "TRL", loss, theirs, case.logprobs)
