"""Expert rows beside live ones against Trinity-RFT's mix and mix_chord, and how their share changes."""

from typing import Any

import pytest
import torch
from torch import Tensor
from trinity.algorithm.policy_loss_fn import POLICY_LOSS_FN
from trinity.algorithm.policy_loss_fn.chord_policy_loss import mu_schedule_function

from tests.others.peers.cases import DIFFERENCES, TOLERANCE, Case, agree, every_case
from tests.support.recipes import recipe
from trinity_db.trainer.algorithms.compositions import create
from trinity_db.trainer.algorithms.interface import Algorithm
from trinity_db.trainer.algorithms.mixed import scheduled_mu
from trinity_db.trainer.recipes.parts.totals import Totals

IS_EXPERT = torch.tensor([False, True, False, False, True, False, True, False])
NUM_ROWS, NUM_EXPERTS = len(IS_EXPERT), int(IS_EXPERT.sum())


def stored(case: Case) -> dict[str, Tensor]:
    """What is stored of the rows; those of the expert have neither log-probabilities nor rewards."""
    is_expert = IS_EXPERT[:, None]
    return {
        "mask": case.mask,
        "behaviour": case.old.masked_fill(is_expert, 0.0),
        "advantages": case.advantages.masked_fill(is_expert, 0.0),
        "weight": torch.ones(NUM_ROWS, dtype=torch.float64),
        "is_expert": IS_EXPERT,
    }


def by_ours(algorithm: Algorithm, case: Case, size: int = NUM_ROWS) -> Tensor:
    """The loss of a step in micro-batches of a size."""
    scored = {"logprobs": case.logprobs, "entropy": case.old, "correct": case.mask}
    rows = {**algorithm.prepare(stored(case))[0], **scored}
    totals = Totals(
        int(case.mask.sum()),
        NUM_ROWS,
        NUM_ROWS,
        expert_tokens=int(case.mask[IS_EXPERT].sum()),
        expert_sequences=NUM_EXPERTS,
    )
    parts = [
        algorithm.shares({name: one[first : first + size] for name, one in rows.items()}, totals)["loss"]
        for first in range(0, NUM_ROWS, size)
    ]
    return torch.stack(parts).sum()


def by_trinity(name: str, case: Case, size: int = NUM_ROWS, step: int = 1, **options: Any) -> Tensor:
    """The same; what accumulates gradients divides each micro-batch's loss by how many there are."""
    function = POLICY_LOSS_FN.get(name)(
        backend="tinker",
        clip_range=0.2,
        ppo_mini_batch_size=NUM_ROWS,
        ppo_micro_batch_size_per_gpu=size,
        train_batch_size_usual=NUM_ROWS - NUM_EXPERTS,
        train_batch_size_expert=NUM_EXPERTS,
        **options,
    )
    rows = stored(case)
    columns = {
        "logprob": case.logprobs,
        "old_logprob": rows["behaviour"],
        "action_mask": case.mask,
        "advantages": rows["advantages"].expand_as(case.mask),
        "expert_mask": IS_EXPERT,
        "step": torch.full((NUM_ROWS,), step),
    }
    parts = [
        function(**{name: one[first : first + size] for name, one in columns.items()})[0]
        for first in range(0, NUM_ROWS, size)
    ]
    return torch.stack(parts).mean()


def at(step: int, algorithm: Algorithm) -> Algorithm:
    """The algorithm as it is before a step, counted from 1."""
    algorithm.load_state_dict(algorithm.state_dict() | {"steps_done": step - 1})
    return algorithm


@every_case
def test_mix_is_that_of_trinity(case: Case) -> None:
    ours = by_ours(create(recipe("mix", mu=0.3, dual_clip=3.0)), case)
    agree("mix", "Trinity-RFT", ours, by_trinity("mix", case, mu=0.3), case.logprobs)


@every_case
@pytest.mark.parametrize("size", [1, 2, 4])
def test_mix_in_micro_batches_is_that_of_trinity_where_each_row_weighs_alike(case: Case, size: int) -> None:
    # By tokens, theirs depends on how rows fall into micro-batches.
    algorithm = create(recipe("mix", mu=0.3, dual_clip=3.0, aggregation="seq_mean_token_mean"))
    theirs = by_trinity("mix", case, size, mu=0.3, loss_agg_mode="seq-mean-token-mean")
    agree("mix, in micro-batches", "Trinity-RFT", by_ours(algorithm, case, size), theirs, case.logprobs)


@every_case
@pytest.mark.parametrize("size", [1, 3])
def test_mix_in_micro_batches_by_tokens_is_that_of_trinity_in_one(case: Case, size: int) -> None:
    ours = by_ours(create(recipe("mix", mu=0.3, dual_clip=3.0)), case, size)
    agree("mix, in micro-batches", "Trinity-RFT", ours, by_trinity("mix", case, mu=0.3), case.logprobs)


@every_case
@pytest.mark.parametrize(("loss", "has_phi"), [("nll", False), ("phi", True)])
@pytest.mark.parametrize("step", [1, 7, 30])
def test_chord_is_that_of_trinity_at_every_step(case: Case, loss: str, has_phi: bool, step: int) -> None:
    schedule: dict[str, Any] = {"mu_warmup_steps": 3, "mu_decay_steps": 20, "mu_valley": 0.05}
    algorithm = create(recipe("chord", expert_loss=loss, dual_clip=3.0, mu=0.9, **schedule))
    theirs = by_trinity("mix_chord", case, step=step, enable_phi_function=has_phi, mu_peak=0.9, **schedule)
    agree(f"chord, {loss}", "Trinity-RFT", by_ours(at(step, algorithm), case), theirs, case.logprobs)


@pytest.mark.parametrize("warmup_steps", [0, 5])
def test_the_share_of_expert_rows_changes_as_in_trinity(warmup_steps: int) -> None:
    largest = max(
        abs(
            scheduled_mu(step, mu=0.9, valley=0.05, warmup_steps=warmup_steps, decay_steps=20)
            - mu_schedule_function(step, warmup_steps, 20, 0.9, 0.05)
        )
        for step in range(1, 40)
    )
    DIFFERENCES["chord, mu", "Trinity-RFT"] = largest
    assert largest < TOLERANCE
