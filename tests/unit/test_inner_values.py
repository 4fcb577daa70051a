"""What a backward pass needs, and the micro-batches that fit into free memory."""

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tests.support.recipes import recipe
from trinity_db.arrays.codec import Payload
from trinity_db.config.shared import ScratchConfig
from trinity_db.models import build_scratch, inner_values
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner

LENGTHS = (24, 20, 12, 12, 8, 4)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    scratch = ScratchConfig(alphabet="0123456789", hidden_size=16, heads=2, context=32)
    build_scratch(scratch, 0, tmp_path)
    return tmp_path


def batch() -> Batch:
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 10, length).astype(np.int32) for length in LENGTHS]
    return Batch([Payload(row, np.arange(len(row)) > 1) for row in rows])


def learner(model: Path, **settings: object) -> Learner:
    config = TrainerConfig.model_validate({"max_grad_norm": 1e9, **settings})
    return Learner(config, recipe("sft"), model, total_steps=1, device="cpu")


def sizes(one: Learner) -> list[int]:
    """The tokens of each micro-batch."""
    payloads = batch().payloads
    return [
        sum(payloads[place].num_tokens for place in places)
        for places in one.policy.forward.micro_batches(payloads)
    ]


def with_free(monkeypatch: pytest.MonkeyPatch, one: Learner, tokens: int) -> None:
    """Let the memory be free that so many tokens of this learner need, beside gradients and optimizer."""
    token_bytes = one.policy._token_bytes()
    assert token_bytes is not None
    weights = 12 * sum(parameter.numel() for parameter in one.policy.parameters())
    free = weights + 1 + int(tokens * token_bytes / inner_values.SHARE)
    monkeypatch.setattr(inner_values, "free_bytes", lambda device: free)


def gradient(one: Learner) -> torch.Tensor:
    one.step(batch())
    return torch.cat([one.grad.flatten() for one in one.policy.parameters() if one.grad is not None])


def test_kept_bytes_are_those_of_inner_values_once_and_not_of_weights() -> None:
    weights = torch.nn.Parameter(torch.ones(3, 5))
    rows = torch.ones(7, 3)

    def compute() -> torch.Tensor:
        inner = (rows @ weights).exp()  # kept by exp, and by both of the product
        return inner * inner

    assert inner_values.kept_bytes(compute, [weights]) == 4 * (7 * 3 + 7 * 5)


def test_micro_batches_fit_into_free_memory_and_change_no_result(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(inner_values, "free_bytes", lambda device: None)
    ample = learner(model)
    assert sizes(ample) == [sum(LENGTHS)]
    with_free(monkeypatch, ample, 40)
    with caplog.at_level(logging.INFO):
        little = learner(model)
    assert "micro-batches of at most 40 tokens" in caplog.text
    assert sizes(little) == [24, 32, 24]
    assert sizes(learner(model, micro_batch_tokens=1000)) == [sum(LENGTHS)]
    torch.testing.assert_close(gradient(little), gradient(ample), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("setting", "expected"), [("auto", {24, 20}), (True, set(LENGTHS)), (False, set())])
def test_layers_compute_only_rows_again_that_do_not_fit(
    model: Path, monkeypatch: pytest.MonkeyPatch, setting: object, expected: set[int]
) -> None:
    recomputed: set[int] = set()

    def counted(forward: Any, hidden: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
        recomputed.add(hidden.shape[1])
        return checkpoint(forward, hidden, *arguments, **keywords)

    monkeypatch.setattr("trinity_db.models.layers.checkpoint", counted)
    monkeypatch.setattr(inner_values, "free_bytes", lambda device: None)
    ample = learner(model, gradient_checkpointing=False)
    expected_gradient = gradient(ample)
    with_free(monkeypatch, learner(model), 14)
    one = learner(model, gradient_checkpointing=setting, micro_batch_size=1)
    torch.testing.assert_close(gradient(one), expected_gradient, atol=1e-6, rtol=1e-5)
    assert recomputed == expected


def test_rows_go_alone_where_gradients_leave_no_memory() -> None:
    assert inner_values.limits(512, 10, 100, 1.0) == (1, 1)
    assert inner_values.limits(512, None, 100, 1.0) == (512, sys.maxsize)


def test_free_memory_is_within_the_limit_of_a_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 900 kB\nMemAvailable:  500 kB\n")
    (tmp_path / "memory.current").write_text("300000\n")
    (tmp_path / "memory.stat").write_text("anon 200000\ninactive_file 50000\n")
    monkeypatch.setattr(inner_values, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(inner_values, "CGROUP", tmp_path)
    cpu = torch.device("cpu")
    assert inner_values.free_bytes(cpu) == 512_000
    (tmp_path / "memory.max").write_text("400000\n")
    assert inner_values.free_bytes(cpu) == 150_000
    (tmp_path / "memory.max").write_text("max\n")
    assert inner_values.free_bytes(cpu) == 512_000
