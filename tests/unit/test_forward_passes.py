"""How often a step asks its models: no more often than its recipe needs, and with the same result."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.recipes import recipe
from trinity_db.arrays.codec import Payload
from trinity_db.config.shared import ScratchConfig
from trinity_db.models import build_scratch
from trinity_db.models.lazy_weights import UnreadModel
from trinity_db.models.loading import load_model
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner

TIS = {"correction": "truncated_importance_sampling"}
ROWS = 6

# What each step asks: the policy with gradient, the policy without, the reference; in passes over the batch.
EXPECTED: dict[str, tuple[Any, tuple[int, int, int]]] = {
    "grpo": (recipe("grpo"), (1, 0, 0)),
    "grpo, kl": (recipe("grpo", kl="k3"), (1, 0, 1)),
    "grpo, tis": (recipe("grpo", **TIS), (1, 0, 0)),
    "grpo, tis by sequence": (recipe("grpo", **TIS, level="sequence"), (1, 0, 0)),
    "gspo, interpolated": (recipe("gspo", **TIS, proximal="interpolated"), (1, 0, 0)),
    "grpo, icepop, kl": (recipe("grpo", correction="masked_importance_sampling", kl="k3"), (1, 0, 1)),
    "grpo, opsm": (recipe("grpo", correction="off_policy_sequence_masking"), (1, 0, 0)),
    "grpo, m2po": (recipe("grpo", correction="m2po"), (1, 1, 0)),
    "rloo, kl in the reward": (recipe("rloo", kl="k1"), (1, 0, 1)),
    "rloo, kl in the reward, tis": (recipe("rloo", kl="k1", **TIS), (1, 1, 1)),
    "rloo, kl in the reward, opsm": (
        recipe("rloo", kl="k1", correction="off_policy_sequence_masking"),
        (1, 0, 1),
    ),
    "ppo": (recipe("ppo"), (1, 1, 0)),
    "ppo, tis": (recipe("ppo", **TIS), (1, 1, 0)),
    "ppo, tis, kl in the reward": (recipe("ppo", **TIS, kl="k1"), (1, 1, 1)),
    "distillation, tis": (recipe("on_policy_distillation", **TIS), (1, 0, 0)),
    "distillation, tis, whitened": (recipe("on_policy_distillation", **TIS, whiten=True), (1, 1, 0)),
    "mix, tis": (recipe("mix", **TIS), (1, 0, 0)),
    "sft": (recipe("sft"), (1, 0, 0)),
    "dpo": (recipe("dpo"), (1, 0, 1)),
    "simpo": (recipe("simpo"), (1, 0, 0)),
    "kto": (recipe("kto"), (1, 1, 2)),  # mismatched rows are other sequences
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    build_scratch(ScratchConfig(alphabet="0123456789", hidden_size=16, heads=2, context=32), 3, folder)
    return folder


def batch(*, has_experts: bool) -> Batch:
    rng = np.random.default_rng(0)
    payloads, lengths = [], rng.integers(2, 9, ROWS)
    for length in lengths:
        mask = np.arange(length + 3) >= 3
        logprobs = rng.normal(-2.3, 0.4, length).astype(np.float32)
        tokens = rng.integers(0, 10, length + 3).astype(np.int32)
        payloads.append(Payload(tokens, mask, logprobs, np.zeros(length, np.int32)))
    columns: dict[str, Any] = {
        "advantages": rng.normal(size=ROWS),
        "rewards": rng.normal(size=ROWS),
        "groups": np.arange(ROWS) // 2,
        "staleness": np.arange(ROWS) % 3,
    }
    if has_experts:
        columns["is_expert"] = np.arange(ROWS) >= 4
    teacher = [rng.normal(-2.0, 0.3, length).astype(np.float32) for length in lengths]
    return Batch(payloads, columns, {"teacher": teacher})


def learner(model: Path, algorithm: Any) -> Learner:
    config = TrainerConfig(learning_rate=1e-2, micro_batch_size=4)
    return Learner(config, algorithm, model, total_steps=10, device="cpu")


def passes(one: Learner, rows: Batch) -> tuple[int, int, int]:
    """Take a step; the rows that each model was asked for, in passes over the batch."""
    asked: Counter[str] = Counter()

    def count(name: str) -> Any:
        def hook(module: Any, arguments: Any, options: Any) -> None:
            # Sequences lie end to end: each begins at position 0.
            sequences = int((options["position_ids"] == 0).sum())
            asked[name if torch.is_grad_enabled() else f"{name} without gradient"] += sequences

        return hook

    models = {"policy": one.policy.model}
    if one.policy._reference:
        models["reference"] = one.policy._reference._model
    for name, module in models.items():
        module.get_decoder().register_forward_pre_hook(count(name), with_kwargs=True)
    one.step(rows)
    names = ("policy", "policy without gradient", "reference without gradient")
    assert set(asked) <= set(names)
    assert not any(asked[name] % ROWS for name in names)
    return asked[names[0]] // ROWS, asked[names[1]] // ROWS, asked[names[2]] // ROWS


@pytest.mark.parametrize("name", EXPECTED)
def test_a_step_asks_its_models_no_more_often_than_its_recipe_needs(model: Path, name: str) -> None:
    algorithm, expected = EXPECTED[name]
    one = learner(model, algorithm)
    assert passes(one, batch(has_experts="is_expert" in one.algorithm.needs)) == expected


WITHOUT_A_PASS = [
    name
    for name, (algorithm, (_, without, _)) in EXPECTED.items()
    if getattr(algorithm, "correction", None) is not None and not (without and "ppo" not in name)
]
"""Those that save a pass. Others compare rows by the policy at the start of the step, and are left out."""


@pytest.mark.parametrize("name", WITHOUT_A_PASS)
def test_the_start_of_a_step_is_the_same_from_the_pass_with_gradient(
    model: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm, _ = EXPECTED[name]
    ends = []
    for has_own_pass in (False, True):
        one = learner(model, algorithm)
        if has_own_pass:
            monkeypatch.setattr(type(one.algorithm), "compares_start", True)
        metrics = [one.step(batch(has_experts="is_expert" in one.algorithm.needs)) for _ in range(2)]
        weights = torch.cat([parameter.detach().flatten() for parameter in one.policy.parameters()])
        ends.append((metrics, weights))
    # Sums over rows of another width are summed in another order; advantages are added up in float32.
    if "by sequence" in name or "distillation" in name:
        assert ends[0][0] == [pytest.approx(metrics, abs=1e-6) for metrics in ends[1][0]]
        torch.testing.assert_close(ends[0][1], ends[1][1], atol=1e-5, rtol=1e-4)
        return
    assert ends[0][0] == ends[1][0]
    assert torch.equal(ends[0][1], ends[1][1])


@pytest.mark.parametrize("load", [load_model, UnreadModel])
def test_a_loaded_model_does_not_attend_with_cudnn(model: Path, load: Callable[[Path], object]) -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    load(model)
    assert not torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
