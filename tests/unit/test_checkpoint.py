"""Checkpoints are whole, can be verified, and training goes on from them as if it had not stopped."""

import hashlib
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from tests.disk import fill, make_read_only, small_disk
from tests.recipes import recipe
from trinity_db import durable
from trinity_db.arrays import Payload
from trinity_db.config import ScratchConfig
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.models import build_scratch, folder_digest, load_model, load_tokenizer
from trinity_db.models.folder_digest import verify
from trinity_db.trainer.checkpoints import checkpoint
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner


@pytest.fixture
def start(tmp_path: Path) -> Path:
    folder = tmp_path / "start"
    build_scratch(ScratchConfig(alphabet="0123456789", hidden_size=16, heads=2, context=32), 3, folder)
    return folder


def learner(model: Path) -> Learner:
    config = TrainerConfig(learning_rate=1e-2, warmup_steps=3, schedule="cosine")
    return Learner(config, recipe("sft"), model, total_steps=10, device="cpu")


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
        # The learning rate, warming up here and falling then, is among what is equal.
        assert steady.step(batch(seed)) == resumed.step(batch(seed))
    assert resumed.steps_done == 5
    digests = [
        checkpoint.save(tmp_path / name, one, load_tokenizer(start))
        for name, one in (("steady", steady), ("resumed", resumed))
    ]
    assert digests[0] == digests[1]


def test_a_checkpoint_is_a_model_folder(start: Path, tmp_path: Path) -> None:
    trained = learner(start)
    trained.step(batch(0))
    checkpoint.save(tmp_path / "v1", trained, load_tokenizer(start))
    tokens = torch.arange(8)[None]
    with torch.no_grad():
        expected = trained.policy.model(tokens).logits
        seen = load_model(tmp_path / "v1", "cpu")(tokens).logits
    assert torch.equal(expected, seen)
    assert load_tokenizer(tmp_path / "v1").encode("301") == [3, 0, 1]


def test_nothing_is_written_over_and_nothing_lies_beside(start: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "version-000001"
    saved = checkpoint.save(folder, learner(start), load_tokenizer(start))
    other = learner(start)
    other.step(batch(0))
    with pytest.raises(TrinityError, match=r"version-000001 cannot be written: Directory not empty"):
        checkpoint.save(folder, other, load_tokenizer(start))
    assert verify(folder, saved)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_full_disk_leaves_nothing_and_the_next_try_succeeds(start: Path, tmp_path: Path) -> None:
    one, tokenizer = learner(start), load_tokenizer(start)
    one.step(batch(0))
    errors: list[TrinityError] = []
    lying_around: set[str] = set()
    with small_disk(tmp_path / "disk") as disk:
        folder, ballast = disk / "version-000001", fill(disk)
        # It is full from the start, then while the model is written, then the trainer's own state, ...
        while not folder.exists():
            try:
                digest = checkpoint.save(folder, one, tokenizer)
            except TrinityError as error:
                errors.append(error)
                lying_around |= {path.name for path in disk.iterdir()} - {ballast.name}
                os.truncate(ballast, ballast.stat().st_size - 8192)
        assert verify(folder, digest)
    assert len(errors) > 10
    assert not lying_around
    for part in (str(folder), "No space left on device", "Free space there", "trainer.checkpoints"):
        assert all(part in str(error) for error in errors)
    assert {type(error.__cause__) for error in errors} == {OSError, SafetensorError}


def test_a_disk_that_cannot_be_written_is_named(start: Path, tmp_path: Path) -> None:
    one, tokenizer = learner(start), load_tokenizer(start)
    (tmp_path / "file").touch()
    remedy = "Name another folder with trainer.checkpoints"
    with pytest.raises(
        TrinityError, match=f"file/version-000001 cannot be written: Not a directory. {remedy}"
    ):
        checkpoint.save(tmp_path / "file" / "version-000001", one, tokenizer)
    (tmp_path / "version-000001").touch()
    with pytest.raises(TrinityError, match="version-000001 cannot be written: Not a directory"):
        checkpoint.save(tmp_path / "version-000001", one, tokenizer)
    with small_disk(tmp_path / "disk") as disk:
        make_read_only(disk)
        with pytest.raises(TrinityError, match="version-000001 cannot be written: Read-only file system"):
            checkpoint.save(disk / "version-000001", one, tokenizer)


def test_a_digest_does_not_take_the_memory_of_what_it_is_of(tmp_path: Path) -> None:
    content = bytes(range(256)) * (1 << 14)
    (tmp_path / "model.safetensors").write_bytes(content)
    sha = hashlib.sha256(f"model.safetensors\0{len(content)}\0".encode() + content)
    found = []
    for block_bytes in (1 << 16, 100_003, 1 << 24):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(folder_digest, "BLOCK_BYTES", block_bytes)
            tracemalloc.start()
            found.append(folder_digest.digest(tmp_path))
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < len(content) / 4 or block_bytes > len(content)
    assert found == [sha.hexdigest()] * 3


def test_all_that_is_in_a_checkpoint_is_flushed_the_names_in_its_folders_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[Path] = []
    monkeypatch.setattr(durable, "flush", flushed.append)

    def write(aside: Path) -> None:
        (aside / "adapter").mkdir()
        for name in ("model.safetensors", "adapter/adapter_model.safetensors"):
            (aside / name).touch()

    checkpoint.write_folder(tmp_path / "v1", write)
    *within, parent = flushed
    assert parent == tmp_path, "after it has its name there"
    [aside] = {path for path in within if path.parent == tmp_path}
    everything = {path.relative_to(tmp_path / "v1") for path in (tmp_path / "v1").rglob("*")}
    assert {path.relative_to(aside) for path in within} == everything | {Path(".")}


def test_damage_is_noticed(start: Path, tmp_path: Path) -> None:
    folder = tmp_path / "v1"
    digest = checkpoint.save(folder, learner(start), load_tokenizer(start))
    assert verify(folder, digest)
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert not verify(folder, digest)
    weights.write_bytes(whole)
    assert verify(folder, digest)
    (folder / "config.json").rename(folder / "config2.json")
    assert not verify(folder, digest)
    assert not verify(tmp_path / "none", digest)


def test_a_plain_model_folder_is_no_checkpoint_to_go_on_from(start: Path) -> None:
    with pytest.raises(ConfigError, match="no trainer_state"):
        checkpoint.load_state(start, learner(start))
