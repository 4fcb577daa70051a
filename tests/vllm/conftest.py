"""The interpreter that has vLLM, which `make test-vllm` installs, and small checkpoints with canaries."""

from pathlib import Path

import pytest

from trinity_db.config import ScratchConfig
from trinity_db.models import build_scratch
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.learner.policy import Policy

PYTHON = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"
# vLLM's CPU kernels take heads of 32 and more.
MODEL = ScratchConfig(hidden_size=64, layers=2, heads=2, context=512)


@pytest.fixture(scope="session")
def python() -> Path:
    assert PYTHON.is_file(), "run these tests by: make test-vllm"
    return PYTHON


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders of models with the same shapes and other weights."""
    folders = [tmp_path_factory.mktemp("checkpoints") / str(seed) for seed in range(4)]
    for seed, folder in enumerate(folders):
        build_scratch(MODEL, seed, folder)
        canary = Policy(folder, TrainerConfig(), device="cpu").canary()
        assert canary is not None
        canary.save(folder)
    return folders
