"""Losses of preference pairs: against formulas in plain numbers, and what each is for."""

import inspect
import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from trinity_db.trainer.recipes.parts import preference_losses
from trinity_db.trainer.recipes.parts.preference_losses import (
    apo_down,
    apo_zero,
    chosen_nll,
    cpo,
    hinge,
    ipo,
    nca_pair,
    odds_ratio,
    robust,
    sigmoid,
    sigmoid_norm,
    simpo,
)

LOSSES: dict[str, Callable[..., Tensor]] = {
    name: function
    for name, function in vars(preference_losses).items()
    if inspect.isfunction(function)
    and function.__module__ == preference_losses.__name__
    and not name.startswith("_")
}


class Pair(NamedTuple):
    """One pair in plain numbers."""

    chosen: float
    rejected: float
    chosen_reference: float
    rejected_reference: float
    chosen_length: int
    rejected_length: int

    @property
    def ratios(self) -> tuple[float, float]:
        return self.chosen - self.chosen_reference, self.rejected - self.rejected_reference

    @property
    def means(self) -> tuple[float, float]:
        return self.chosen / self.chosen_length, self.rejected / self.rejected_length


PAIRS = [
    Pair(-3.0, -14.5, -5.5, -4.0, 2, 7),
    Pair(-21.0, -1.5, -14.0, -2.5, 11, 1),
    Pair(-0.25, -0.5, -0.25, -0.5, 1, 1),
]


def s(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def odds(logprob: float) -> float:
    return math.exp(logprob) / (1 - math.exp(logprob))


def ratio_per_token(pair: Pair) -> float:
    chosen, rejected = pair.ratios
    return chosen / pair.chosen_length - rejected / pair.rejected_length


def exo(pair: Pair, beta: float, flipped: float) -> float:
    chosen, rejected = (math.exp(beta * ratio) for ratio in pair.ratios)
    choice = [chosen / (chosen + rejected), rejected / (chosen + rejected)]
    return sum(q * math.log(q / p) for q, p in zip(choice, [1 - flipped, flipped], strict=True))


def by_hand(name: str, pair: Pair) -> float:
    """The loss of one pair with the default options."""
    chosen, rejected = pair.ratios
    delta = chosen - rejected
    bare = pair.chosen - pair.rejected
    match name:
        case "sigmoid":
            return -math.log(s(0.1 * delta))
        case "hinge":
            return max(0.0, 1 - 0.1 * delta)
        case "ipo":
            return (ratio_per_token(pair) - 5) ** 2
        case "robust":
            return (-0.9 * math.log(s(0.1 * delta)) + 0.1 * math.log(s(-0.1 * delta))) / 0.8
        case "cdpo":
            return -0.9 * math.log(s(0.1 * delta)) - 0.1 * math.log(s(-0.1 * delta))
        case "sigmoid_norm":
            return -math.log(s(0.1 * ratio_per_token(pair)))
        case "exo_pair":
            return exo(pair, 0.1, 1e-3)
        case "nca_pair":
            up, down, other = s(0.1 * chosen), s(-0.1 * chosen), s(-0.1 * rejected)
            return -math.log(up) - math.log(down) / 2 - math.log(other) / 2
        case "apo_zero":
            return 1 - s(0.1 * chosen) + s(0.1 * rejected)
        case "apo_down":
            return s(0.1 * chosen) + 1 - s(0.1 * delta)
        case "cpo":
            return -math.log(s(0.1 * bare))
        case "cpo_hinge":
            return max(0.0, 1 - 0.1 * bare)
        case "cpo_ipo":
            return (pair.means[0] - pair.means[1] - 5) ** 2
        case "simpo":
            return -math.log(s(2 * (pair.means[0] - pair.means[1]) - 0.5))
        case "odds_ratio":
            return -0.1 * math.log(s(math.log(odds(pair.means[0]) / odds(pair.means[1]))))
        case "chosen_nll":
            return -pair.means[0]
    raise AssertionError(f"{name} has no formula here")


def columns(function: Callable[..., Tensor], values: dict[str, Tensor]) -> list[Tensor]:
    """Those that the function reads, in its order."""
    parameters = inspect.signature(function).parameters.values()
    return [values[p.name] for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY]


def tensors(pairs: list[Pair]) -> dict[str, Tensor]:
    values = torch.tensor(pairs, dtype=torch.float64).unbind(dim=1)
    return dict(zip(Pair._fields, values, strict=True))


def random_pairs(count: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 9, (2, count), generator=generator)
    policy, reference = (
        -lengths * (0.1 + torch.rand(2, count, dtype=torch.float64, generator=generator)) for _ in range(2)
    )
    names = ("chosen", "rejected", "chosen_reference", "rejected_reference")
    return dict(zip(names, [*policy, *reference], strict=True)) | {
        "chosen_length": lengths[0],
        "rejected_length": lengths[1],
    }


@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_equals_its_formula_in_plain_numbers(name: str) -> None:
    losses = LOSSES[name](*columns(LOSSES[name], tensors(PAIRS)))
    assert losses.tolist() == pytest.approx([by_hand(name, pair) for pair in PAIRS], rel=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_each_gradient_is_that_of_the_loss(name: str) -> None:
    values = random_pairs(6)
    values["chosen"].requires_grad_()
    values["rejected"].requires_grad_()
    assert gradcheck(lambda *read: LOSSES[name](*read), columns(LOSSES[name], values))


@pytest.mark.parametrize("name", LOSSES)
def test_no_pair_reaches_another_ones_loss(name: str) -> None:
    values, order = random_pairs(6), torch.tensor([3, 0, 5, 1, 4, 2])
    shuffled = {column: value[order] for column, value in values.items()}
    loss = LOSSES[name]
    torch.testing.assert_close(loss(*columns(loss, shuffled)), loss(*columns(loss, values))[order])


def falls_with(loss: Callable[..., Tensor], column: str) -> Tensor:
    values = random_pairs(50)
    values[column].requires_grad_()
    (gradient,) = torch.autograd.grad(loss(*columns(loss, values)).sum(), values[column])
    return gradient


@pytest.mark.parametrize("name", sorted(LOSSES.keys() - {"apo_down", "nca_pair", "chosen_nll"}))
def test_a_likelier_chosen_and_an_unlikelier_rejected_response_lower_the_loss(name: str) -> None:
    assert (falls_with(LOSSES[name], "chosen") <= 0).all()
    assert (falls_with(LOSSES[name], "rejected") >= 0).all()
    assert falls_with(LOSSES[name], "rejected").max() > 0


def test_dpo_is_log_two_while_the_policy_is_the_reference() -> None:
    values = random_pairs(4)
    start = values | {"chosen_reference": values["chosen"], "rejected_reference": values["rejected"]}
    for loss in (sigmoid, sigmoid_norm):
        assert loss(*columns(loss, start)).tolist() == pytest.approx([math.log(2)] * 4)


def test_dpo_gradient_is_the_chance_that_the_order_is_wrong() -> None:
    # arXiv 2305.18290 section 4: beta sigma(rejected reward - chosen reward), upwards.
    values = random_pairs(20)
    values["chosen"].requires_grad_()
    (gradient,) = torch.autograd.grad(sigmoid(*columns(sigmoid, values), beta=0.3).sum(), values["chosen"])
    chosen = values["chosen"].detach() - values["chosen_reference"]
    rejected = values["rejected"] - values["rejected_reference"]
    torch.testing.assert_close(gradient, -0.3 * (0.3 * (rejected - chosen)).sigmoid())


def test_the_mean_of_robust_under_flipped_labels_is_the_loss_of_the_true_ones() -> None:
    values = random_pairs(20)
    chosen, rejected, chosen_reference, rejected_reference = columns(sigmoid, values)
    kept = robust(chosen, rejected, chosen_reference, rejected_reference, label_smoothing=0.2)
    flipped = robust(rejected, chosen, rejected_reference, chosen_reference, label_smoothing=0.2)
    torch.testing.assert_close(0.8 * kept + 0.2 * flipped, sigmoid(*columns(sigmoid, values)))


def test_a_margin_that_is_wide_enough_earns_nothing_more() -> None:
    chosen = torch.tensor([9.0, 11.0], requires_grad=True)
    zero = torch.zeros(2)
    losses = hinge(chosen, zero, zero, zero, beta=0.1)
    (gradient,) = torch.autograd.grad(losses.sum(), chosen)
    assert losses.tolist() == pytest.approx([0.1, 0.0])
    assert gradient.tolist() == pytest.approx([-0.1, 0.0])


@pytest.mark.parametrize("loss", [ipo, sigmoid_norm, simpo, odds_ratio, chosen_nll])
def test_losses_of_means_do_not_see_a_response_repeated(loss: Callable[..., Tensor]) -> None:
    values = random_pairs(10)
    twice = {name: 2 * value for name, value in values.items()}
    torch.testing.assert_close(loss(*columns(loss, twice)), loss(*columns(loss, values)))


@pytest.mark.parametrize(
    ("loss", "chosen", "rejected"),
    [(apo_zero, 20.0, -20.0), (apo_down, 0.0, -20.0), (nca_pair, 20.0, -20.0)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_which_losses_pull_back_a_chosen_response_whose_margin_is_wide(
    loss: Callable[..., Tensor], chosen: float, rejected: float
) -> None:
    # Log-ratios of 20 nats are rewards of 2. APO-zero alone makes the chosen response likelier still.
    values = tensors([Pair(chosen, rejected, 0.0, 0.0, 1, 1)])
    values["chosen"].requires_grad_()
    (gradient,) = torch.autograd.grad(loss(*columns(loss, values)).sum(), values["chosen"])
    assert (gradient.item() < 0) == (loss is apo_zero)


def test_cpo_is_dpo_against_a_uniform_reference() -> None:
    values = random_pairs(10)
    uniform = torch.full((10,), -4.0, dtype=torch.float64)
    same = values | {"chosen_reference": uniform, "rejected_reference": uniform}
    torch.testing.assert_close(cpo(*columns(cpo, values)), sigmoid(*columns(sigmoid, same)))


@pytest.mark.parametrize("certain", [0.0, -1e-30, -1e-9])
def test_odds_of_a_certain_response_stay_finite_and_so_does_the_gradient(certain: float) -> None:
    values = {name: value.float() for name, value in tensors(PAIRS[:1]).items()}
    for column in ("chosen", "rejected"):
        value = torch.tensor([certain], requires_grad=True)
        losses = odds_ratio(*columns(odds_ratio, values | {column: value}))
        (gradient,) = torch.autograd.grad(losses.sum(), value)
        assert losses.isfinite().all()
        assert gradient.isfinite().all()


def test_a_huge_margin_stays_finite() -> None:
    far = tensors([Pair(-5000.0, -1.0, -1.0, -5000.0, 1, 1), Pair(-1.0, -5000.0, -5000.0, -1.0, 1, 1)])
    far = {name: value.float() for name, value in far.items()}
    for loss in LOSSES.values():
        far["chosen"].requires_grad_()
        (gradient,) = torch.autograd.grad(loss(*columns(loss, far)).sum(), far["chosen"])
        assert gradient.isfinite().all()
