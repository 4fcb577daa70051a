"""Steps with compiled layers: those of plain ones, and nothing is compiled anew for rows of other lengths."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

from tests.support.recipes import recipe
from trinity_db.arrays.codec import Payload
from trinity_db.config.shared import ScratchConfig
from trinity_db.models import build_scratch
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner

pytestmark = pytest.mark.slow

LENGTHS = [(20, 13), (40, 9, 22), (31,)]


def batches() -> list[Batch]:
    rng = np.random.default_rng(0)
    return [
        Batch([Payload(rng.integers(0, 10, n).astype(np.int32), np.arange(n) > 1) for n in lengths])
        for lengths in LENGTHS
    ]


def learner(folder: Path, **settings: bool) -> Learner:
    config = TrainerConfig.model_validate({"learning_rate": 1e-3} | settings)
    return Learner(config, recipe("sft"), folder, total_steps=10, device="cpu")


@pytest.mark.filterwarnings("default")  # torch.compile warns, and hides that by a hook of its own
def test_compiled_layers_make_the_same_steps_for_rows_of_any_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All but the last stage, which writes C++ and takes most of a minute.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    build_scratch(
        ScratchConfig(alphabet="0123456789", hidden_size=16, heads=2, layers=2, context=64), 0, tmp_path
    )
    plain = learner(tmp_path)
    compiled = learner(tmp_path, compile=True, gradient_checkpointing=True)
    graphs = []
    for batch in batches():
        assert compiled.step(batch) == pytest.approx(plain.step(batch), rel=1e-5, abs=1e-6)
        for mine, theirs in zip(compiled.policy.parameters(), plain.policy.parameters(), strict=True):
            assert mine.grad is not None
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6)
        graphs.append(counters["stats"]["unique_graphs"])
    assert 0 < graphs[0] == graphs[-1]
