"""Checkpoints are whole, can be verified, and training goes on from them as if it had not stopped."""

from pathlib import Path

import numpy as np
import pytest
import torch

from trinity_db.arrays import Payload
from trinity_db.config import ScratchConfig
from trinity_db.errors import ConfigError
from trinity_db.models import build_scratch, load_model, load_tokenizer
from trinity_db.trainer import checkpoint
from trinity_db.trainer.config import SftConfig, TrainerConfig
from trinity_db.trainer.step import Batch, Learner


@pytest.fixture
def start(tmp_path: Path) -> Path:
    folder = tmp_path / "start"
    build_scratch(ScratchConfig(alphabet="0123456789", hidden_size=16, heads=2, context=32), 3, folder)
    return folder


def learner(model: Path) -> Learner:
    config = TrainerConfig(learning_rate=1e-2, warmup_steps=3, schedule="cosine")
    return Learner(config, SftConfig(), model, total_steps=10, device="cpu")


def batch(seed: int) -> Batch:
    tokens = np.random.default_rng(seed).integers(0, 10, (4, 8)).astype(np.int32)
    return Batch([Payload(row, np.arange(8) > 3) for row in tokens])


def test_training_goes_on_as_if_it_had_not_stopped(start: Path, tmp_path: Path) -> None:
    steady = learner(start)
    for seed in range(2):
        steady.step(batch(seed))
    checkpoint.save(tmp_path / "v2", steady, load_tokenizer(start))
    draw = torch.rand(1)
    torch.rand(3)
    resumed = learner(tmp_path / "v2")
    checkpoint.load_state(tmp_path / "v2", resumed)
    assert torch.equal(torch.rand(1), draw)
    for seed in range(2, 5):
        assert steady.step(batch(seed)) == resumed.step(batch(seed))
    assert resumed.steps_done == 5


def test_a_checkpoint_is_a_model_folder(start: Path, tmp_path: Path) -> None:
    trained = learner(start)
    trained.step(batch(0))
    checkpoint.save(tmp_path / "v1", trained, load_tokenizer(start))
    tokens = torch.arange(8)[None]
    with torch.no_grad():
        expected, seen = trained.model(tokens).logits, load_model(tmp_path / "v1", "cpu")(tokens).logits
    assert torch.equal(expected, seen)
    assert load_tokenizer(tmp_path / "v1").encode("301") == [3, 0, 1]


def test_a_leftover_is_replaced_and_nothing_lies_beside(start: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "v1"
    for leftover in (folder, folder.with_name("v1.tmp")):
        leftover.mkdir(parents=True)
        (leftover / "half-written").touch()
    digest = checkpoint.save(folder, learner(start), load_tokenizer(start))
    assert checkpoint.verify(folder, digest)
    assert not (folder / "half-written").exists()
    assert [path.name for path in folder.parent.iterdir()] == ["v1"]


def test_damage_is_noticed(start: Path, tmp_path: Path) -> None:
    folder = tmp_path / "v1"
    digest = checkpoint.save(folder, learner(start), load_tokenizer(start))
    assert checkpoint.verify(folder, digest)
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert not checkpoint.verify(folder, digest)
    weights.write_bytes(whole)
    assert checkpoint.verify(folder, digest)
    (folder / "config.json").rename(folder / "config2.json")
    assert not checkpoint.verify(folder, digest)
    assert not checkpoint.verify(tmp_path / "none", digest)


def test_a_plain_model_folder_is_no_checkpoint_to_go_on_from(start: Path) -> None:
    with pytest.raises(ConfigError, match="no trainer_state"):
        checkpoint.load_state(start, learner(start))
