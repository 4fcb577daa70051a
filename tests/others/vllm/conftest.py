"""The interpreter that has vLLM, which `make test-vllm` installs, and small checkpoints."""

from pathlib import Path

import numpy as np
import pytest

from tests.others.vllm.checkpoints import MODEL, PYTHON, build
from tests.support.recipes import recipe
from tests.support.saving import save
from trinity_db.arrays.codec import Payload
from trinity_db.models import load_tokenizer
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner


@pytest.fixture(scope="session")
def python() -> Path:
    assert PYTHON.is_file(), "run these tests by: make test-vllm"
    return PYTHON


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build(MODEL, tmp_path_factory.mktemp("checkpoints"), 4)


@pytest.fixture(scope="module")
def adapters(checkpoints: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders of adapters that a learner has trained on the first checkpoint."""
    folders = [tmp_path_factory.mktemp("adapters") / f"version-00000{version}" for version in (1, 2, 3)]
    settings = {"lora": {"rank": 4}, "publish": "adapter", "learning_rate": 0.02}
    config = TrainerConfig.model_validate(settings)
    one = Learner(config, recipe("sft"), checkpoints[0], total_steps=3, device="cpu")
    for number, folder in enumerate(folders):
        row = np.arange(40, dtype=np.int32) * (number + 3) % 200
        one.step(Batch([Payload(row, row >= 0)]))
        save(folder, one, load_tokenizer(checkpoints[0]))
    return folders
