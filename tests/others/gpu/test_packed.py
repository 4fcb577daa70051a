"""Packed log-probabilities and gradients against float32 plain transformers on the CPU, one row at a time."""

from pathlib import Path

import pytest
import torch

from tests.others.gpu import models
from trinity_db.models import load_model
from trinity_db.models.forward import Forward
from trinity_db.trainer.config import TrainerConfig

NEAR = {
    # Largest difference of a log-probability in nats, and of the gradient relative to its length.
    "float32": (1e-3, 1e-3),
    # Eight bits of a number: 0.4 % at each operation.
    "bfloat16": (0.25, 0.1),
}


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("kind", models.KINDS)
def test_packed_rows_are_those_of_plain_transformers(
    kind: str, dtype: str, device: str, tmp_path: Path
) -> None:
    folder = models.build(kind, tmp_path)
    plain, payloads = load_model(folder, "cpu"), models.rows()
    expected = models.plainly(plain, payloads)
    expected_gradient = models.gradient(plain, expected)
    model = load_model(folder, device)
    scored = Forward(model, TrainerConfig.model_validate({"dtype": dtype}))(payloads)
    found = scored.logprobs[scored.mask]
    logprob, relative = NEAR[dtype]
    torch.testing.assert_close(found.detach().float().cpu(), expected.detach(), atol=logprob, rtol=0)
    difference = models.gradient(model, found) - expected_gradient
    assert float(difference.norm() / expected_gradient.norm()) < relative
