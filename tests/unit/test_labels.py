"""Learning from good and bad responses: the losses in plain numbers, and what a step is made of."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from tests.support.recipes import recipe
from trinity_db.arrays.codec import Payload
from trinity_db.config.shared import ScratchConfig
from trinity_db.errors import ConfigError
from trinity_db.models import build_scratch
from trinity_db.trainer.algorithms.compositions import create
from trinity_db.trainer.algorithms.interface import Algorithm
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.learner.gathered_columns import Batch, mismatched
from trinity_db.trainer.learner.learner import Learner
from trinity_db.trainer.recipes.parts.label_losses import apo_zero_unpaired, kto
from trinity_db.trainer.recipes.parts.totals import count

DESIRABLE = torch.tensor([True, False])


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def logistic(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def test_kto_is_the_formula_in_plain_numbers() -> None:
    losses = kto(column(-4.0, -7.0), column(-5.0, -6.5), DESIRABLE, column(0.3, 0.3), beta=0.2)
    good, bad = 1 - logistic(0.2 * (1.0 - 0.3)), 1 - logistic(0.2 * (0.3 + 0.5))
    assert losses.tolist() == pytest.approx([good, bad], abs=1e-12)


def test_apo_zero_unpaired_is_the_formula_in_plain_numbers() -> None:
    losses = apo_zero_unpaired(column(-4.0, -7.0), column(-5.0, -6.5), DESIRABLE, beta=0.2)
    assert losses.tolist() == pytest.approx([1 - logistic(0.2), logistic(-0.1)], abs=1e-12)


def test_a_policy_that_has_not_moved_loses_half_of_each_response() -> None:
    same = column(-4.0, -7.0)
    assert kto(same, same, DESIRABLE, column(0.0, 0.0)).tolist() == [0.5, 0.5]
    assert apo_zero_unpaired(same, same, DESIRABLE).tolist() == [0.5, 0.5]


def test_good_responses_go_up_and_bad_ones_down_less_the_further_they_are() -> None:
    response = column(-4.0, -4.0).requires_grad_()
    [near] = torch.autograd.grad(
        kto(response, column(-4.0, -4.0), DESIRABLE, column(0.0, 0.0)).sum(), response
    )
    [far] = torch.autograd.grad(
        kto(response, column(-34.0, 26.0), DESIRABLE, column(0.0, 0.0)).sum(), response
    )
    assert near[0] < 0 < near[1]
    assert (far.abs() < near.abs()).all()


@pytest.mark.parametrize("loss", [kto, apo_zero_unpaired])
def test_gradients_are_those_of_the_values(loss: object) -> None:
    response, rest = column(-4.0, -7.0).requires_grad_(), (column(-5.0, -6.5), DESIRABLE)
    if loss is kto:
        assert gradcheck(lambda x: kto(x, *rest, column(0.3, 0.3), beta=0.7), response)
    else:
        assert gradcheck(lambda x: apo_zero_unpaired(x, *rest, beta=0.7), response)


def rows(*, rewards: tuple[float, ...] = (1.0, 0.0, -1.0), ratios: float = 0.5) -> dict[str, Tensor]:
    """Three responses of three, one and two tokens."""
    mask = torch.tensor([[True, True, True], [True, False, False], [True, True, False]])
    logprobs = torch.tensor([[-1.0, -2.0, -1.5], [-3.0, 9.0, 9.0], [-0.5, -0.25, 9.0]], dtype=torch.float64)
    return {
        "mask": mask,
        "logprobs": logprobs,
        "reference": logprobs - 0.25,
        "rewards": column(*rewards),
        "mismatched": torch.full((3,), ratios, dtype=torch.float64),
        "entropy": torch.ones(3, 3, dtype=torch.float64),
    }


def shares(algorithm: Algorithm, given: dict[str, Tensor]) -> dict[str, float]:
    prepared, metrics = algorithm.prepare(given)
    found = algorithm.shares(prepared, count(prepared, range(3), 1))
    return metrics | {name: value.item() for name, value in found.items()}


def test_the_mean_is_over_all_rows_and_weights_do_not_change_what_it_is_divided_by() -> None:
    found = shares(create(recipe("kto", beta=0.2, desirable_weight=2.0, undesirable_weight=0.5)), rows())
    # Log-ratios are 0.75, 0.25 and 0.5, what they are compared with is 0.5.
    losses = [2.0 * (1 - logistic(0.2 * 0.25)), 0.5 * (1 - logistic(0.2 * 0.25)), 0.5 * (1 - logistic(0.0))]
    assert found["loss"] == pytest.approx(sum(losses) / 3, abs=1e-12)
    assert found["kl"] == 0.5
    assert found["entropy"] == 1.0


def test_metrics_are_means_over_the_rows_of_a_side() -> None:
    found = shares(create(recipe("kto", beta=0.2)), rows())
    assert found["rewards/chosen"] == pytest.approx(0.2 * 0.75)
    assert found["rewards/rejected"] == pytest.approx(0.2 * (0.25 + 0.5) / 2)
    assert found["rewards/margins"] == pytest.approx(0.2 * (0.75 - 0.375))
    assert found["logps/chosen"] == -4.5
    assert found["logps/rejected"] == -(3.0 + 0.75) / 2


def test_of_a_side_without_rows_there_are_no_metrics() -> None:
    found = shares(create(recipe("kto")), rows(rewards=(0.5, 2.0, 1.0)))
    assert not {"rewards/rejected", "logps/rejected", "rewards/margins"} & found.keys()
    assert "rewards/chosen" in found


def test_the_divergence_that_responses_are_compared_with_is_never_negative() -> None:
    algorithm = create(recipe("kto"))
    below, none = shares(algorithm, rows(ratios=-3.0)), shares(algorithm, rows(ratios=0.0))
    assert below == none
    assert below["kl"] == 0.0
    assert shares(algorithm, rows(ratios=3.0))["loss"] != none["loss"]


def test_the_unpaired_form_of_apo_compares_with_nothing() -> None:
    given = rows()
    del given["mismatched"]
    found = shares(create(recipe("kto", loss="apo_zero_unpaired")), given)
    same = shares(create(recipe("kto")), rows(ratios=0.0))
    assert found == {name: value for name, value in same.items() if name != "kl"}


def row(*tokens: int, prompt: int, untrained: int = 0) -> Payload:
    mask = np.arange(len(tokens)) >= prompt
    if untrained:
        mask[untrained] = False
    return Payload(np.array(tokens, np.int32), mask)


def shown(payloads: list[Payload]) -> list[tuple[list[int], list[int]]]:
    return [(one.token_ids.tolist(), np.flatnonzero(one.action_mask).tolist()) for one in payloads]


BATCH = [row(1, 2, 3, prompt=2), row(4, 5, 6, 7, prompt=1, untrained=2), row(8, 9, prompt=1)]


def test_a_mismatched_row_is_its_prompt_with_the_response_of_the_row_before() -> None:
    assert shown(mismatched(BATCH, 100)) == [
        ([1, 2, 9], [2]),
        ([4, 3], [1]),
        ([8, 5, 6, 7], [1, 3]),
    ]


def test_a_mismatched_row_loses_what_the_model_cannot_take() -> None:
    assert shown(mismatched(BATCH, 2)) == [([1, 2], []), ([4, 3], [1]), ([8, 5], [1])]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folders = [tmp_path_factory.mktemp("models") / str(seed) for seed in range(2)]
    for seed, folder in enumerate(folders):
        build_scratch(ScratchConfig(alphabet="0123456789", hidden_size=16, heads=2, context=8), seed, folder)
    return folders


def learner(models: list[Path], **settings: int) -> Learner:
    config = TrainerConfig.model_validate({"learning_rate": 1e-2, **settings})
    return Learner(config, recipe("kto"), models[0], reference=models[1], total_steps=1, device="cpu")


def evaluated(one: Learner, payloads: list[Payload], *rewards: float) -> dict[str, float]:
    return one.evaluate(Batch(payloads, {"rewards": np.array(rewards)}))


def test_a_row_alone_is_compared_with_nothing(models: list[Path]) -> None:
    assert evaluated(learner(models), BATCH[:1], 1.0)["kl"] == 0.0
    assert evaluated(learner(models), BATCH[::2], 1.0, 0.0)["kl"] != 0.0


def test_the_divergence_is_the_mean_over_all_mismatched_rows(models: list[Path]) -> None:
    one = learner(models)
    kept = mismatched(BATCH, 8)
    ratios = one.policy.logprobs(kept).sum(dim=1) - one.policy.reference_logprobs(kept).sum(dim=1)
    found = evaluated(one, BATCH, 1.0, 0.0, 1.0)["kl"]
    assert found == pytest.approx(max(0.0, ratios.mean().item()), abs=1e-6)
    # What is cut off counts with a ratio of 1: of the three two are left then.
    cut = [kept[1], mismatched(BATCH, 2)[2]]
    ratios = one.policy.logprobs(cut).sum(dim=1) - one.policy.reference_logprobs(cut).sum(dim=1)
    found = evaluated(learner(models, max_length=2), BATCH, 1.0, 0.0, 1.0)["kl"]
    assert found == pytest.approx(max(0.0, ratios.sum().item() / 3), abs=1e-6)


def test_rows_without_rewards_are_refused(models: list[Path]) -> None:
    with pytest.raises(ConfigError, match=r"no rewards .*, which label loss 'kto' needs"):
        learner(models).evaluate(Batch(BATCH))
