"""Compositions against numbers worked out by hand: what parts are put together to, and what is reported."""

import math

import pytest
import torch
from torch import Tensor

from tests.support.recipes import recipe
from trinity_db.trainer.algorithms.compositions import create
from trinity_db.trainer.algorithms.interface import Columns
from trinity_db.trainer.recipes.parts.totals import Totals


def dpo_rows(policy: Tensor, reference: Tensor, mask: Tensor) -> Columns:
    return {"mask": mask, "logprobs": policy, "reference": reference}


def test_dpo_loss_is_log_two_while_the_policy_is_the_reference() -> None:
    logprobs = -torch.rand(6, 5)
    rows = dpo_rows(logprobs, logprobs, torch.ones(6, 5, dtype=torch.bool))
    shares = create(recipe("dpo")).shares(rows, Totals(tokens=30, sequences=6, items=3))
    assert shares["loss"].item() == pytest.approx(math.log(2))
    assert shares["rewards/margins"].item() == shares["rewards/accuracies"].item() == 0


# Summed differences to the reference: 1.0 and -0.5 in the first pair, 0.25 and 0.75 in the second;
# the masked column must not count.
DIFFERENCES = torch.tensor([[0.4, 0.6, 9.0], [-0.5, 0.0, 9.0], [0.25, 0.0, 0.0], [0.25, 0.5, 9.0]])
MASK = torch.tensor([[True, True, False], [True, True, False], [True, True, True], [True, True, False]])
PAIRS = dpo_rows(DIFFERENCES - 1, -torch.ones(4, 3), MASK)
PAIRS_TOTALS = Totals(tokens=9, sequences=4, items=2)


def test_dpo_equals_the_hand_computed_numbers() -> None:
    shares = create(recipe("dpo", beta=0.5)).shares(PAIRS, PAIRS_TOTALS)
    sigmoid = [1 / (1 + math.exp(-0.75)), 1 / (1 + math.exp(0.25))]
    assert shares["loss"].item() == pytest.approx(-sum(map(math.log, sigmoid)) / 2)
    assert shares["rewards/chosen"].item() == pytest.approx((0.5 + 0.125) / 2)
    assert shares["rewards/rejected"].item() == pytest.approx((-0.25 + 0.375) / 2)
    assert shares["rewards/margins"].item() == pytest.approx((0.75 - 0.25) / 2)
    assert shares["rewards/accuracies"].item() == 0.5
    assert shares["logps/chosen"].item() == pytest.approx((1 - 2 + 0.25 - 3) / 2)


def test_losses_of_pairs_are_added_by_their_weights() -> None:
    parts: list[dict[str, object]] = [
        {"name": "hinge"},
        {"name": "hinge", "beta": 0.5},
        {"name": "chosen_nll"},
    ]
    alone = [create(recipe("dpo", loss=part)).shares(PAIRS, PAIRS_TOTALS)["loss"].item() for part in parts]
    several = [{**part, "weight": weight} for part, weight in zip(parts, (0.5, 2, 3), strict=True)]
    both = create(recipe("dpo", loss=several)).shares(PAIRS, PAIRS_TOTALS)
    assert both["loss"].item() == pytest.approx(0.5 * alone[0] + 2 * alone[1] + 3 * alone[2])
    # Chosen: -1 nat over two tokens, -2.75 over three.
    assert both["nll_loss"].item() == pytest.approx((0.5 + 2.75 / 3) / 2)


def test_simpo_reports_rewards_per_token() -> None:
    shares = create(recipe("simpo", beta=2.0)).shares(PAIRS, PAIRS_TOTALS)
    assert shares["rewards/chosen"].item() == pytest.approx((2 * -1 / 2 + 2 * -2.75 / 3) / 2)


BEHAVIOUR = torch.full((2, 2), -1.0)
TOKENS = {
    "mask": torch.tensor([[True, True], [True, False]]),
    "behaviour": BEHAVIOUR,
    "logprobs": BEHAVIOUR + torch.tensor([[0.0, 1.0], [0.0, 5.0]]),
    "advantages": torch.tensor([[1.0], [-1.0]]),
    "entropy": torch.full((2, 2), 0.5),
    "weight": torch.ones(2),
}
TOTALS = Totals(tokens=3, sequences=2, items=2)


def shares(rows: Columns, name: str, **changes: object) -> dict[str, float]:
    """Of one micro-batch that is the whole step."""
    algorithm = create(recipe(name, **changes))
    before = {key: value for key, value in rows.items() if key not in ("logprobs", "entropy")}
    prepared, metrics = algorithm.prepare(before)
    found = algorithm.shares({**rows, **prepared}, TOTALS)
    return metrics | {key: value.item() for key, value in found.items()}


def test_grpo_reports_how_far_the_policy_has_moved() -> None:
    found = shares(TOKENS, "grpo")
    assert found["loss"] == found["policy_loss"] == pytest.approx((-1 - 1.2 + 1) / 3)
    assert found["clip_ratio"] == pytest.approx(1 / 3)
    assert found["ratio_mean"] == pytest.approx((1 + math.e + 1) / 3)
    assert found["approx_kl"] == pytest.approx((math.e - 2) / 3)
    assert found["entropy"] == pytest.approx(0.5)


def test_the_divergence_and_the_entropy_are_added_with_their_coefficients() -> None:
    rows = TOKENS | {"reference": TOKENS["logprobs"] - torch.tensor([[2.0, 0.0], [1.0, 9.0]])}
    found = shares(rows, "grpo", kl={"name": "k2", "coefficient": 0.1}, entropy_coefficient=0.2)
    assert found["kl"] == pytest.approx(((2.0 + 0.0) / 2 + 0.5) / 2)
    expected = found["policy_loss"] + 0.1 * (2.0 + 0.0 + 0.5) / 3 - 0.2 * 0.5
    assert found["loss"] == pytest.approx(expected)


def test_a_correction_weighs_the_loss_and_moves_what_ratios_are_relative_to() -> None:
    rows = TOKENS | {"proximal": TOKENS["logprobs"]}
    found = shares(rows, "grpo", correction="truncated_importance_sampling")
    # Weights 1, min(e, 2), 1; ratios to the proximal policy are all 1.
    assert found["loss"] == pytest.approx((-1 - 2 + 1) / 3)
    assert found["ratio_mean"] == 1.0
    assert found["sampling/importance_sampling_ratio/mean"] == pytest.approx(4 / 3)


def test_a_mask_of_sequences_leaves_ratios_where_they_were() -> None:
    rows = TOKENS | {"proximal": BEHAVIOUR - torch.tensor([[0.0, 0.0], [1.0, 0.0]])}
    found = shares(rows, "grpo", correction="off_policy_sequence_masking")
    assert found["loss"] == pytest.approx((-1 - 1.2) / 3)
    assert found["ratio_mean"] == pytest.approx((1 + math.e + 1) / 3)


GROUP = {"rewards": torch.tensor([1.0, 0.0]), "groups": torch.tensor([7, 7])}


def test_a_divergence_in_the_reward_changes_the_advantages_of_the_group() -> None:
    # Log-ratios to the reference at the start of the step: 0.5 and 0.3; and 0.4.
    reference = BEHAVIOUR - torch.tensor([[0.5, 0.3], [0.4, 9.0]])
    rows = TOKENS | GROUP | {"reference": reference, "logprobs": BEHAVIOUR}
    found = shares(rows, "rloo", kl={"name": "k1", "coefficient": 0.5})
    # Rewards 1 - 0.4 and 0 - 0.2; each less the other: 0.8 and -0.8.
    assert found["loss"] == pytest.approx((-0.8 - 0.8 + 0.8) / 3)
    assert found["kl"] == pytest.approx((0.4 + 0.4) / 2)


def test_reinforce_plus_plus_gives_each_token_what_it_still_earns_in_standard_deviations() -> None:
    reference = BEHAVIOUR - torch.tensor([[0.5, 0.3], [0.4, 9.0]])
    rows = TOKENS | GROUP | {"reference": reference}
    algorithm = create(recipe("reinforce_plus_plus", coefficient=0.5))
    prepared, _ = algorithm.prepare(rows)
    earns = torch.tensor([1 - 0.5 * 0.8, 1 - 0.5 * 0.3, 0 - 0.5 * 0.4])
    expected = (earns - earns.mean()) / earns.std()
    torch.testing.assert_close(prepared["advantages"][TOKENS["mask"]], expected)


def test_a_greedy_row_is_compared_with_and_not_trained_on() -> None:
    rows = TOKENS | {"weight": torch.tensor([1.0, 0.0]), "advantages": torch.tensor([[1.0], [0.0]])}
    prepared, _ = create(recipe("remax")).prepare(rows)
    assert prepared["mask"].tolist() == [[True, True], [False, False]]


def test_a_divergence_in_the_reward_is_not_taken_off_the_greedy_rows_own() -> None:
    attempts = {
        "rollouts": torch.tensor([3, 4]),
        "steps": torch.zeros(2),
        "greedy": torch.tensor([False, True]),
    }
    rows = TOKENS | GROUP | attempts | {"weight": torch.tensor([1.0, 0.0])}
    rows |= {"reference": BEHAVIOUR - torch.tensor([[0.5, 0.3], [0.4, 9.0]])}
    algorithm = create(recipe("remax", kl={"name": "k1", "coefficient": 0.5}))
    assert algorithm.compares <= algorithm.needs.keys()
    prepared, metrics = algorithm.prepare(rows)
    assert prepared["advantages"].tolist() == [[pytest.approx(1 - 0.5 * 0.8)], [0.0]]
    assert metrics["kl"] == pytest.approx(0.4)


def test_advantages_are_whitened_over_tokens() -> None:
    prepared, _ = create(recipe("reinforce_plus_plus_baseline")).prepare(TOKENS | GROUP)
    whitened = prepared["advantages"][TOKENS["mask"]]
    assert whitened.mean().item() == pytest.approx(0, abs=1e-6)
    assert whitened.tolist() == pytest.approx([0.5774, 0.5774, -1.1547], abs=1e-4)
