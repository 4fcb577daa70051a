"""Aggregation against verl's agg_loss and Trinity-RFT's aggregate_loss, in one piece and in micro-batches."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from trinity.algorithm.utils import aggregate_loss
from verl.trainer.ppo.core_algos import agg_loss

from tests.others.peers.cases import Case, agree, every_case
from trinity_db.trainer.recipes.parts import aggregation
from trinity_db.trainer.recipes.parts.totals import Totals

LENGTH = 20
OURS: dict[str, Callable[[Tensor, Tensor, Totals], Tensor]] = {
    "token_mean": aggregation.token_mean,
    "seq_mean_token_sum": aggregation.seq_mean_token_sum,
    "seq_mean_token_mean": aggregation.seq_mean_token_mean,
    "seq_mean_token_sum_norm": lambda values, mask, totals: aggregation.seq_mean_token_sum_norm(
        values, mask, totals, length=LENGTH
    ),
}


def totals_of(mask: Tensor) -> Totals:
    return Totals(int(mask.sum()), int(mask.any(dim=1).sum()), len(mask))


@every_case
@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("has_empty", [False, True])
def test_a_whole_step_against_verl(case: Case, name: str, has_empty: bool) -> None:
    mask = case.mask.clone()
    mask[2] &= not has_empty
    ours = OURS[name](case.logprobs, mask, totals_of(mask))
    theirs = agg_loss(case.logprobs, mask.double(), name.replace("_", "-"), loss_scale_factor=LENGTH)
    agree(name, "verl", ours, theirs, case.logprobs)


@every_case
@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_micro_batches_against_verls_whole_step(case: Case, name: str, size: int) -> None:
    pairs = zip(torch.split(case.logprobs, size), torch.split(case.mask, size), strict=True)
    ours = torch.stack([OURS[name](values, mask, totals_of(case.mask)) for values, mask in pairs]).sum()
    theirs = agg_loss(case.logprobs, case.mask.double(), name.replace("_", "-"), loss_scale_factor=LENGTH)
    agree(f"{name}, in micro-batches", "verl", ours, theirs, case.logprobs)


@every_case
@pytest.mark.parametrize("name", OURS)
def test_a_whole_step_against_trinity(case: Case, name: str) -> None:
    ours = OURS[name](case.logprobs, case.mask, totals_of(case.mask))
    theirs = aggregate_loss(case.logprobs, case.mask, name.replace("_", "-"), normalizer=LENGTH)
    if name == "seq_mean_token_sum_norm":  # theirs is not divided by the number of sequences
        theirs = theirs / len(case.mask)
    agree(name, "Trinity-RFT", ours, theirs, case.logprobs)
