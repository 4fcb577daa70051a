"""Values: the estimate, the loss and the metrics, token by token; and A2C against a loop written by hand."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.recipes import recipe
from trinity_db.errors import ConfigError
from trinity_db.trainer.algorithms.compositions import create
from trinity_db.trainer.recipes.parts.advantages import returns_to_go
from trinity_db.trainer.recipes.parts.totals import Totals
from trinity_db.trainer.recipes.parts.values import gae, token_rewards, value_loss, value_metrics

LENGTHS = (5, 1, 3, 2)
MASK = torch.arange(5) < torch.tensor(LENGTHS)[:, None]


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens(values: Tensor, mask: Tensor = MASK) -> Iterator[list[float]]:
    """Of each row what stands at its trained tokens."""
    for row, kept in zip(values, mask, strict=True):
        yield row[kept].tolist()


def estimated(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """A_t = Σ_l (γλ)^l δ_{t+l}, by its definition."""
    after = [*values[1:], 0.0]
    deltas = [r + gamma * v_next - v for r, v_next, v in zip(rewards, after, values, strict=True)]
    return [
        sum((gamma * lam) ** later * delta for later, delta in enumerate(deltas[t:]))
        for t in range(len(deltas))
    ]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.8), (0.5, 0.0)])
def test_an_advantage_is_the_sum_of_what_came_out_better_than_expected(gamma: float, lam: float) -> None:
    mask = MASK.clone()
    mask[0, 1:3] = False  # between two turns
    rewards, values = normal(0, 4, 5), normal(1, 4, 5)
    found = gae(rewards, values, mask, gamma=gamma, lam=lam)
    for ours, *row in zip(tokens(found, mask), tokens(rewards, mask), tokens(values, mask), strict=True):
        assert ours == pytest.approx(estimated(row[0], row[1], gamma, lam))
    assert not found[~mask].any()


def test_what_stands_outside_the_mask_reaches_nothing() -> None:
    rewards, values = normal(0, 4, 5), normal(1, 4, 5)
    expected = gae(rewards, values, MASK, gamma=0.9, lam=0.8)
    rewards, values = (one.masked_fill(~MASK, torch.nan) for one in (rewards, values))
    assert torch.equal(gae(rewards, values, MASK, gamma=0.9, lam=0.8), expected)
    now = values.clone().requires_grad_()
    loss = value_loss(now, rewards, rewards, MASK, clip_range=0.2)["loss"].sum()
    torch.autograd.backward(loss)
    assert math.isfinite(loss.item())
    assert now.grad is not None
    assert now.grad.isfinite().all()


def test_without_values_an_advantage_is_what_is_still_earned() -> None:
    rewards, penalties = normal(0, 4), normal(1, 4, 5)
    found = gae(token_rewards(rewards, penalties, MASK), torch.zeros(4, 5, dtype=torch.float64), MASK)
    for ours, reward, row in zip(tokens(found), rewards.tolist(), tokens(penalties), strict=True):
        assert ours == pytest.approx(returns_to_go(reward, np.array(row)))


def test_a_reward_stands_at_the_last_trained_token() -> None:
    mask = MASK.clone()
    mask[0, 2:4] = False
    mask[3] = False
    rewards = torch.tensor([1.0, 2.0, 3.0, 4.0])
    found = token_rewards(rewards, torch.full((4, 5), 0.25), mask)
    assert [*tokens(found, mask)] == [[-0.25, -0.25, 0.75], [1.75], [-0.25, -0.25, 2.75], []]
    assert not found[~mask].any()


def test_a_value_that_left_its_range_gains_nothing_by_going_on() -> None:
    now = torch.tensor([[0.5, -0.5, 0.1]], requires_grad=True)
    old, returns, mask = torch.zeros(1, 3), torch.ones(1, 3), torch.ones(1, 3).bool()
    terms = value_loss(now, old, returns, mask, clip_range=0.2)
    torch.autograd.backward(terms["loss"].sum())
    assert terms["loss"].tolist() == [pytest.approx([0.8**2 / 2, 1.5**2 / 2, 0.9**2 / 2])]
    assert terms["clip_ratio"].tolist() == [[1.0, 0.0, 0.0]]
    assert now.grad is not None
    assert now.grad.tolist() == [pytest.approx([0.0, -1.5, -0.9])]


def test_values_that_foretell_returns_explain_their_variance() -> None:
    returns = normal(0, 4, 5)
    told = value_metrics(returns, returns, MASK)
    assert told["explained_variance"] == 1.0
    assert told["values/mean"] == told["returns/mean"] == pytest.approx(returns[MASK].mean().item())
    shifted = value_metrics(returns + 3, returns, MASK)
    assert shifted["explained_variance"] == pytest.approx(1.0)
    assert value_metrics(0 * returns, returns, MASK)["explained_variance"] == pytest.approx(0.0)
    assert value_metrics(-returns, returns, MASK)["explained_variance"] == pytest.approx(-3.0)
    assert "explained_variance" not in value_metrics(returns, 0 * returns, MASK)


def test_a2c_is_what_a_loop_by_hand_computes() -> None:
    gamma, lam, coefficient = 0.9, 0.8, 0.5
    rewards, weights = normal(0, 4), normal(1, 4).exp()
    before, now, logprobs = normal(2, 4, 5), normal(3, 4, 5), -normal(4, 4, 5).abs()
    expected = {"policy_loss": 0.0, "value_loss": 0.0}
    for row, length in enumerate(LENGTHS):
        earned = [0.0] * (length - 1) + [rewards[row].item()]
        advantages = estimated(earned, before[row, :length].tolist(), gamma, lam)
        for t, advantage in enumerate(advantages):
            share = weights[row].item() / sum(LENGTHS)
            expected["policy_loss"] -= share * advantage * logprobs[row, t].item()
            target = advantage + before[row, t].item()
            expected["value_loss"] += share * 0.5 * (now[row, t].item() - target) ** 2
    expected["loss"] = expected["policy_loss"] + coefficient * expected["value_loss"]

    algorithm = create(recipe("a2c", value={"gamma": gamma, "lam": lam, "coefficient": coefficient}))
    assert set(algorithm.needs) == {"mask", "rewards", "values"}
    rows = {"mask": MASK, "rewards": rewards, "values": before, "weight": weights}
    prepared, metrics = algorithm.prepare(rows)
    asked = {"logprobs": logprobs, "values": now, "entropy": torch.zeros(4, 5), "correct": MASK}
    shares = algorithm.shares({**prepared, **asked}, Totals(sum(LENGTHS), 4, 4))
    assert {name: shares[name].item() for name in expected} == pytest.approx(expected)
    assert metrics["values/mean"] == pytest.approx(before[MASK].mean().item())


def test_values_and_another_baseline_are_refused() -> None:
    with pytest.raises(ValueError, match="and 'group' is a second one; set advantage: reward"):
        recipe("grpo", value="gae")
    with pytest.raises(ValueError, match="and 'leave_one_out' is a second one"):
        recipe("ppo", advantage="leave_one_out")


OWN = """
from trinity_db.trainer.recipes.parts.properties import having

@having(rewards_themselves=True)
def halved(rewards):
    return rewards / 2

def compared(rewards, groups):
    return rewards - rewards.mean()
"""


def test_values_go_with_an_advantage_of_the_users_own_that_is_the_reward_itself(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    assert "values" in create(recipe("ppo", advantage=f"{tmp_path}/own.py:halved")).needs
    with pytest.raises(ConfigError, match=r"the value is the baseline of a reward, and .*:compared' anot"):
        create(recipe("ppo", advantage=f"{tmp_path}/own.py:compared"))


def test_an_estimate_of_the_users_own_reads_rewards_values_and_mask(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "def mine(token_rewards, values, *, scale: float): return scale * (token_rewards - values)\n"
    )
    algorithm = create(
        recipe("ppo", value={"name": f"{file}:mine", "scale": 2, "coefficient": 0.3}, whiten=False)
    )
    rows = {"mask": MASK, "rewards": normal(0, 4), "values": normal(1, 4, 5), "behaviour": normal(2, 4, 5)}
    prepared, _ = algorithm.prepare(rows)
    assert torch.equal(prepared["returns"], prepared["advantages"] + rows["values"])
    last = prepared["advantages"][1, 0].item()
    assert last == pytest.approx(2 * (rows["rewards"][1] - rows["values"][1, 0]).item())
    file.write_text("def mine(token_rewards, logprobs): return token_rewards\n")
    with pytest.raises(
        ConfigError, match="reads 'logprobs', but a value can read token_rewards, mask, values"
    ):
        create(recipe("ppo", value=f"{file}:mine"))
