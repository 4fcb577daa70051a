"""Two ranks, one on each GPU, make the step that one makes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.others.gpu import models, two_ranks
from trinity_db.trainer.distribution.ranks import ALONE

RANKS = 2


def test_two_ranks_make_the_step_that_one_makes(device: str, tmp_path: Path) -> None:
    if device == "cuda" and torch.cuda.device_count() < RANKS:
        pytest.skip(f"{torch.cuda.device_count()} GPU, and two ranks need {RANKS}")
    folder, result = models.build("qwen2", tmp_path / "model"), tmp_path / "found.pt"
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    ended = subprocess.run(
        [*torchrun, "-m", two_ranks.__name__, str(folder), str(result)],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | hidden,
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    expected = two_ranks.step(folder, "none", ALONE, device)
    found = torch.load(result, weights_only=False)
    for sharding in two_ranks.SHARDINGS:
        assert found[sharding]["metrics"] == pytest.approx(expected["metrics"], abs=1e-5, rel=1e-3)
        pairs = zip(found[sharding]["gradients"], expected["gradients"], strict=True)
        for mine, theirs in pairs:
            torch.testing.assert_close(mine.cpu(), theirs.cpu(), atol=1e-5, rtol=1e-3)
