"""Checkpoints are whole, can be verified, and training goes on from them as if it had not stopped."""

import hashlib
import json
import os
import threading
import tracemalloc
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.support.disk import fill, make_read_only, small_disk
from tests.support.recipes import recipe
from tests.support.saving import checkpoint_of, resume, save, save_checkpoint
from trinity_db.arrays.codec import Payload
from trinity_db.config.shared import ScratchConfig
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.io import durable
from trinity_db.models import build_scratch, folder_digest, load_model, load_tokenizer
from trinity_db.models.canary import read as read_canary
from trinity_db.models.folder_digest import verify
from trinity_db.models.rounding import round_to
from trinity_db.trainer.checkpoints import checkpoint, version, writing
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner


@pytest.fixture
def start(tmp_path: Path) -> Path:
    folder = tmp_path / "start"
    build_scratch(ScratchConfig(alphabet="0123456789", hidden_size=16, heads=2, context=32), 3, folder)
    return folder


def learner(model: Path, reference: Path | None = None, algorithm: str = "sft", **settings: Any) -> Learner:
    fixed: dict[str, Any] = {"learning_rate": 1e-2, "warmup_steps": 3, "schedule": "cosine"}
    if follows := settings.pop("follows", None):
        fixed["reference"] = follows
    config = TrainerConfig.model_validate(fixed | settings)
    return Learner(config, recipe(algorithm), model, total_steps=10, reference=reference, device="cpu")


def batch(seed: int) -> Batch:
    tokens = np.random.default_rng(seed).integers(0, 10, (4, 8)).astype(np.int32)
    return Batch([Payload(row, np.arange(8) > 3) for row in tokens])


def test_a_run_that_goes_on_in_another_dtype_says_so(
    start: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    on_gpu = learner(start, dtype="bfloat16")
    on_gpu.step(batch(0))
    save(tmp_path / "v1", on_gpu, load_tokenizer(start))
    resume(tmp_path / "v1", learner(tmp_path / "v1", dtype="bfloat16"))
    assert not [said for said in caplog.messages if "computed in" in said]
    resume(tmp_path / "v1", learner(tmp_path / "v1"))
    said = "steps are computed in float32 from now on, and were in bfloat16: trainer.dtype: auto follows the"
    assert caplog.messages[-1] == f"{said} device"


def test_a_resumed_learner_holds_no_file_of_its_checkpoint(start: Path, tmp_path: Path) -> None:
    """A deleted checkpoint would keep its space on the disk as long as the trainer runs."""
    first = learner(start)
    first.step(batch(0))
    save(tmp_path / "v1", first, load_tokenizer(start))
    resumed = learner(tmp_path / "v1")
    resume(tmp_path / "v1", resumed)
    assert str(checkpoint_of(tmp_path / "v1")) not in Path("/proc/self/maps").read_text()
    state = resumed.state_dict()["optimizer"]["state"]
    assert all(moments["exp_avg"].any() for moments in state.values())


def test_state_of_other_weights_is_refused(start: Path, tmp_path: Path) -> None:
    steady = learner(start)
    steady.step(batch(0))
    save(tmp_path / "v1", steady, load_tokenizer(start))
    file = checkpoint_of(tmp_path / "v1") / checkpoint.STATE_FILE
    state = torch.load(file, weights_only=True)
    state["optimizer"]["shapes"] = [[2, 2]] * len(steady.policy.parameters())
    torch.save(state, file)
    with pytest.raises(ConfigError, match=r"v1: its optimizer's state belongs to other .* \{run: NAME\}"):
        resume(tmp_path / "v1", learner(tmp_path / "v1"))


def test_training_goes_on_as_if_it_had_not_stopped(start: Path, tmp_path: Path) -> None:
    steady = learner(start)
    for seed in range(2):
        steady.step(batch(seed))
    save(tmp_path / "v2", steady, load_tokenizer(start))
    draw = torch.rand(1)
    torch.rand(3)
    resumed = learner(tmp_path / "v2")
    resume(tmp_path / "v2", resumed)
    assert torch.equal(torch.rand(1), draw)
    for seed in range(2, 5):
        # The learning rate, warming up here and falling then, is among what is equal.
        assert steady.step(batch(seed)) == resumed.step(batch(seed))
    assert resumed.steps_done == 5
    digests = [
        save(tmp_path / name, one, load_tokenizer(start))
        for name, one in (("steady", steady), ("resumed", resumed))
    ]
    assert digests[0] == digests[1]


def test_a_checkpoint_is_a_model_folder(start: Path, tmp_path: Path) -> None:
    trained = learner(start)
    trained.step(batch(0))
    save(tmp_path / "v1", trained, load_tokenizer(start))
    tokens = torch.arange(8)[None]
    with torch.no_grad():
        expected = trained.policy.model(tokens).logits
        seen = load_model(tmp_path / "v1", "cpu")(tokens).logits
    assert torch.equal(expected, seen)
    assert load_tokenizer(tmp_path / "v1").encode("301") == [3, 0, 1]


@pytest.mark.parametrize(
    ("lora", "dtype"),
    [(None, torch.bfloat16), (None, torch.float16), ({"rank": 2}, torch.bfloat16)],
)
def test_a_version_is_rounded_and_the_trainer_goes_on_exactly(
    start: Path, tmp_path: Path, lora: dict[str, int] | None, dtype: torch.dtype
) -> None:
    named = str(dtype).removeprefix("torch.")
    settings: dict[str, Any] = {"publish_dtype": named, "lora": lora}
    exact, one = learner(start, lora=lora), learner(start, **settings)
    one.load_state_dict(exact.state_dict())
    one.policy.model.load_state_dict(exact.policy.model.state_dict())
    for seed in range(2):
        assert exact.step(batch(seed)) == one.step(batch(seed))
    plain, rounded = tmp_path / "plain", tmp_path / "rounded"
    save(plain, exact, load_tokenizer(start))
    assert save(rounded, one, load_tokenizer(start)).version == folder_digest.digest(rounded)
    expected, written = (load_file(folder / "model.safetensors") for folder in (plain, rounded))
    assert {name: round_to(weight, name, dtype).tolist() for name, weight in expected.items()} == {
        name: weight.tolist() for name, weight in written.items()
    }
    assert {weight.dtype for weight in written.values()} == {dtype}
    assert json.loads((rounded / "config.json").read_bytes())["dtype"] == named
    canary = read_canary(rounded)
    assert canary is not None
    tokens = torch.tensor([canary.token_ids])
    with torch.no_grad():
        said = load_model(rounded, "cpu")(tokens).logits[0, :-1].log_softmax(-1)
    found = said.gather(-1, tokens[0, 1:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(canary.logprobs), found, atol=1e-5, rtol=0)
    resumed = learner(rounded, reference=start, **settings)
    resume(rounded, resumed)
    for seed in range(2, 4):
        assert exact.step(batch(seed)) == one.step(batch(seed)) == resumed.step(batch(seed))


def save_version(folder: Path, learner: Learner) -> str:
    return version.begin(folder, learner, load_tokenizer(folder.parents[1] / "start")).digest()


SAVES = pytest.mark.parametrize("save_one", [save_version, save_checkpoint])


@SAVES
def test_nothing_is_written_over_and_nothing_lies_beside(
    start: Path, tmp_path: Path, save_one: Callable[[Path, Learner], str]
) -> None:
    folder = tmp_path / "run" / "version-000001"
    saved = save_one(folder, learner(start))
    other = learner(start)
    other.step(batch(0))
    with pytest.raises(TrinityError, match=r"version-000001 cannot be written: Directory not empty"):
        save_one(folder, other)
    assert verify(folder, saved)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@SAVES
def test_a_full_disk_leaves_nothing_and_the_next_try_succeeds(
    start: Path, tmp_path: Path, save_one: Callable[[Path, Learner], str]
) -> None:
    one = learner(start)
    one.step(batch(0))
    errors: list[TrinityError] = []
    lying_around: set[str] = set()
    with small_disk(tmp_path / "disk") as disk:
        folder, ballast = disk / "version-000001", fill(disk)
        # It is full from the start, then within each of the files.
        while not folder.exists():
            try:
                digest = save_one(folder, one)
            except TrinityError as error:
                errors.append(error)
                lying_around |= {path.name for path in disk.iterdir()} - {ballast.name}
                os.truncate(ballast, ballast.stat().st_size - 4096)
        assert verify(folder, digest)
    assert len(errors) > 10
    assert not lying_around
    for part in (str(folder), "No space left on device", "Free space there", "trainer.checkpoints"):
        assert all(part in str(error) for error in errors)


@SAVES
def test_a_disk_that_cannot_be_written_is_named(
    start: Path, tmp_path: Path, save_one: Callable[[Path, Learner], str]
) -> None:
    one = learner(start)
    (tmp_path / "file").touch()
    remedy = "Name another folder with trainer.checkpoints"
    with pytest.raises(
        TrinityError, match=f"file/version-000001 cannot be written: Not a directory. {remedy}"
    ):
        save_one(tmp_path / "file" / "version-000001", one)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "version-000001").touch()
    with pytest.raises(TrinityError, match="version-000001 cannot be written: Not a directory"):
        save_one(tmp_path / "run" / "version-000001", one)
    with small_disk(tmp_path / "disk") as disk:
        make_read_only(disk)
        with pytest.raises(TrinityError, match="version-000001 cannot be written: Read-only file system"):
            save_one(disk / "version-000001", one)


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

    writing.write_folder(tmp_path / "v1", write)
    *within, parent = flushed
    assert parent == tmp_path, "after it has its name there"
    [aside] = {path for path in within if path.parent == tmp_path}
    everything = {path.relative_to(tmp_path / "v1") for path in (tmp_path / "v1").rglob("*")}
    assert {path.relative_to(aside) for path in within} == everything | {Path(".")}


def test_damage_is_noticed(start: Path, tmp_path: Path) -> None:
    folder = tmp_path / "v1"
    digest = save(folder, learner(start), load_tokenizer(start)).version
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


@pytest.mark.parametrize("change", ["step", "version"])
def test_what_the_trainer_changes_while_a_checkpoint_is_written_is_not_in_it(
    start: Path, tmp_path: Path, change: str
) -> None:
    steady = learner(start, publish_dtype="bfloat16")  # the canary of such a version rounds the weights
    for seed in range(2):
        steady.step(batch(seed))
    expected = save_checkpoint(tmp_path / "at-once", steady)
    let_go, write = threading.Event(), folder_digest.complete

    def late(*arguments: Any) -> str:
        let_go.wait()
        return write(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder_digest, "complete", late)
        part = checkpoint.begin_part(tmp_path / "late", tmp_path / "late.tmp", steady)
        assert part is not None
        if change == "step":
            steady.step(batch(2))
        with ExitStack() as published:
            if change == "version":
                published.enter_context(steady.ready_to_save())
                published.enter_context(steady.policy._as_published())
            assert not part.has_ended
            let_go.set()
            part.wait()
    outcomes = [checkpoint.outcome(part)]
    assert checkpoint.finish(tmp_path / "late", tmp_path / "late.tmp", outcomes) == expected
