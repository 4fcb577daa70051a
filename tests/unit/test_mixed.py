"""Expert rows beside live ones: a step is made of both, each as if it stood alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from tests.support.recipes import recipe
from trinity_db.arrays.codec import Payload
from trinity_db.config.shared import ScratchConfig
from trinity_db.errors import ConfigError
from trinity_db.models import build_scratch
from trinity_db.trainer.config import AlgorithmConfig, TrainerConfig
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner

MU = 0.3
LIVE, EXPERTS = [0, 2, 3, 5], [1, 4, 6]
PARTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "whitened, held by divergence": {"whiten": True, "kl": {"name": "k3", "coefficient": 0.5}},
    "divergence off the reward": {"kl": {"name": "k1", "coefficient": 0.3}, "scale_rewards": "batch"},
    "corrected": {"correction": {"name": "truncated_importance_sampling", "proximal": "interpolated"}},
    "by sequence": {"loss": "gspo", "aggregation": "seq_mean_token_mean", "entropy_coefficient": 0.1},
}
every_part = pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)


def scratch(folder: Path, seed: int) -> Path:
    build_scratch(ScratchConfig(alphabet="0123456789", hidden_size=16, heads=2, context=32), seed, folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scratch(tmp_path_factory.mktemp("model"), 3)


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A starting model that the policy has gone away from."""
    return scratch(tmp_path_factory.mktemp("moved"), 4)


def payload(rng: np.random.Generator, *, sampled: bool) -> Payload:
    num_tokens = int(rng.integers(6, 14))
    mask = np.arange(num_tokens) > 2
    tokens = rng.integers(0, 10, num_tokens).astype(np.int32)
    if not sampled:
        return Payload(tokens, mask)
    logprobs = rng.normal(-2.3, 0.3, int(mask.sum())).astype(np.float32)
    return Payload(tokens, mask, logprobs, np.zeros(int(mask.sum()), np.int32))


def batch() -> Batch:
    """Seven rows, three of them an expert's: what stands there for their numbers is not to be read."""
    rng = np.random.default_rng(0)
    is_expert = np.isin(np.arange(7), EXPERTS)
    columns = {
        "advantages": rng.normal(size=7),
        "rewards": rng.normal(size=7),
        "groups": np.arange(7) // 3,
        "staleness": np.arange(7) % 3,
    }
    known = {name: np.where(is_expert, 99, values) for name, values in columns.items()}
    payloads = [payload(rng, sampled=not expert) for expert in is_expert]
    return Batch(payloads, {**known, "is_expert": is_expert})


def some(rows: Batch, chosen: list[int]) -> Batch:
    columns = {name: values[chosen] for name, values in rows.columns.items() if name != "is_expert"}
    return Batch([rows.payloads[row] for row in chosen], columns)


def learner(model: Path, algorithm: AlgorithmConfig, reference: Path, size: int = 100) -> Learner:
    config = TrainerConfig(learning_rate=1e-2, max_grad_norm=1e9, micro_batch_size=size)
    return Learner(config, algorithm, model, reference=reference, total_steps=10, device="cpu")


def gradient(learner: Learner) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in learner.policy.model.parameters()])


@every_part
def test_a_step_is_the_sum_of_both_kinds_as_they_are_by_themselves(
    model: Path, moved: Path, parts: dict[str, Any]
) -> None:
    rows = batch()
    expert_loss = "phi"
    mixed = learner(model, recipe("mix", mu=MU, expert_loss=expert_loss, **parts), moved)
    alone = learner(model, recipe("grpo", **parts), moved)
    imitation = recipe("sft", loss=expert_loss, aggregation=parts.get("aggregation", "token_mean"))
    imitating = learner(model, imitation, moved)
    found = mixed.step(rows)
    live, expert = alone.step(some(rows, LIVE)), imitating.step(some(rows, EXPERTS))
    expected = (1 - MU) * gradient(alone) + MU * gradient(imitating)
    torch.testing.assert_close(gradient(mixed), expected, atol=1e-6, rtol=1e-5)
    assert expected.abs().max() > 1e-3
    assert found["loss"] == pytest.approx((1 - MU) * live["loss"] + MU * expert["loss"], abs=1e-6)
    own = {"loss", "grad_norm", "learning_rate", "num_tokens"}  # of the whole step
    expected_metrics = {name: value for name, value in live.items() if name not in own} | {
        f"expert/{name}": expert[name] for name in ("loss", "mean_token_accuracy", "entropy")
    }
    assert {name: found[name] for name in expected_metrics} == pytest.approx(expected_metrics, abs=1e-5)
    assert found["mu"] == MU


@every_part
def test_how_rows_fall_into_micro_batches_changes_nothing(
    model: Path, moved: Path, parts: dict[str, Any]
) -> None:
    results = []
    for size in (1, 2, 100):
        one = learner(model, recipe("mix", mu=MU, **parts), moved, size)
        results.append((one.step(batch()), gradient(one)))
    for metrics, found in results[:-1]:
        assert metrics == pytest.approx(results[-1][0], abs=1e-5)
        torch.testing.assert_close(found, results[-1][1], atol=1e-6, rtol=1e-5)


def test_only_expert_rows_may_lack_sampled_tokens(model: Path) -> None:
    rows = batch()
    unsampled = Batch([payload(np.random.default_rng(1), sampled=False) for _ in rows.payloads], rows.columns)
    with pytest.raises(ConfigError, match=r"no behaviour \(.*\), which policy loss 'ppo_clip' needs"):
        learner(model, recipe("mix"), model).step(unsampled)
    with pytest.raises(ConfigError, match=r"no is_expert \(.*\), which expert_loss needs"):
        learner(model, recipe("mix"), model).step(some(rows, LIVE))


def test_the_share_of_expert_rows_follows_the_steps_and_goes_on_from_a_checkpoint(model: Path) -> None:
    schedule = {"mu": 0.8, "mu_warmup_steps": 2, "mu_valley": 0.2, "mu_decay_steps": 2}
    one = learner(model, recipe("chord", **schedule), model)
    assert [one.step(batch())["mu"] for _ in range(3)] == pytest.approx([0.4, 0.8, 0.5])
    another = learner(model, recipe("chord", **schedule), model)
    another.load_state_dict(one.state_dict())
    assert [another.step(batch())["mu"] for _ in range(2)] == pytest.approx([0.2, 0.2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mu_valley": 0.1}, "mu_valley and mu_decay_steps belong together"),
        ({"mu_decay_steps": 5}, "mu_valley and mu_decay_steps belong together"),
        ({"mu": 1.5}, "less than or equal to 1"),
        ({"expert_rows": 0}, "greater than or equal to 1"),
        ({"distillation": "reverse_kl"}, "distillation needs a teacher's scores"),
    ],
)
def test_what_cannot_be_mixed_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        recipe("mix", **options)
