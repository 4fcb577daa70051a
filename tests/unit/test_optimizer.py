"""Optimizers by name: what each computes, what decays, what checkpoints hold, and what is refused."""

import importlib.util
import math
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.recipes import recipe
from tests.support.saving import save_checkpoint
from trinity_db.arrays.codec import Payload
from trinity_db.config.base import Change, Kept, rule, validate
from trinity_db.config.shared import ModelConfig, ScratchConfig
from trinity_db.errors import ConfigError, MissingExtra
from trinity_db.models import build_scratch
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.learner import optimizer
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner
from trinity_db.trainer.learner.micro_batches import Abandoned
from trinity_db.trainer.loop.setup import TrainerSetup

OWN = """
from collections import deque
from torch.optim import Optimizer

class Counting(Optimizer):
    '''Gradient descent at a rate that falls with a count among the settings of a group.'''
    def __init__(self, groups, lr, power):
        super().__init__(groups, {"lr": lr, "power": power, "count": 0})

    def step(self):
        for group in self.param_groups:
            group["count"] += 1
            for one in group["params"]:
                one.data -= group["lr"] * group["count"] ** -group["power"] * one.grad

class Unread(Counting):
    def step(self):
        super().step()
        for group in self.param_groups:
            group["latest"] = deque([1.0])

def not_one(groups, lr):
    return None
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    build_scratch(ScratchConfig(alphabet="0123456789", hidden_size=16, heads=2, context=32), 3, folder)
    return folder


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("own") / "own.py"
    file.write_text(OWN)
    return str(file)


def batch(seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    payloads = []
    for length in rng.integers(2, 7, 6):
        logprobs = rng.normal(-2.3, 0.3, length).astype(np.float32)
        tokens = rng.integers(0, 10, length + 3).astype(np.int32)
        payloads.append(Payload(tokens, np.arange(length + 3) >= 3, logprobs, np.zeros(length, np.int32)))
    return Batch(payloads, {"rewards": rng.normal(size=6), "advantages": rng.normal(size=6)})


def learner(model: Path, chosen: Any, name: str = "ppo", should_stop: Any = bool, **settings: Any) -> Learner:
    config = TrainerConfig.model_validate({"learning_rate": 1e-2, "optimizer": chosen, **settings})
    return Learner(config, recipe(name), model, total_steps=10, device="cpu", should_stop=should_stop)


def weights(one: Learner) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in one.policy.parameters()]


def available(own: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "adamw": {"name": "adamw", "beta2": 0.95},
        "adafactor": "adafactor",
        "sgd": {"name": "sgd", "momentum": 0.9},
        "muon": {"name": "muon", "momentum": 0.9},
        "own": {"name": f"{own}:Counting", "power": 0.5},
    }
    if importlib.util.find_spec("bitsandbytes"):
        found["adamw_8bit"] = "adamw_8bit"
    return found


def test_each_learns_and_goes_on_from_a_checkpoint_to_the_bit(model: Path, own: str) -> None:
    for name, chosen in available(own).items():
        one, later = (learner(model, chosen, weight_decay=0.1) for _ in range(2))
        first = one.step(batch())
        for number in range(1, 3):
            one.step(batch(number))
        assert first["grad_norm"] > 0, name
        for ours, theirs in zip(later.policy.parameters(), one.policy.parameters(), strict=True):
            ours.data.copy_(theirs.data)
        later.load_state_dict(deepcopy(one.state_dict()))
        assert later.step(batch(3)) == one.step(batch(3)), name
        assert all(map(torch.equal, weights(later), weights(one))), name


def test_each_is_undone_when_a_step_breaks_off(model: Path, own: str) -> None:
    for name, chosen in available(own).items():
        asked: list[int] = []
        stops = partial(lambda asked: len(asked) == 2, asked)
        settings: Any = {"updates_per_batch": 3, "micro_batch_size": 4}
        one, other = (learner(model, chosen, should_stop=stop, **settings) for stop in (stops, bool))
        assert one.step(batch(0)) == other.step(batch(0)), name
        step, before = one.optimizer.step, weights(one)

        def counted(step: Any = step, asked: list[int] = asked) -> None:
            step()
            asked.append(1)

        one.optimizer.step = counted  # type: ignore[method-assign]
        with pytest.raises(Abandoned):
            one.step(batch(8))
        assert all(map(torch.equal, weights(one), before)), name
        one.optimizer.step = step  # type: ignore[method-assign]
        asked.clear()
        assert one.step(batch(9)) == other.step(batch(9)), name
        assert all(map(torch.equal, weights(one), weights(other))), name


def orthogonal(gradient: Tensor) -> Tensor:
    """The quintic Newton-Schulz iteration of Muon, in float64."""
    a, b, c = 3.4445, -4.775, 2.0315
    update = gradient.T if gradient.shape[0] > gradient.shape[1] else gradient
    update = update / update.norm()
    for _ in range(5):
        gram = update @ update.T
        update = a * update + (b * gram + c * gram @ gram) @ update
    whole: Tensor = update.T if gradient.shape[0] > gradient.shape[1] else update
    return whole


def test_the_first_update_is_the_one_that_its_formula_gives(model: Path) -> None:
    for chosen in ("adamw", "sgd", "adafactor", "muon"):
        one = learner(model, chosen, max_grad_norm=1e9)
        before = weights(one)
        one.step(batch())
        names = [*one.policy.weights, *one.policy.head_weights]
        apart = {id(matrix) for matrix in (*one.policy.embeddings, *one.policy.head_weights.values())}
        for name, parameter, start in zip(names, one.policy.parameters(), before, strict=True):
            assert parameter.grad is not None
            gradient, moved = parameter.grad.double(), (parameter.detach() - start).double()
            is_map = parameter.ndim == 2 and id(parameter) not in apart
            if chosen == "sgd":
                expected, close = -1e-2 * gradient, 1e-7
            elif chosen == "adafactor":
                expected, close = adafactor(gradient, start.double()), 1e-5
            elif chosen == "muon" and is_map:
                size = 0.2 * math.sqrt(max(gradient.shape))
                nesterov = 0.05 * gradient * 0.95 + 0.05 * gradient
                expected = -1e-2 * size * orthogonal(nesterov)
                # torch iterates in bfloat16, which turns directions in which the gradient is almost 0.
                likeness = torch.cosine_similarity(moved.flatten(), expected.flatten(), dim=0)
                assert likeness > 0.98, name
                assert moved.norm().item() == pytest.approx(expected.norm().item(), rel=0.03), name
                continue
            else:
                expected, close = -1e-2 * gradient / (gradient.abs() + 1e-8), 1e-6
            assert (moved - expected).abs().max() < close, f"{chosen}: {name}"


def adafactor(gradient: Tensor, start: Tensor) -> Tensor:
    """Its first update: arXiv 1804.04235 algorithms 4 and 5, where the decay of the mean is 0."""
    squares = gradient.square()
    if gradient.ndim > 1:
        rows, columns = squares.mean(-1, keepdim=True), squares.mean(-2, keepdim=True)
        squares = rows * columns / rows.mean(-2, keepdim=True).clamp(min=1e-30)
    update = gradient / squares.clamp(min=torch.finfo(torch.float32).eps ** 2).sqrt()
    update = update / (update.square().mean().sqrt()).clamp(min=1.0)
    change: Tensor = -1e-2 * start.square().mean().sqrt().clamp(min=1e-3) * update
    return change


def test_weight_decay_leaves_norms_and_biases_alone(model: Path) -> None:
    ends = []
    for decay in (0.0, 0.5):
        one = learner(model, "adamw", weight_decay=decay)
        before = weights(one)
        one.step(batch())
        ends.append(weights(one))
    names = [*one.policy.weights, *one.policy.head_weights]
    for name, start, plain, decayed in zip(names, before, *ends, strict=True):
        if start.ndim == 1:
            assert "norm" in name or "bias" in name
            assert torch.equal(plain, decayed), name
        else:
            torch.testing.assert_close(decayed - plain, -1e-2 * 0.5 * start, atol=1e-6, rtol=1e-3)
    fused = torch.nn.Parameter(torch.ones(4, 8))  # as gpt-oss has them
    for name, decays in (("experts.down_proj_bias", False), ("q_norm.weight", False), ("experts.down", True)):
        assert optimizer._decays(name, fused) is decays


def test_the_value_head_has_a_learning_rate_of_its_own(model: Path) -> None:
    slow, fast = (learner(model, "sgd", value_learning_rate=rate, max_grad_norm=1e9) for rate in (None, 0.05))
    starts = weights(slow)
    assert slow.step(batch())["learning_rate"] == fast.step(batch())["learning_rate"] == 1e-2
    for start, one, other in zip(starts[:-2], weights(slow)[:-2], weights(fast)[:-2], strict=True):
        assert torch.equal(one, other)
        assert not torch.equal(one, start)
    for start, one, other in zip(starts[-2:], weights(slow)[-2:], weights(fast)[-2:], strict=True):
        torch.testing.assert_close(other - start, 5 * (one - start))


def setup(name: str, **settings: Any) -> TrainerSetup:
    config = TrainerConfig.model_validate({"steps": 1, **settings})
    return TrainerSetup(
        trainer=config,
        algorithm=recipe(name),
        model=ModelConfig.model_validate({"scratch": {}}),
        seed=0,
        max_staleness=None,
        temperature=1.0,
        checkpoints=Path("checkpoints"),
    )


def test_what_cannot_be_made_is_refused_before_a_run_has_a_name(
    own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup("ppo", optimizer="muon", value_learning_rate=1e-3).check()
    with pytest.raises(ConfigError, match=r"value_learning_rate: algorithm grpo .* has no value head"):
        setup("grpo", value_learning_rate=1e-3).check()
    with pytest.raises(ConfigError, match=r"has no function 'Countin'; did you mean 'Counting'\?"):
        setup("grpo", optimizer=f"{own}:Countin").check()
    monkeypatch.setitem(__import__("sys").modules, "bitsandbytes", None)
    with pytest.raises(MissingExtra, match=r"needs the package bitsandbytes; install it with: pip install "):
        setup("grpo", optimizer="adamw_8bit").check()
    for name in ("muon", "adafactor", "adamw_8bit"):
        with pytest.raises(ConfigError, match=f"optimizer: {name} needs whole matrices, and sharding: full"):
            validate(TrainerConfig, {"optimizer": name, "sharding": "full"}, "run.yaml")
    with pytest.raises(ConfigError, match="there is no 'adamm'; did you mean 'adamw'"):
        validate(TrainerConfig, {"optimizer": "adamm"}, "run.yaml")
    with pytest.raises(ConfigError, match=r"unknown key 'optimizer\.momentun'; did you mean 'momentum'"):
        validate(TrainerConfig, {"optimizer": {"name": "sgd", "momentun": 0.9}}, "run.yaml")


def test_an_optimizer_of_the_users_own_that_cannot_be_called_is_named(model: Path, own: str) -> None:
    with pytest.raises(ConfigError, match=r"Optimizer '.*own.py:Counting' raised TypeError: .*'power'"):
        learner(model, f"{own}:Counting")
    with pytest.raises(ConfigError, match=r"it must be a class of torch\.optim\.Optimizer"):
        learner(model, f"{own}:not_one")


def test_state_that_no_checkpoint_gives_back_is_named_before_it_is_saved(
    model: Path, own: str, tmp_path: Path
) -> None:
    one = learner(model, {"name": f"{own}:Unread", "power": 0.5})
    one.step(batch())
    with pytest.raises(ConfigError, match=r"optimizer: its state has collections\.deque, which a checkpoint"):
        save_checkpoint(tmp_path / "v1", one)
    assert list(tmp_path.iterdir()) == []


def test_a_run_keeps_its_optimizer_and_may_change_options() -> None:
    assert isinstance(rule(TrainerConfig, "optimizer"), Kept)
    assert isinstance(rule(TrainerConfig, "optimizer.name"), Kept)
    assert rule(TrainerConfig, "optimizer.momentum") is Change.DATED
    assert rule(TrainerConfig, "value_learning_rate") is Change.DATED
