"""One optimizer step: what it computes, and what must not change it."""

import asyncio
import math
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.utils import parameters_to_vector

from tests.support import sampled
from tests.support.recipes import recipe
from trinity_db.arrays.codec import Payload
from trinity_db.config.shared import PromptConfig, ScratchConfig
from trinity_db.errors import ConfigError
from trinity_db.explorer.attempt.policy import Policy
from trinity_db.explorer.engines.engine import Request, sample_all
from trinity_db.explorer.engines.transformers_engine import TransformersEngine
from trinity_db.models import build_scratch, load_model
from trinity_db.trainer.config import AlgorithmConfig, TrainerConfig
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner, NonFiniteLoss
from trinity_db.trainer.learner.micro_batches import Abandoned
from trinity_db.trainer.learner.optimizer import schedule as share_of_the_rate
from trinity_db.trainer.learner.value_head import ValueHead

ALGORITHMS = {
    "grpo": recipe("grpo"),
    "sft": recipe("sft"),
    "dpo": recipe("dpo"),
    "orpo": recipe("orpo"),
    "kto": recipe("kto", beta=0.5, undesirable_weight=1.5),
    "gspo": recipe("gspo", correction="truncated_importance_sampling", proximal="interpolated"),
    "m2po": recipe("grpo", correction="m2po", kl={"name": "k3", "coefficient": 0.5}, entropy_coefficient=0.1),
    "sequences": recipe(
        "rloo",
        aggregation="seq_mean_token_mean",
        correction={"name": "off_policy_sequence_masking", "threshold": 0.2},
        kl={"name": "k1", "coefficient": 0.3},
    ),
    "reinforce_plus_plus": recipe("reinforce_plus_plus", coefficient=0.3),
    "ppo": recipe("ppo", kl={"name": "k1", "coefficient": 0.3}, gamma=0.9, lam=0.8, dual_clip=1.5),
    "a2c": recipe("a2c", entropy_coefficient=0.1, aggregation="seq_mean_token_mean"),
    "raft": recipe("raft", aggregation="seq_mean_token_sum"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    build_scratch(ScratchConfig(alphabet="0123456789", hidden_size=16, heads=2, context=32), 3, folder)
    head = ValueHead(16)  # one that has learned already, for algorithms with values
    torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(0))
    head.save(folder)
    return folder


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A starting model that the policy has gone away from."""
    folder = tmp_path_factory.mktemp("moved")
    build_scratch(ScratchConfig(alphabet="0123456789", hidden_size=16, heads=2, context=32), 4, folder)
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
    payloads = [payload(rng) for _ in range(size)]
    columns = {
        "advantages": rng.normal(size=size),
        "rewards": rng.normal(size=size),
        "groups": np.arange(size) // 2,
        "staleness": np.arange(size) % 3,
        "weight": rng.uniform(0.5, 1.0, size),
    }
    return Batch(payloads, columns)


def learner(
    model: Path, algorithm: AlgorithmConfig, reference: Path | None = None, **settings: float | str
) -> Learner:
    config = TrainerConfig.model_validate({"learning_rate": 1e-2, **settings})
    return Learner(config, algorithm, model, reference=reference, total_steps=10, device="cpu")


def gradients(learner: Learner) -> torch.Tensor:
    return torch.cat([one.grad.flatten() for one in learner.policy.parameters() if one.grad is not None])


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_the_size_of_a_micro_batch_changes_nothing(
    model: Path, moved: Path, algorithm: AlgorithmConfig
) -> None:
    results = []
    for size in (1, 4, 100):
        one = learner(model, algorithm, moved, micro_batch_size=size, max_grad_norm=1e9)
        metrics = one.step(batch())
        results.append((metrics, gradients(one)))
    for metrics, gradient in results[1:]:
        assert metrics == pytest.approx(results[0][0], abs=1e-5)
        torch.testing.assert_close(gradient, results[0][1], atol=1e-6, rtol=1e-5)
    assert results[0][1].abs().max() > 1e-3


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_a_step_in_float16_is_near_one_in_float32(
    model: Path, moved: Path, algorithm: AlgorithmConfig
) -> None:
    results = []
    for dtype in ("float32", "float16"):
        one = learner(model, algorithm, moved, dtype=dtype, max_grad_norm=1e9)
        results.append((one.step(batch()), gradients(one)))
    (exact, direction), (half, found) = results
    assert half.pop("loss_scale") > 1.0
    assert half["loss"] == pytest.approx(exact["loss"], abs=0.02, rel=0.02)
    assert torch.nn.functional.cosine_similarity(found, direction, dim=0) > 0.99


def test_a_gradient_that_overflows_in_float16_is_computed_again_at_a_smaller_scale(model: Path) -> None:
    one, other = (learner(model, ALGORITHMS["grpo"], dtype="float16", max_grad_norm=1e9) for _ in range(2))
    one.loss_scale.factor = 2.0**40
    metrics, expected = one.step(batch()), other.step(batch())
    assert 1.0 < metrics["loss_scale"] < 2.0**40
    assert metrics["grad_norm"] == pytest.approx(expected["grad_norm"], rel=0.01)
    torch.testing.assert_close(gradients(one), gradients(other), atol=1e-4, rtol=0.01)
    assert one.steps_done == 1


def test_the_scale_of_the_loss_continues_after_a_restart_and_grows(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trinity_db.trainer.learner.loss_scale.UPDATES_TO_GROW", 2)
    one, other = (learner(model, ALGORITHMS["grpo"], dtype="float16") for _ in range(2))
    one.loss_scale.factor = 8.0
    one.step(batch(0))
    other.load_state_dict(one.state_dict())
    assert [other.step(batch(seed))["loss_scale"] for seed in (1, 2)] == [8.0, 16.0]


def test_a_step_that_stays_infinite_in_float16_ends_with_its_reason(model: Path) -> None:
    one = learner(model, ALGORITHMS["grpo"], dtype="float16")
    rows = batch()
    rows.columns["advantages"][0] = np.inf
    before = parameters_to_vector(one.policy.parameters()).clone()
    with pytest.raises(NonFiniteLoss):
        one.step(rows)
    assert torch.equal(parameters_to_vector(one.policy.parameters()), before)


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
    loss = learner(model, recipe("sft")).evaluate(Batch(rows.payloads))["loss"]
    assert loss == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_freshly_sampled_rows_have_a_ratio_of_one(model: Path, temperature: float) -> None:
    engine = TransformersEngine("cpu")
    asyncio.run(engine.load(model, 0))
    requests = [
        Request(prompt, 9, temperature, seed) for seed, prompt in enumerate([[1, 2, 3], [4], [5, 6, 7, 8]])
    ]
    payloads = [sampled.payload(*one) for one in zip(requests, sample_all(engine, requests), strict=True)]
    engine.close()
    one = Learner(
        TrainerConfig(), recipe("grpo"), model, total_steps=1, temperature=temperature, device="cpu"
    )
    metrics = one.evaluate(Batch(payloads, {"advantages": np.array([1.0, -1.0, 0.5])}))
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["clip_ratio"] == 0.0


def test_calls_with_temperatures_of_their_own_have_a_ratio_of_one_too(model: Path) -> None:
    engine = TransformersEngine("cpu")
    asyncio.run(engine.load(model, 0))
    asked = Policy(
        engine,
        lambda prompt: [1],
        prompts=PromptConfig(prompt_template="{prompt}"),
        temperature=0.8,
        max_new_tokens=6,
        seed=5,
    )

    async def attempt() -> None:
        ids = [1, 2, 3]
        for temperature in (0.4, None, 2.0):
            ids += (await asked.sample(ids, temperature=temperature)).token_ids
        await asked.sample([4], temperature=0.8)

    asyncio.run(attempt())
    engine.close()
    payloads = [step.payload for step in asked.steps(None)]
    assert [payload.temperatures is None for payload in payloads] == [False, True]
    one = Learner(TrainerConfig(), recipe("grpo"), model, total_steps=1, temperature=0.8, device="cpu")
    rows = Batch(payloads, {"advantages": np.array([1.0, -1.0])})
    assert one.evaluate(rows)["approx_kl"] == pytest.approx(0.0, abs=1e-6)
    same = one.evaluate(replace(rows, version=0))
    assert same["sampling/engine_logp_difference/mean"] == pytest.approx(0.0, abs=1e-5)
    assert same["sampling/engine_ratio_outside"] == 0
    assert "sampling/engine_ratio_outside" not in one.evaluate(replace(rows, version=1))
    ignored = Batch([replace(payload, temperatures=None) for payload in payloads], rows.columns)
    assert one.evaluate(ignored)["approx_kl"] > 1e-3


def test_a_step_follows_the_sign_of_the_advantage(model: Path) -> None:
    rows = batch(size=2).payloads
    one = learner(model, recipe("grpo"), learning_rate=1e-3)

    def likelihoods() -> list[float]:
        judge = learner(model, recipe("sft"))
        judge.policy.model.load_state_dict(one.policy.model.state_dict())
        return [-judge.evaluate(Batch([row]))["loss"] for row in rows]

    before = likelihoods()
    one.step(Batch(rows, {"advantages": np.array([1.0, -1.0])}))
    up, down = (after - earlier for after, earlier in zip(likelihoods(), before, strict=True))
    assert up > 0 > down


def test_a_stale_ratio_outside_the_range_gives_no_gradient(model: Path) -> None:
    (row,) = batch(size=1).payloads
    assert row.logprobs is not None
    stale = Payload(row.token_ids, row.action_mask, row.logprobs - 3, row.versions)
    one = learner(model, recipe("grpo"))
    metrics = one.step(Batch([stale], {"advantages": np.array([1.0])}))
    assert metrics["clip_ratio"] == metrics["clip_ratio/high_mean"] == 1.0
    assert metrics["clip_ratio/low_mean"] == 0.0
    assert metrics["ratio_mean"] > 1.2
    assert metrics["grad_norm"] == 0.0
    far = Payload(row.token_ids, row.action_mask, row.logprobs + 3, row.versions)
    metrics = one.step(Batch([far], {"advantages": np.array([-1.0])}))
    assert metrics["clip_ratio"] == metrics["clip_ratio/low_mean"] == 1.0
    assert metrics["clip_ratio/high_mean"] == 0.0


def test_dpo_starts_at_log_two_and_keeps_its_reference(model: Path) -> None:
    one = learner(model, recipe("dpo"), learning_rate=3e-3)
    rows = batch()
    seen = [one.step(rows) for _ in range(5)]
    assert seen[0]["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert seen[0]["rewards/margins"] == pytest.approx(0, abs=1e-6)
    assert seen[-1]["rewards/margins"] > 0.05
    assert seen[-1]["loss"] < seen[0]["loss"]


def test_the_first_token_is_never_trained_since_nothing_predicts_it(model: Path) -> None:
    tokens = np.array([1, 2, 3], np.int32)
    whole, rest = np.ones(3, np.bool_), np.array([False, True, True])
    one = learner(model, recipe("sft"))
    with_first = one.evaluate(Batch([Payload(tokens, whole)]))
    assert with_first == pytest.approx(one.evaluate(Batch([Payload(tokens, rest)])))


def test_entropy_is_that_of_the_predicted_distribution(model: Path) -> None:
    (row,) = batch(size=1).payloads
    with torch.no_grad():
        logits = load_model(model, "cpu")(torch.from_numpy(row.token_ids)[None].long()).logits[0]
    entropies = torch.special.entr(logits.softmax(-1)).sum(-1)[:-1]
    expected = entropies[torch.from_numpy(row.action_mask[1:].copy())].mean().item()
    assert learner(model, recipe("sft")).evaluate(Batch([row]))["entropy"] == pytest.approx(
        expected, abs=1e-5
    )


def test_the_gradient_is_shortened_to_the_configured_norm(model: Path) -> None:
    one = learner(model, recipe("sft"), max_grad_norm=0.01)
    assert one.step(batch())["grad_norm"] > 0.01
    assert gradients(one).norm().item() == pytest.approx(0.01, rel=1e-3)


def test_a_loss_that_is_no_number_names_the_step_and_leaves_the_weights(model: Path) -> None:
    one = learner(model, recipe("grpo"))
    one.step(batch())
    before = torch.cat([parameter.detach().flatten() for parameter in one.policy.model.parameters()])
    rows = batch()
    with pytest.raises(NonFiniteLoss, match="Step 2: the loss is nan"):
        one.step(Batch(rows.payloads, {"advantages": np.full(len(rows.payloads), np.nan)}))
    after = torch.cat([parameter.detach().flatten() for parameter in one.policy.model.parameters()])
    assert torch.equal(before, after)
    assert one.steps_done == 1


def test_evaluating_learns_nothing(model: Path) -> None:
    one = learner(model, recipe("sft"))
    assert one.evaluate(batch()) == one.evaluate(batch())
    assert all(parameter.grad is None for parameter in one.policy.model.parameters())
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
    assert [share_of_the_rate(config, step, 6) for step in range(6)] == pytest.approx(expected)
    assert share_of_the_rate(config, 99, 6) == pytest.approx(1.0 if schedule == "constant" else 0.0, abs=1e-9)


def test_an_abandoned_step_leaves_no_trace(model: Path) -> None:
    answers: list[bool] = []
    config = TrainerConfig(learning_rate=1e-2, micro_batch_size=2)
    one = Learner(
        config, recipe("sft"), model, total_steps=10, device="cpu", should_stop=lambda: bool(answers.pop())
    )
    answers[:] = [True, False]
    with pytest.raises(Abandoned):
        one.step(batch(size=6))
    assert not answers
    assert one.steps_done == 0
    assert all(parameter.grad is None for parameter in one.policy.model.parameters())
    answers[:] = [False, False]
    assert one.step(batch(size=6)) == learner(model, recipe("sft"), micro_batch_size=2).step(batch(size=6))
    # One that has only one micro-batch is finished: it asks no other rank.
    one.step(batch(size=2))
    answers[:] = [True]
    with pytest.raises(Abandoned):
        one.evaluate(batch(size=4))


def test_rows_without_sampled_tokens_are_refused_before_anything_is_computed(model: Path) -> None:
    rng = np.random.default_rng(0)
    rows = Batch([payload(rng, sampled=False) for _ in range(2)], {"advantages": np.ones(2)})
    one = learner(model, recipe("grpo"))
    with pytest.raises(ConfigError, match=r"no behaviour \(.*\), which policy loss 'ppo_clip' needs"):
        one.step(rows)
    assert one.steps_done == 0
    assert learner(model, recipe("reinforce")).step(rows)["grad_norm"] > 0


def test_rows_without_rewards_are_refused_where_the_divergence_is_taken_off_them(model: Path) -> None:
    rows = Batch(batch().payloads, {"advantages": np.ones(6)})
    with pytest.raises(ConfigError, match=r"The rows have no rewards \(.*\), which kl 'k1' needs"):
        learner(model, recipe("rloo", kl="k1")).step(rows)


def test_a_row_at_half_its_weight_counts_half(model: Path) -> None:
    (row,) = batch(size=1).payloads
    losses = []
    for weight in (1.0, 0.5):
        columns = {"advantages": np.array([1.0]), "weight": np.array([weight])}
        losses.append(learner(model, recipe("grpo", kl="k3")).evaluate(Batch([row], columns))["loss"])
    assert losses[1] == pytest.approx(losses[0] / 2)


def test_raft_learns_from_the_good_rows_alone(model: Path) -> None:
    rows = batch()
    good = np.array([1.0, 0.0, 0.0, 1.0, 0.0, 0.0])
    payloads = [row for row, is_good in zip(rows.payloads, good, strict=True) if is_good]
    raft, sft = (recipe(name, aggregation="seq_mean_token_mean") for name in ("raft", "sft"))
    seen = learner(model, raft).step(Batch(rows.payloads, {"advantages": good}))
    expected = learner(model, sft).step(Batch(payloads))
    expected["num_tokens"] = sum(row.num_tokens for row in rows.payloads)  # what was read, trained or not
    assert seen == pytest.approx(expected, abs=1e-6)


def test_a_batch_without_a_good_row_is_a_step_that_changes_nothing(model: Path) -> None:
    one = learner(model, recipe("raft"))
    before = [parameter.detach().clone() for parameter in one.policy.model.parameters()]
    metrics = one.step(Batch(batch().payloads, {"advantages": np.zeros(6)}))
    assert (metrics["loss"], metrics["grad_norm"], one.steps_done) == (0.0, 0.0, 1)
    assert all(map(torch.equal, before, one.policy.model.parameters()))


def test_an_adaptive_coefficient_follows_the_divergence_and_goes_on_from_a_checkpoint(
    model: Path, moved: Path
) -> None:
    kl = {"name": "k3", "coefficient": 0.1, "target": 1e-6, "horizon": 60}
    one = learner(model, recipe("grpo", kl=kl), moved)
    used = [one.step(batch())["kl_coefficient"] for _ in range(2)]
    assert used == pytest.approx([0.1, 0.1 * (1 + 0.2 * 6 / 60)])
    another = learner(model, recipe("grpo", kl=kl), moved)
    another.load_state_dict(one.state_dict())
    assert another.step(batch())["kl_coefficient"] == pytest.approx(used[1] * (1 + 0.2 * 6 / 60))


def test_the_policy_has_not_moved_from_the_one_at_the_start_of_the_step(model: Path) -> None:
    one = learner(model, recipe("grpo", correction="truncated_importance_sampling", high=1.5))
    metrics = one.evaluate(batch())
    assert metrics["approx_kl"] == metrics["clip_ratio"] == 0.0
    assert metrics["sampling/importance_sampling_ratio/max"] == 1.5
    assert 0 < metrics["sampling/importance_sampling_ratio/min"] < 1


def test_an_entropy_bonus_raises_the_entropy(model: Path) -> None:
    rows = Batch(batch().payloads, {"advantages": np.zeros(6)})
    one = learner(model, recipe("grpo", entropy_coefficient=1.0))
    first, last = one.step(rows)["entropy"], one.step(rows)["entropy"]
    assert last > first


def test_small_differences_of_large_rewards_are_learned_from(model: Path, moved: Path) -> None:
    rows = batch()
    small = np.array([0.0, 0.01, 0.02, 0.03, 0.0, 0.03])
    for name, changes in (
        ("rloo", {"kl": {"name": "k1", "coefficient": 0}}),  # makes the step compute advantages again
        ("reinforce_plus_plus", {"coefficient": 0}),
        ("ppo", {}),
    ):
        ends = []
        for offset in (0.0, 1e6):
            one = learner(moved, recipe(name, **changes))
            columns = {**rows.columns, "rewards": offset + small}
            columns["advantages"] = one.algorithm.advantages(columns)
            metrics = one.step(Batch(rows.payloads, columns))
            ends.append((metrics["policy_loss"], metrics["grad_norm"] if name != "ppo" else 1.0))
        assert ends[1] == pytest.approx(ends[0], rel=1e-5), name
        assert abs(ends[0][0]) > 1e-4, name


@pytest.mark.parametrize("name", ["simpo", "orpo", "cpo", "cpo_ipo", "ipo", "sigmoid_norm", "sigmoid"])
def test_a_pair_with_an_empty_side_is_left_out(model: Path, name: str) -> None:
    loss = {"loss": name} if name in ("cpo_ipo", "ipo", "sigmoid_norm", "sigmoid") else {}
    algorithm = recipe("dpo" if loss else name, **loss)
    payloads = list(batch().payloads)
    empty = Payload(payloads[3].token_ids, np.arange(payloads[3].num_tokens) == 0)  # nothing predicts it
    whole, holed = (learner(model, algorithm) for _ in range(2))
    expected = whole.step(Batch([*payloads[:2], *payloads[4:]]))
    seen = holed.step(Batch([*payloads[:3], empty, *payloads[4:]]))
    assert {**seen, "num_tokens": 0} == pytest.approx({**expected, "num_tokens": 0}, rel=1e-5)
    torch.testing.assert_close(gradients(holed), gradients(whole))
    assert holed.evaluate(Batch([payloads[2], empty])) == {"loss": 0.0}


def test_tokens_are_counted_over_all_steps(model: Path) -> None:
    one, rows = learner(model, recipe("sft")), batch()
    num_tokens = sum(row.num_tokens for row in rows.payloads)
    assert [one.step(rows)["num_tokens"] for _ in range(2)] == [num_tokens, 2 * num_tokens]
    later = learner(model, recipe("sft"))
    later.load_state_dict(one.state_dict())
    assert later.step(rows)["num_tokens"] == 3 * num_tokens


def test_orpo_tells_the_log_odds_of_its_pairs(model: Path) -> None:
    metrics = learner(model, recipe("orpo", beta=0.5)).step(batch())
    assert metrics["loss"] == pytest.approx(metrics["nll_loss"] - 0.5 * metrics["log_odds_ratio"], abs=1e-6)
    assert metrics["log_odds_ratio"] < 0


def test_a_learner_that_goes_on_takes_the_rate_and_decay_of_its_settings_and_not_of_its_checkpoint(
    model: Path,
) -> None:
    one, rows = learner(model, recipe("sft")), batch()
    one.step(rows)
    state, ends = deepcopy(one.state_dict()), []
    for decay, rate in ((0.0, 1e-2), (0.5, 1e-2), (0.0, 2e-2)):
        later = learner(model, recipe("sft"), weight_decay=decay, learning_rate=rate)
        later.policy.model.load_state_dict(one.policy.model.state_dict())
        later.load_state_dict(deepcopy(state))
        assert later.step(rows)["learning_rate"] == rate
        ends.append(parameters_to_vector(later.policy.model.parameters()).detach())
    begin = parameters_to_vector(one.policy.model.parameters()).detach()
    # AdamW: a rate times a direction that follows from gradients, and a rate times the decay of matrices.
    matrices = parameters_to_vector(
        [parameter.detach() * (parameter.ndim > 1) for parameter in one.policy.model.parameters()]
    )
    torch.testing.assert_close(ends[1] - ends[0], -1e-2 * 0.5 * matrices, atol=1e-6, rtol=1e-3)
    torch.testing.assert_close(ends[2] - begin, 2 * (ends[0] - begin), atol=1e-6, rtol=1e-3)
