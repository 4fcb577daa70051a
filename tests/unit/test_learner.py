"""One optimizer step: what it computes, and what must not change it."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from trinity_db.arrays import Payload
from trinity_db.config import ScratchConfig
from trinity_db.explorer.engine import Request
from trinity_db.explorer.transformers_engine import TransformersEngine
from trinity_db.models import build_scratch, load_model
from trinity_db.trainer.config import AlgorithmConfig, DpoConfig, GrpoConfig, SftConfig, TrainerConfig
from trinity_db.trainer.step import Abandoned, Batch, Learner, NonFiniteLoss, learning_rate

ALGORITHMS: list[AlgorithmConfig] = [GrpoConfig(), SftConfig(), DpoConfig()]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    build_scratch(ScratchConfig(alphabet="0123456789", hidden_size=16, heads=2, context=32), 3, folder)
    return folder


def payload(rng: np.random.Generator, *, sampled: bool = True) -> Payload:
    """Random tokens; trained ones stand in two stretches, as in a conversation of two turns."""
    num_tokens = int(rng.integers(6, 14))
    mask = np.zeros(num_tokens, np.bool_)
    mask[2:4] = mask[-2:] = True
    tokens = rng.integers(0, 10, num_tokens).astype(np.int32)
    if not sampled:
        return Payload(tokens, mask)
    logprobs = rng.normal(-2.3, 0.3, int(mask.sum())).astype(np.float32)
    return Payload(tokens, mask, logprobs, np.zeros(int(mask.sum()), np.int32))


def batch(seed: int = 0, size: int = 6) -> Batch:
    rng = np.random.default_rng(seed)
    return Batch([payload(rng) for _ in range(size)], rng.normal(size=size))


def learner(model: Path, algorithm: AlgorithmConfig, **settings: float | str) -> Learner:
    config = TrainerConfig.model_validate({"learning_rate": 1e-2, **settings})
    return Learner(config, algorithm, model, total_steps=10, device="cpu")


def gradients(learner: Learner) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in learner.model.parameters()])


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.name)
def test_the_size_of_a_micro_batch_changes_nothing(model: Path, algorithm: AlgorithmConfig) -> None:
    results = []
    for size in (1, 2, 4, 100):
        one = learner(model, algorithm, micro_batch_size=size, max_grad_norm=1e9)
        metrics = one.step(batch())
        results.append((metrics, gradients(one)))
    for metrics, gradient in results[1:]:
        assert metrics == pytest.approx(results[0][0], abs=1e-5)
        torch.testing.assert_close(gradient, results[0][1], atol=1e-6, rtol=1e-5)
    assert results[0][1].abs().max() > 1e-3


def test_sft_has_the_loss_that_transformers_computes(model: Path) -> None:
    rows = batch(size=4)
    tokens = torch.zeros(4, 14, dtype=torch.long)
    labels = torch.full((4, 14), -100)
    for row, one in enumerate(rows.payloads):
        tokens[row, : one.num_tokens] = torch.from_numpy(one.token_ids)
        mask = torch.from_numpy(one.action_mask)
        labels[row, : one.num_tokens][mask] = tokens[row, : one.num_tokens][mask]
    with torch.no_grad():
        expected = load_model(model, "cpu")(input_ids=tokens, labels=labels).loss.item()
    assert learner(model, SftConfig()).evaluate(rows)["loss"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_freshly_sampled_rows_have_a_ratio_of_one(model: Path, temperature: float) -> None:
    engine = TransformersEngine("cpu")
    engine.load(model, 0)
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8]]
    requests = [Request(p, 9) for p in prompts]
    done = [c for ended in engine.generate(requests, temperature=temperature, seed=0) for c in ended]
    payloads = [completion.payload(prompts[completion.index]) for completion in done]
    one = Learner(TrainerConfig(), GrpoConfig(), model, total_steps=1, temperature=temperature, device="cpu")
    metrics = one.evaluate(Batch(payloads, np.array([1.0, -1.0, 0.5])))
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["clip_ratio"] == 0.0


def test_a_step_follows_the_sign_of_the_advantage(model: Path) -> None:
    rows = batch(size=2).payloads
    one = learner(model, GrpoConfig(), learning_rate=1e-3)

    def likelihoods() -> list[float]:
        judge = learner(model, SftConfig())
        judge.model = one.model
        return [-judge.evaluate(Batch([row]))["loss"] for row in rows]

    before = likelihoods()
    one.step(Batch(rows, np.array([1.0, -1.0])))
    up, down = (after - earlier for after, earlier in zip(likelihoods(), before, strict=True))
    assert up > 0 > down


def test_a_stale_ratio_outside_the_range_gives_no_gradient(model: Path) -> None:
    (row,) = batch(size=1).payloads
    assert row.logprobs is not None
    stale = Payload(row.token_ids, row.action_mask, row.logprobs - 3, row.versions)
    one = learner(model, GrpoConfig())
    metrics = one.step(Batch([stale], np.array([1.0])))
    assert metrics["clip_ratio"] == 1.0
    assert metrics["ratio_mean"] > 1.2
    assert metrics["grad_norm"] == 0.0


def test_dpo_starts_at_log_two_and_keeps_its_reference(model: Path) -> None:
    one = learner(model, DpoConfig(), learning_rate=3e-3)
    rows = batch()
    seen = [one.step(rows) for _ in range(5)]
    assert seen[0]["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert seen[0]["rewards/margins"] == pytest.approx(0, abs=1e-6)
    assert seen[-1]["rewards/margins"] > 0.05
    assert seen[-1]["loss"] < seen[0]["loss"]


def test_the_first_token_is_never_trained_since_nothing_predicts_it(model: Path) -> None:
    tokens = np.array([1, 2, 3], np.int32)
    whole, rest = np.ones(3, np.bool_), np.array([False, True, True])
    one = learner(model, SftConfig())
    with_first = one.evaluate(Batch([Payload(tokens, whole)]))
    assert with_first == pytest.approx(one.evaluate(Batch([Payload(tokens, rest)])))


def test_entropy_is_that_of_the_predicted_distribution(model: Path) -> None:
    (row,) = batch(size=1).payloads
    with torch.no_grad():
        logits = load_model(model, "cpu")(torch.from_numpy(row.token_ids)[None].long()).logits[0]
    entropies = torch.special.entr(logits.softmax(-1)).sum(-1)[:-1]
    expected = entropies[torch.from_numpy(row.action_mask[1:].copy())].mean().item()
    assert learner(model, SftConfig()).evaluate(Batch([row]))["entropy"] == pytest.approx(expected, abs=1e-5)


def test_the_gradient_is_shortened_to_the_configured_norm(model: Path) -> None:
    one = learner(model, SftConfig(), max_grad_norm=0.01)
    assert one.step(batch())["grad_norm"] > 0.01
    assert gradients(one).norm().item() == pytest.approx(0.01, rel=1e-3)


def test_a_loss_that_is_no_number_names_the_step_and_leaves_the_weights(model: Path) -> None:
    one = learner(model, GrpoConfig())
    one.step(batch())
    before = torch.cat([parameter.detach().flatten() for parameter in one.model.parameters()])
    rows = batch()
    with pytest.raises(NonFiniteLoss, match="Step 2: the loss is nan"):
        one.step(Batch(rows.payloads, np.full(len(rows.payloads), np.nan)))
    after = torch.cat([parameter.detach().flatten() for parameter in one.model.parameters()])
    assert torch.equal(before, after)
    assert one.steps_done == 1


def test_evaluating_learns_nothing(model: Path) -> None:
    one = learner(model, SftConfig())
    assert one.evaluate(batch()) == one.evaluate(batch())
    assert all(parameter.grad is None for parameter in one.model.parameters())
    assert one.steps_done == 0


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1.0, 1.0, 0.8535534, 0.5, 0.1464466]),
    ],
)
def test_the_learning_rate_warms_up_and_falls(schedule: str, expected: list[float]) -> None:
    config = TrainerConfig.model_validate({"learning_rate": 1, "warmup_steps": 2, "schedule": schedule})
    assert [learning_rate(config, step, 6) for step in range(6)] == pytest.approx(expected)
    assert learning_rate(config, 99, 6) == pytest.approx(1.0 if schedule == "constant" else 0.0, abs=1e-9)


def test_an_abandoned_step_leaves_no_trace(model: Path) -> None:
    answers: list[bool] = []
    config = TrainerConfig(learning_rate=1e-2, micro_batch_size=2)
    one = Learner(
        config, SftConfig(), model, total_steps=10, device="cpu", should_stop=lambda: bool(answers.pop())
    )
    answers[:] = [True, False]
    with pytest.raises(Abandoned):
        one.step(batch(size=6))
    assert not answers
    assert one.steps_done == 0
    assert all(parameter.grad is None for parameter in one.model.parameters())
    answers[:] = [False, False]
    assert one.step(batch(size=6)) == learner(model, SftConfig(), micro_batch_size=2).step(batch(size=6))
    # One that has only one micro-batch is finished: nobody is asked.
    one.step(batch(size=2))
    answers[:] = [True]
    with pytest.raises(Abandoned):
        one.evaluate(batch(size=4))
