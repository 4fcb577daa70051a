"""The disk that a run needs, as it is computed before the run exists and as it is used."""

from pathlib import Path

import pytest

from tests.support.bench import settings
from tests.support.recipes import recipe
from tests.support.saving import checkpoint_of, save
from trinity_db.config.shared import ScratchConfig
from trinity_db.models import build_scratch, load_tokenizer
from trinity_db.trainer.checkpoints import checkpoint, disk_need
from trinity_db.trainer.config import LoraConfig, TrainerConfig
from trinity_db.trainer.learner.learner import Learner

HEADERS = 20_000  # bytes of headers and of other small state
WIDE = ScratchConfig(hidden_size=64, layers=1, heads=1, context=64)


@pytest.mark.parametrize(
    ("lora", "publish"),
    [(None, None), (LoraConfig(), "adapter"), (LoraConfig(targets=("q_proj",)), "merged")],
)
def test_the_estimate_is_the_size_of_the_files(
    tmp_path: Path, lora: LoraConfig | None, publish: str | None
) -> None:
    start = tmp_path / "start"
    start.mkdir()
    build_scratch(WIDE, 0, start)
    config = settings(lora=lora, publish=publish)  # type: ignore[arg-type]
    learner = Learner(config, recipe("sft"), start, total_steps=1)
    for parameter in learner.policy.parameters():
        parameter.grad = parameter.detach().clone()
    learner.optimizer.step()
    save(tmp_path / "version", learner, load_tokenizer(start))
    need = disk_need.estimate(disk_need.shapes_of(start), config, 1, copies_start=False)
    weights = sum(path.stat().st_size for path in (tmp_path / "version").rglob("*.safetensors"))
    saved = sum(path.stat().st_size for path in checkpoint_of(tmp_path / "version").rglob("*"))
    assert need.version == pytest.approx(weights, rel=0.05, abs=HEADERS)
    assert need.checkpoint == pytest.approx(saved, rel=0.05, abs=HEADERS)
    assert learner.policy.version_bytes == pytest.approx(need.version, rel=0.01)
    assert checkpoint.num_bytes(learner) == pytest.approx(need.checkpoint, rel=0.01)


def test_the_estimate_follows_the_rules_of_what_is_kept() -> None:
    shapes = {"weight": (1000, 1000)}

    def most(**keys: object) -> tuple[int, int]:
        need = disk_need.estimate(shapes, TrainerConfig.model_validate(keys), 1, copies_start=False)
        return need.num_versions, need.num_checkpoints

    assert most(keep_checkpoints=3) == (9, 5)
    assert most(keep_checkpoints=3, checkpoint_every=1) == (6, 5)
    assert most(keep_checkpoints=3, keep_best="loss", keep_every=10, steps=1000) == (110, 5)
    assert most(keep_checkpoints=3, steps=2) == (3, 3)


def test_the_estimate_counts_older_versions_in_16_bits_as_deltas() -> None:
    shapes = {"weight": (1000, 1000)}

    def deltas(**keys: object) -> int:
        config = TrainerConfig.model_validate({"steps": 109, "publish_dtype": "bfloat16"} | keys)
        return disk_need.estimate(shapes, config, 1, copies_start=False).deltas

    assert deltas() == 100 * disk_need.OLDER_SHARE * 2_000_000
    assert deltas(publish_dtype="auto") == deltas()
    assert deltas(publish_dtype="float32") == 0
    assert deltas(keep_deltas=0) == 0
    assert deltas(steps=5) == 0
