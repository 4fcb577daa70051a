"""Small checkpoints with canaries, and the interpreter that has vLLM."""

from pathlib import Path

from trinity_db.config.shared import ScratchConfig
from trinity_db.models import build_scratch
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.learner.policy import Policy

PYTHON = Path(__file__).parents[3] / ".venv-vllm" / "bin" / "python"
# vLLM's CPU kernels take heads of 32 and more.
MODEL = ScratchConfig(hidden_size=64, layers=2, heads=2, context=512)


def build(model: ScratchConfig, folder: Path, number: int) -> list[Path]:
    """Folders of models with the same shapes and other weights."""
    folders = [folder / str(seed) for seed in range(number)]
    for seed, one in enumerate(folders):
        build_scratch(model, seed, one)
        save_canary(one)
    return folders


def save_canary(folder: Path) -> None:
    """Put what the folder's weights say of a fixed sequence beside them."""
    canary = Policy(folder, TrainerConfig(), device="cpu").canary()
    assert canary is not None
    canary.save(folder)
