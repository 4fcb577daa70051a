"""Prefixes that sequences share are computed once: fewer tokens, and the same results and gradients."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.recipes import recipe
from tests.unit.test_forward import EXPERTS, SIZES, TEMPERATURE, of, plainly, tempered
from trinity_db.arrays.codec import Payload
from trinity_db.config.shared import ScratchConfig
from trinity_db.models import build_scratch
from trinity_db.models.forward import Forward
from trinity_db.models.layers import recompute
from trinity_db.models.prefixes import Prefixes
from trinity_db.models.router import balance
from trinity_db.models.routing import routers_of
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner
from trinity_db.trainer.learner.value_head import ValueHead

PROMPT = 20


def row(tokens: Any, trained: Any) -> Payload:
    mask = np.zeros(len(tokens), np.bool_)
    mask[trained] = True
    return Payload(np.array(tokens, np.int32), mask)


def group(seed: int = 0) -> list[Payload]:
    """Members of a group, of which two are equal; a longer conversation that continues one; another row."""
    rng = np.random.default_rng(seed)
    prompt = rng.integers(0, 61, PROMPT).tolist()
    answers = [rng.integers(0, 61, length).tolist() for length in (3, 9, 5, 33)]
    rows = [row(prompt + answer, slice(PROMPT, None)) for answer in [*answers, answers[0]]]
    longer = prompt + answers[3] + rng.integers(0, 61, 7).tolist()
    return [*rows, row(longer, slice(-4, None)), row(rng.integers(0, 61, 30).tolist(), slice(1, 30, 2))]


def gemma3() -> Any:
    torch.manual_seed(0)
    sizes = SIZES | {
        "head_dim": 8,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    }
    return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**sizes)).double().eval()


MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: of("Llama"),
    "qwen3": lambda: of("Qwen3", head_dim=8),
    "gemma 3, windows of 8": gemma3,
    "a mixture of experts": lambda: of("Mixtral", sliding_window=6, **EXPERTS),
    "scaled logits": lambda: of("Granite", logits_scaling=3.0),
}


def gradients(model: Any, total: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    torch.autograd.backward(total)
    return torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])


@pytest.mark.parametrize("name", MODELS)
def test_results_and_gradients_are_those_of_each_sequence_alone(name: str) -> None:
    model, rows = MODELS[name](), tempered(group())
    logprobs, entropy, _ = plainly(model, rows)
    weights = torch.linspace(-1, 2, len(logprobs), dtype=torch.float64)
    expected = gradients(model, weights @ logprobs + weights.flip(0) @ entropy)
    forward = Forward(model, TrainerConfig(), temperature=TEMPERATURE)
    for recomputes in (False, True):
        if recomputes:
            recompute(model)
        scored = forward(rows, entropy_gradient=True)
        found = scored.logprobs[scored.mask], scored.entropy[scored.mask]
        torch.testing.assert_close(found, (logprobs, entropy), rtol=1e-6, atol=1e-6)
        by_shared = gradients(model, weights @ found[0] + weights.flip(0) @ found[1])
        # Models compute some of their parts in float32, whatever their weights are, and round there.
        torch.testing.assert_close(by_shared, expected, rtol=0, atol=1e-6 * float(expected.abs().max()))
    torch.testing.assert_close(forward.logprobs(rows), scored.logprobs.detach())


@pytest.mark.parametrize(("dtype", "limit"), [("bfloat16", 0.05), ("float16", 0.006)])
def test_16_bits_are_near(dtype: str, limit: float) -> None:
    model, rows = of("Qwen3", head_dim=8, initializer_range=0.05).float(), group()
    scored = Forward(model, TrainerConfig.model_validate({"dtype": dtype}), temperature=TEMPERATURE)(rows)
    torch.testing.assert_close(scored.logprobs[scored.mask], plainly(model, rows)[0], atol=limit, rtol=0)


@pytest.mark.parametrize(
    ("name", "options", "settings"),
    [
        ("grpo", {"kl": "k3"}, {}),
        ("dpo", {}, {"lora": {"rank": 4}, "gradient_checkpointing": True}),
        ("ppo", {"kl": "k1"}, {}),
    ],
)
def test_a_step_is_that_of_whole_rows(
    name: str, options: dict[str, Any], settings: dict[str, Any], tmp_path: Path
) -> None:
    scratch = ScratchConfig(alphabet="0123456789", hidden_size=16, heads=2, context=64)
    build_scratch(scratch, 3, tmp_path)
    rng = np.random.default_rng(0)
    rows = []
    for payload in group()[:4]:
        tokens, length = payload.token_ids % 10, payload.num_trained
        logprobs = rng.normal(-2.3, 0.1, length).astype(np.float32)
        rows.append(Payload(tokens, payload.action_mask, logprobs, np.zeros(length, np.int32)))
    columns = {
        "advantages": rng.normal(size=4), "rewards": rng.normal(size=4), "groups": np.zeros(4, np.int64),
        "staleness": np.zeros(4, np.int64),
    }  # fmt: skip
    steps = []
    for shares in (True, False):
        config = TrainerConfig.model_validate({"learning_rate": 1e-3, **settings})
        torch.manual_seed(0)  # of the adapter
        one = Learner(config, recipe(name, **options), tmp_path, total_steps=10, device="cpu")
        for model in (one.policy, one.policy._reference):
            if model is not None and not shares:
                model.forward._shares = False
        metrics = [one.step(Batch(rows, columns)) for _ in range(2)]
        steps.append(metrics)
    assert steps[0] == [pytest.approx(metrics, abs=1e-5, rel=1e-4) for metrics in steps[1]]


def test_the_model_computes_a_shared_token_once() -> None:
    model, seen = of("Llama"), []
    model.model.layers[0].register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0].shape[1]))
    forward = Forward(model, TrainerConfig(), value_head=ValueHead(32).double())
    seen.clear()
    rows = group()
    forward(rows)
    forward.values(rows)
    assert seen == [PROMPT + 3 + 9 + 5 + 33 + 3 + 7 + 30] * 2
    assert sum(payload.num_tokens for payload in rows) == 243


def test_a_model_without_packed_rows_computes_each_row_whole() -> None:
    rows = group()
    forward = Forward(of("Bloom", n_layer=2, n_head=4), TrainerConfig(micro_batch_tokens=106))
    assert forward.micro_batches(rows[:4]) == [[3, 1], [2, 0]]


def test_the_load_of_experts_counts_a_shared_token_for_each_row() -> None:
    model, rows = of("Mixtral", sliding_window=6, **EXPERTS), group()
    forward = Forward(model, TrainerConfig())
    together = forward(rows, routed=2).load
    alone = torch.stack([forward.load([one], 2) for one in rows]).sum(0)
    assert together is not None
    torch.testing.assert_close(together.detach(), alone)
    assert int(together[0].sum()) == 2 * 2 * sum(one.num_tokens for one in rows)
    assert balance(together[0].detach(), together[1], 2).requires_grad


def test_tokens_with_other_recorded_experts_are_not_shared() -> None:
    model, seen = of("Mixtral", **EXPERTS), []
    rng = np.random.default_rng(2)
    prompt = rng.integers(0, 61, 40)
    common = rng.integers(0, 2, (40, 2, 1))
    rows = []
    for number in range(3):
        routing = np.concatenate([common, rng.integers(0, 2, (4, 2, 1))])
        if number == 2:
            routing[0] = 1 - routing[0]
        tokens = np.concatenate([prompt, rng.integers(0, 61, 5)]).astype(np.int32)
        nothing = np.zeros(5, np.float32)
        routing = np.concatenate([routing, routing + 2], axis=-1).astype(np.uint8)
        rows.append(Payload(tokens, np.arange(45) >= 40, nothing, nothing.astype(np.int32), routing=routing))
    forward = Forward(model, TrainerConfig())
    forward.routers = routers_of(model)
    alone = [forward([one]) for one in rows]
    model.model.layers[0].register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0].shape[1]))
    together = forward(rows)
    assert seen == [40 + 5 + 5 + 40 + 5]
    torch.testing.assert_close(together.logprobs, torch.cat([one.logprobs for one in alone]))
    assert together.differing is not None
    assert (
        int(together.differing) == sum(int(one.differing) for one in alone if one.differing is not None) > 0
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40)), min_size=1, max_size=4),
        min_size=1,
        max_size=9,
    )
)
def test_each_row_of_a_tree_has_its_own_tokens(drawn: list[list[tuple[int, int]]]) -> None:
    """Rows are made of runs of equal tokens, so that many share a prefix."""
    rows = [row([token for token, times in parts for _ in range(times)], slice(-1, None)) for parts in drawn]
    tree = Prefixes(rows).tree(range(len(rows)))
    segments = tree.segments
    tokens, positions = np.full(tree.num_tokens, -1), segments.positions()
    for one, path in zip(rows, tree.paths, strict=True):
        indices = segments.indices(path)
        np.testing.assert_array_equal(positions[indices], np.arange(one.num_tokens))
        assert set(tokens[indices][tokens[indices] != one.token_ids]) <= {-1}
        tokens[indices] = one.token_ids
    assert (tokens >= 0).all()
    assert segments.parents == sorted(segments.parents)
    distinct = {tuple(one.token_ids[: end + 1]) for one in rows for end in range(one.num_tokens)}
    assert len(distinct) <= tree.num_tokens <= sum(one.num_tokens for one in rows)
    assert sorted(Prefixes(rows).ordered()) == list(range(len(rows)))


def two_groups() -> list[Payload]:
    """Groups of four, with 70 tokens each if the prompt counts once."""
    return [*group(0)[:4], *group(1)[:4]]


@pytest.mark.parametrize(
    ("tokens", "width", "expected"),
    [
        (140, 1, [[3, 1, 2, 0, 7, 5, 6, 4]]),
        (139, 1, [[3, 1, 2, 0, 7, 5, 6], [4]]),
        (70, 1, [[3, 1, 2, 0], [7, 5, 6, 4]]),
        (69, 1, [[3, 1, 2], [0], [7, 5, 6], [4]]),
        (1, 1, [[3], [1], [2], [0], [7], [5], [6], [4]]),
        (70, 2, [[2, 3, 0, 1], [6, 7, 4, 5]]),
        (69, 2, [[2, 3], [0, 1], [6, 7], [4, 5]]),
    ],
)
def test_micro_batches_count_a_shared_token_once(tokens: int, width: int, expected: list[list[int]]) -> None:
    forward = Forward(of("Llama"), TrainerConfig(micro_batch_tokens=tokens))
    assert forward.micro_batches(two_groups(), width) == expected


def test_on_a_cpu_a_micro_batch_grows_while_a_new_one_would_compute_a_long_prefix_again() -> None:
    forward = Forward(of("Llama"), TrainerConfig())
    for prompt, expected in ((12, [2, 2, 2, 2]), (100, [7, 1]), (200, [8])):
        rng = np.random.default_rng(prompt)
        shared = rng.integers(0, 61, prompt).tolist()
        rows = [row([*shared, *rng.integers(0, 61, 100)], slice(prompt, None)) for _ in range(8)]
        assert [len(batch) for batch in forward.micro_batches(rows)] == expected
    alone = [row(rng.integers(0, 61, 100), slice(1, None)) for _ in range(4)]
    assert [len(batch) for batch in forward.micro_batches(alone)] == [2, 2]


def test_ranks_get_whole_groups_if_there_are_enough() -> None:
    forward = Forward(of("Llama"), TrainerConfig())
    assert forward.related(two_groups(), 1, 2) == ([[3, 1, 2, 0], [7, 5, 6, 4]], [70, 70])
    assert forward.related(two_groups()[:4], 1, 2) == ([[3], [1, 2], [0]], [53, 34, 23])
