"""The loss that balances experts is that of transformers over a whole update, however that is divided."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.others.families.checks import router_loss
from tests.others.families.tiny import save
from tests.support.recipes import recipe
from trinity_db.arrays.codec import Payload
from trinity_db.errors import ConfigError
from trinity_db.models import load_model
from trinity_db.models.forward import Forward
from trinity_db.models.layers import recompute
from trinity_db.models.router import balance
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner

CHOSEN = 2  # experts of the tiny models
COEFFICIENT = 0.5  # much, so that it matters beside the loss of the algorithm


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture whose rows are padded."""
    folder = tmp_path_factory.mktemp("phimoe")
    save("phimoe", folder)
    return folder


def rows(*lengths: int) -> list[Payload]:
    rng = np.random.default_rng(0)
    return [
        Payload(rng.integers(3, 61, length).astype(np.int32), np.arange(length) >= length // 2)
        for length in lengths
    ]


def gradient(model: Any) -> Tensor:
    return torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])


def learner(folder: Path, **settings: Any) -> Learner:
    config = {"learning_rate": 1e-3, "max_grad_norm": 1e9, "router_aux_loss_coef": COEFFICIENT}
    asked = TrainerConfig.model_validate(config | settings)
    return Learner(asked, recipe("sft"), folder, total_steps=10, device="cpu")


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("lengths", [(12, 12), (5, 17, 9)])
def test_loss_and_gradient_are_those_of_transformers(
    layout: str, lengths: tuple[int, ...], request: pytest.FixtureRequest
) -> None:
    folder, payloads = request.getfixturevalue(layout), rows(*lengths)
    plain = load_model(folder, "cpu")
    expected = router_loss(plain, payloads)
    torch.autograd.backward(expected)
    model = load_model(folder, "cpu")
    forward = Forward(model, TrainerConfig())
    assert forward.layout == layout
    for again in (False, True):
        if again:
            model.zero_grad()
            recompute(model)
        load = forward(payloads, routed=CHOSEN).load
        assert load is not None
        found = balance(load[0].detach(), load[1], CHOSEN)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
        torch.autograd.backward(found)
        torch.testing.assert_close(gradient(model), gradient(plain), atol=1e-6, rtol=1e-4)
        assert torch.equal(forward.load(payloads, CHOSEN), load.detach())
    assert gradient(plain).abs().max() > 1e-3


def test_the_loss_is_the_formula_in_float64() -> None:
    logits = torch.randn(3, 7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    likely = (logits.exp() / logits.exp().sum(-1, keepdim=True)).flatten(0, 1)  # 3 layers, 7 tokens
    counts = [sum(expert in row.argsort()[-CHOSEN:] for row in likely) for expert in range(4)]
    expected = 4 * sum(counts[e] / 21 * float(likely[:, e].mean()) for e in range(4))
    found = balance(torch.tensor(counts, dtype=torch.float64), likely.sum(0), CHOSEN)
    assert float(found) == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_the_size_of_a_micro_batch_changes_nothing(layout: str, request: pytest.FixtureRequest) -> None:
    folder, batch = request.getfixturevalue(layout), Batch(rows(5, 17, 9, 30))
    expected = float(router_loss(load_model(folder, "cpu"), list(batch.payloads)).detach())
    without = learner(folder, router_aux_loss_coef=0.0).step(batch)
    assert "aux_loss" not in without
    found = []
    for size in (1, 2, 100):
        one = learner(folder, micro_batch_size=size)
        metrics = one.step(batch)
        assert metrics["aux_loss"] == pytest.approx(expected, abs=1e-5)
        assert metrics["loss"] == pytest.approx(without["loss"] + COEFFICIENT * expected, abs=1e-5)
        found.append(gradient(one.policy.model))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], atol=1e-5, rtol=1e-4)


def test_the_configuration_of_the_model_says_whether_and_how_much(packed: Path, tmp_path: Path) -> None:
    for file in packed.iterdir():
        (tmp_path / file.name).symlink_to(file)
    config = json.loads((packed / "config.json").read_bytes())
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"output_router_logits": True, "router_aux_loss_coef": 0.25})
    )
    by_config = learner(tmp_path, router_aux_loss_coef=None).policy.router_loss
    assert by_config is not None
    assert (by_config.coefficient, by_config.chosen) == (0.25, CHOSEN)
    assert learner(tmp_path, router_aux_loss_coef=0.0).policy.router_loss is None
    assert learner(packed, router_aux_loss_coef=None).policy.router_loss is None


def test_models_without_such_a_loss_are_refused(tmp_path: Path) -> None:
    save("qwen2", tmp_path)
    with pytest.raises(ConfigError, match=r"^trainer\.router_aux_loss_coef: .* Qwen2ForCausalLM; remove it"):
        learner(tmp_path)
    assert learner(tmp_path, router_aux_loss_coef=0.0).policy.router_loss is None
