"""Losses stay on the device of their rows, which needs no GPU to test."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.others.gpu import fake_cuda
from tests.others.gpu.models import rows
from tests.support.recipes import WITH_A_LOSS, recipe
from trinity_db.trainer.learner import gathered_columns


@pytest.mark.parametrize("name", WITH_A_LOSS)
def test_a_loss_stays_on_the_device_of_its_rows(name: str) -> None:
    devices = {what: share.device.type for what, share in fake_cuda.shares(recipe(name)).items()}
    assert set(devices.values()) == {fake_cuda.DEVICE}, devices


def test_mismatched_responses_are_scored_on_the_device_of_the_policy() -> None:
    payloads = rows((8, 9, 7))

    def score(given: list[Any]) -> torch.Tensor:
        width = max(row.num_predicted for row in given)
        return torch.ones(len(given), width, device=fake_cuda.DEVICE)

    policy: Any = SimpleNamespace(
        device=fake_cuda.DEVICE,
        max_length=100,
        logprobs=score,
        reference_logprobs=score,
        ranks=SimpleNamespace(sum=lambda one: one),
    )

    def micro_batches(given: Any) -> Iterator[Any]:
        yield list(range(len(given))), True, None

    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        ratios = gathered_columns._mismatched_ratios(payloads, policy, micro_batches)
    assert (ratios.device.type, ratios.shape) == (fake_cuda.DEVICE, (3,))
