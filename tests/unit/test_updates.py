"""Several updates by one batch: against a loop by hand, broken off, resumed, and what they measure."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.recipes import recipe
from trinity_db.arrays.codec import Payload
from trinity_db.config.shared import ScratchConfig
from trinity_db.models import build_scratch, load_model
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.distribution.ranks import Ranks
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner, NonFiniteLoss
from trinity_db.trainer.learner.micro_batches import Abandoned
from trinity_db.trainer.learner.shares import combined
from trinity_db.trainer.learner.updates import rows_of_updates
from trinity_db.trainer.learner.value_head import ValueHead

ROWS = 8
RATE = 3e-3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    build_scratch(ScratchConfig(alphabet="0123456789", hidden_size=16, heads=2, context=32), 3, folder)
    head = ValueHead(16)
    torch.nn.init.normal_(head.weight, std=0.3, generator=torch.Generator().manual_seed(0))
    head.save(folder)
    return folder


def batch(seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    payloads = []
    for length in rng.integers(1, 7, ROWS):
        logprobs = rng.normal(-2.3, 0.3, length).astype(np.float32)
        tokens = rng.integers(0, 10, length + 3).astype(np.int32)
        payloads.append(Payload(tokens, np.arange(length + 3) >= 3, logprobs, np.zeros(length, np.int32)))
    columns = {"advantages": rng.normal(size=ROWS), "rewards": rng.normal(size=ROWS)}
    return Batch(payloads, columns | {"groups": np.arange(ROWS) // 4, "staleness": np.zeros(ROWS)})


def learner(
    model: Path, algorithm: Any, should_stop: Callable[[], bool] = lambda: False, **settings: Any
) -> Learner:
    config = TrainerConfig.model_validate({"learning_rate": RATE, "micro_batch_size": 3, **settings})
    return Learner(config, algorithm, model, total_steps=10, device="cpu", should_stop=should_stop)


def in_float64(one: Learner) -> Learner:
    """The same learner with weights in float64. Its columns of a step stay float32."""
    one.policy.model.double()
    one.policy.forward._dtype = torch.float64
    if one.policy.value_head:
        one.policy.value_head.double()
    return one


def weights(one: Learner) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in one.policy.parameters()])


class Loop:
    """The same training row by row, with Adam written out, in float64."""

    def __init__(self, folder: Path, has_values: bool) -> None:
        self.model = load_model(folder, "cpu").double()
        self.parameters = list(self.model.parameters())
        if has_values:
            from safetensors.torch import load_file

            head = load_file(folder / "value_head.safetensors")
            self.weight, self.bias = (head[name].double().requires_grad_() for name in ("weight", "bias"))
            self.parameters += [self.weight, self.bias]
        self.first = [torch.zeros_like(one) for one in self.parameters]
        self.second = [torch.zeros_like(one) for one in self.parameters]
        self.updates = 0

    def logprobs(self, row: Payload) -> Tensor:
        tokens = torch.from_numpy(row.token_ids).long()
        scores = self.model(tokens[None]).logits[0, :-1].log_softmax(-1)
        trained: Tensor = scores.gather(1, tokens[1:, None])[:, 0][
            torch.from_numpy(row.action_mask[1:].copy())
        ]
        return trained

    def values(self, row: Payload) -> Tensor:
        tokens = torch.from_numpy(row.token_ids).long()
        hidden = self.model.get_decoder()(tokens[None])[0][0, :-1]
        trained: Tensor = (hidden @ self.weight[0] + self.bias)[torch.from_numpy(row.action_mask[1:].copy())]
        return trained

    def update(self, loss: Tensor) -> None:
        self.updates += 1
        gradients = torch.autograd.grad(loss, self.parameters)
        norm = torch.cat([one.flatten() for one in gradients]).norm()
        scale = min(1.0, 1.0 / (norm.item() + 1e-6))
        with torch.no_grad():
            for number, gradient in enumerate(gradients):
                first = self.first[number].mul_(0.9).add_(0.1 * scale * gradient)
                second = self.second[number].mul_(0.999).add_(0.001 * (scale * gradient) ** 2)
                first, second = first / (1 - 0.9**self.updates), second / (1 - 0.999**self.updates)
                self.parameters[number] -= RATE * first / (second.sqrt() + 1e-8)


def clipped(logprobs: Tensor, old: Tensor, advantages: Any) -> Tensor:
    ratio = (logprobs - old).exp()
    return torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2))


def grpo_by_hand(loop: Loop, rows: Batch, updates: list[list[int]]) -> None:
    behaviour = [torch.from_numpy(np.asarray(row.logprobs)).double() for row in rows.payloads]
    old = [loop.logprobs(row).detach() for row in rows.payloads]
    for chosen in updates:
        losses = [
            (old[i] - behaviour[i]).exp().clamp(max=2.0)
            * clipped(loop.logprobs(rows.payloads[i]), old[i], rows.columns["advantages"][i])
            for i in chosen
        ]
        loop.update(torch.cat(losses).mean())


def ppo_by_hand(loop: Loop, rows: Batch, updates: list[list[int]]) -> None:
    old = [torch.from_numpy(np.asarray(row.logprobs)).double() for row in rows.payloads]
    before = [loop.values(row).detach() for row in rows.payloads]
    rewards = rows.columns["rewards"]
    raw = [reward - values for reward, values in zip(rewards, before, strict=True)]  # gamma = lambda = 1
    tokens = torch.cat(raw)
    advantages = [(one - tokens.mean()) / (tokens.var() + 1e-8).sqrt() for one in raw]
    for chosen in updates:
        losses, errors = [], []
        for i in chosen:
            losses.append(clipped(loop.logprobs(rows.payloads[i]), old[i], advantages[i]))
            values = loop.values(rows.payloads[i])
            held = values.clamp(before[i] - 0.2, before[i] + 0.2)
            errors.append(torch.maximum((values - rewards[i]) ** 2, (held - rewards[i]) ** 2) / 2)
        loop.update(torch.cat(losses).mean() + 0.5 * torch.cat(errors).mean())


@pytest.mark.parametrize(("name", "passes", "minibatches"), [("grpo", 4, 1), ("ppo", 2, 2)])
def test_steps_of_four_updates_are_those_of_a_loop_by_hand(
    model: Path, name: str, passes: int, minibatches: int
) -> None:
    algorithm = recipe(name, correction="truncated_importance_sampling") if name == "grpo" else recipe(name)
    one = learner(model, algorithm, updates_per_batch=passes, minibatches=minibatches)
    in_float64(one)
    loop, by_hand = Loop(model, name == "ppo"), {"grpo": grpo_by_hand, "ppo": ppo_by_hand}[name]
    begin, ends = weights(one), []
    for number in range(5):
        rows = batch(number)
        columns = {"mask": torch.ones(ROWS, 1, dtype=torch.bool)}
        by_hand(loop, rows, rows_of_updates(columns, range(ROWS), 1, one.config, number))
        ends.append(one.step(rows))
    expected = torch.cat([parameter.detach().flatten() for parameter in loop.parameters])
    assert loop.updates == 20
    assert (expected - begin).abs().max() > 0.02
    torch.testing.assert_close(weights(one), expected, atol=1e-6, rtol=0)
    assert max(metrics["clip_ratio/update_4"] for metrics in ends) > 0.05
    if name == "ppo":
        assert max(metrics["value_clip_ratio"] for metrics in ends) > 0


def test_each_pass_divides_all_items_into_parts_of_its_own() -> None:
    config = TrainerConfig(updates_per_batch=3, minibatches=4)
    rows = {"mask": torch.ones(22, 1, dtype=torch.bool)}
    trained = [row for row in range(22) if row not in (4, 5)]
    updates = rows_of_updates(rows, trained, 2, config, 7)
    assert [len(update) for update in updates] == [6, 6, 4, 4] * 3
    assert all(row + 1 in update for update in updates for row in update[::2])
    passes = [updates[:4], updates[4:8], updates[8:]]
    assert all(sorted(row for part in parts for row in part) == trained for parts in passes)
    assert passes[0] != passes[1] != passes[2]
    assert rows_of_updates(rows, trained, 2, config, 7) == updates
    assert rows_of_updates(rows, trained, 2, config, 8) != updates
    experts = rows | {"is_expert": torch.arange(22) >= 18}
    for update in rows_of_updates(experts, range(22), 1, config, 0):
        assert sum(row >= 18 for row in update) == 1
    assert rows_of_updates(rows, [3], 1, config, 0) == [[3]] * 3


def test_one_update_is_a_step_as_ever(model: Path) -> None:
    plain, said = learner(model, recipe("ppo")), learner(model, recipe("ppo"), updates_per_batch=1)
    assert plain.step(batch(0)) == said.step(batch(0))
    assert not any("/update_" in name for name in plain.step(batch(1)))


@pytest.mark.parametrize("has_state", [False, True])
@pytest.mark.parametrize("broken", ["stopped", "not finite"])
def test_a_step_that_breaks_off_between_two_updates_leaves_no_trace(
    model: Path, broken: str, has_state: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: Any = {"updates_per_batch": 2, "minibatches": 2, "weight_decay": 0.1, "micro_batch_size": 2}
    done: list[int] = []
    one = learner(model, recipe("ppo"), lambda: broken == "stopped" and len(done) == 3, **settings)
    other = learner(model, recipe("ppo"), **settings)
    if has_state:
        assert one.step(batch(0)) == other.step(batch(0))
    before, step = weights(one), one.optimizer.step

    def counted() -> None:
        step()
        done.append(1)

    def spoiled(parts: Any, ranks: Ranks) -> dict[str, float]:
        return combined(parts, ranks) | (
            {"loss": np.inf} if broken == "not finite" and len(done) == 3 else {}
        )

    monkeypatch.setattr(one.optimizer, "step", counted)
    monkeypatch.setattr("trinity_db.trainer.learner.learner.combined", spoiled)
    if broken == "stopped":
        with pytest.raises(Abandoned):
            one.step(batch(1))
    else:
        with pytest.raises(NonFiniteLoss, match=f"Step {1 + has_state}, update 4: the loss is inf"):
            one.step(batch(1))
    assert len(done) == 3
    assert torch.equal(weights(one), before)
    assert one.steps_done == int(has_state)
    monkeypatch.undo()
    done.clear()
    assert one.step(batch(2)) == other.step(batch(2))
    assert torch.equal(weights(one), weights(other))


def test_a_learner_that_goes_on_makes_the_same_updates(model: Path) -> None:
    settings: Any = {"updates_per_batch": 2, "minibatches": 3}
    one, later = (learner(model, recipe("ppo"), **settings) for _ in range(2))
    one.step(batch(0))
    for own, others in zip(later.policy.parameters(), one.policy.parameters(), strict=True):
        own.data.copy_(others.data)
    later.load_state_dict(deepcopy(one.state_dict()))
    assert later.step(batch(1)) == one.step(batch(1))
    assert torch.equal(weights(later), weights(one))


def test_metrics_are_means_over_the_updates_and_those_of_the_start_the_first_ones(model: Path) -> None:
    algorithm = recipe("grpo", correction="truncated_importance_sampling")
    metrics = learner(model, algorithm, updates_per_batch=3).step(batch(0))
    first = learner(model, algorithm).step(batch(0))
    of_updates = [metrics[f"approx_kl/update_{number}"] for number in (1, 2, 3)]
    assert of_updates[0] == pytest.approx(0, abs=1e-9)
    assert 0 < of_updates[1] < of_updates[2]
    assert metrics["approx_kl"] == pytest.approx(sum(of_updates) / 3)
    start = {name: value for name, value in first.items() if name.startswith("sampling/")}
    assert len(start) == 6
    assert {name: metrics[name] for name in start} == pytest.approx(start, rel=1e-5)


@pytest.mark.parametrize("name", ["kto", "mix", "dpo", "raft", "gspo", "sft"])
def test_every_kind_of_recipe_learns_from_minibatches(model: Path, name: str) -> None:
    one = learner(model, recipe(name), updates_per_batch=2, minibatches=3, micro_batch_size=2)
    rows = batch(0)
    if name == "mix":
        rows = Batch(rows.payloads, {**rows.columns, "is_expert": np.arange(ROWS) >= 6})  # fewer than parts
    metrics = one.step(rows)
    assert all(np.isfinite(value) for value in metrics.values())
    assert metrics["grad_norm"] > 0
    whole = learner(model, recipe(name)).step(rows)
    assert whole.keys() == {key for key in metrics if "/update_" not in key}
    one.step(Batch(rows.payloads, {**rows.columns, "advantages": np.zeros(ROWS)}))
