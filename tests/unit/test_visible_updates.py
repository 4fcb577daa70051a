"""How much of an update versions show: the measure on a sample against all weights of the files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from tests.support.recipes import recipe
from tests.support.saving import checkpoint_of, resume, save
from trinity_db.arrays.codec import Payload
from trinity_db.config.shared import ScratchConfig
from trinity_db.models import build_scratch, load_model, load_tokenizer, rounding
from trinity_db.trainer.checkpoints import checkpoint, disk_need
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.learner import visible_updates
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner
from trinity_db.trainer.learner.visible_updates import CHANGED, LAST_TEN, NOISE, VISIBLE, VisibleUpdates

Weights = NDArray[np.float64]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as it is released in bfloat16: the file of version 0."""
    folder = tmp_path_factory.mktemp("start")
    build_scratch(ScratchConfig(alphabet="0123456789", hidden_size=32, heads=2, context=24), 3, folder)
    load_model(folder, "cpu").bfloat16().save_pretrained(folder)
    return folder


def learner(start: Path, **keys: Any) -> Learner:
    config = TrainerConfig.model_validate({"learning_rate": 1e-5, "publish_dtype": "bfloat16", **keys})
    return Learner(config, recipe("sft"), start, total_steps=100, device="cpu")


def publish(one: Learner, folder: Path) -> dict[str, float]:
    """Make a step, and save a version and a checkpoint. Returns the metrics of the version."""
    tokens = np.arange(8, dtype=np.int32) + one.steps_done % 3
    one.step(Batch([Payload(tokens, np.arange(8) > 3)]))
    save(folder, one, load_tokenizer(one.policy._start))
    return one.policy.measured


def of_file(folder: Path) -> Weights:
    """All weights in a version's file."""
    tensors = load_file(folder / "model.safetensors")
    return np.concatenate([tensors[name].double().numpy().ravel() for name in sorted(tensors)])


def of_trainer(one: Learner, folder: Path) -> Weights:
    """The same weights as the trainer has them. Tied weights are in the file once."""
    state = one.policy.adapter.merged() if one.policy.adapter else one.policy.model.state_dict()
    names = sorted(load_file(folder / "model.safetensors"))
    return np.concatenate([state[name].double().numpy().ravel() for name in names])


def direct(versions: list[tuple[Weights, Weights]]) -> dict[str, float]:
    """The metrics of the last version, from the exact and the published weights of all versions."""

    def share(before: int) -> float:
        update = now - versions[before][0]
        return float((shown - versions[before][1]) @ update / (update @ update))

    now, shown = versions[-1]
    return {
        VISIBLE: share(0),
        LAST_TEN: share(max(0, len(versions) - 11)),
        CHANGED: float(np.mean(shown != versions[-2][1])),
        NOISE: float(np.sqrt(np.mean((shown - now) ** 2)) / np.sqrt(np.mean(now**2))),
    }


def is_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Round to nearest: the threshold of every weight is one half."""

    def half(name: str, start: int, count: int, device: torch.device) -> torch.Tensor:
        return torch.full((count,), 1 << 15, dtype=torch.int32, device=device)

    monkeypatch.setattr(rounding, "_thresholds", half)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("rounds", ["by thresholds", "to nearest"])
def test_the_measure_is_that_of_all_weights_in_the_files(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, rounds: str
) -> None:
    if rounds == "to nearest":
        is_nearest(monkeypatch)
    one = learner(start, publish_dtype=dtype)
    versions = [(of_trainer(one, start), of_file(start))]
    assert np.array_equal(*versions[0])
    for version in range(1, 14):
        measured = publish(one, tmp_path / str(version))
        versions.append((of_trainer(one, tmp_path / str(version)), of_file(tmp_path / str(version))))
        assert measured == pytest.approx(direct(versions), rel=1e-4, abs=1e-7)
    if dtype == "bfloat16":
        assert measured[LAST_TEN] == pytest.approx(0.1 if rounds == "to nearest" else 1.0, abs=0.2)
        assert 0 < measured[NOISE] < 0.004


def test_a_sample_of_large_weights_measures_what_all_weights_do() -> None:
    """Its spans follow from names and sizes alone, are evenly spaced, and do not overlap."""
    generator = torch.Generator().manual_seed(1)
    sizes = {"embedding": (3000, 512), "norm": (512,), "up": (2048, 512), "head": (3000, 512)}
    before = {
        name: (0.02 * torch.randn(size, generator=generator)).bfloat16().float()
        for name, size in sizes.items()
    }
    seeds = {name: name for name in sizes}
    one = VisibleUpdates(before, seeds)
    assert one._spans == VisibleUpdates(before, seeds)._spans
    sampled = {name: np.zeros(weight.numel(), np.int64) for name, weight in before.items()}
    for span in one._spans:
        sampled[span.name][span.start : span.start + span.count] += 1
        assert span.start + span.count <= before[span.name].numel()
    assert {int(count.max()) for count in sampled.values()} <= {0, 1}
    total = sum(int(count.sum()) for count in sampled.values())
    assert 0.98 * visible_updates.SAMPLE < total <= visible_updates.SAMPLE
    for name in ("embedding", "up", "head"):
        assert sampled[name].mean() == pytest.approx(total / sum(map(len, sampled.values())), rel=0.05)

    after = {
        name: weight + 1e-5 * torch.randn(weight.shape, generator=generator)
        for name, weight in before.items()
    }
    measured = one.measure(after, torch.bfloat16)
    shown = [rounding.round_to(after[name], name, torch.bfloat16).double().numpy().ravel() for name in sizes]
    exact = [after[name].double().numpy().ravel() for name in sizes]
    first = np.concatenate([before[name].double().numpy().ravel() for name in sizes])
    every = direct([(first, first), (np.concatenate(exact), np.concatenate(shown))])
    assert measured == pytest.approx(every, rel=0.02)


def test_a_restarted_trainer_measures_against_version_0(start: Path, tmp_path: Path) -> None:
    steady = learner(start)
    for version in (1, 2, 3):
        publish(steady, tmp_path / str(version))
    restarted = learner(tmp_path / "3")
    resume(tmp_path / "3", restarted)
    (tmp_path / "later").mkdir()
    for version in (4, 5):
        expected = publish(steady, tmp_path / str(version))
        measured = publish(restarted, tmp_path / "later" / str(version))
        assert measured[VISIBLE] == expected[VISIBLE]
        assert measured[NOISE] == expected[NOISE]
        assert measured.get(CHANGED) == (None if version == 4 else expected[CHANGED])
        assert (LAST_TEN in measured) == (version == 5)


def test_a_checkpoint_without_a_sample_begins_the_measure_again(start: Path, tmp_path: Path) -> None:
    steady = learner(start)
    publish(steady, tmp_path / "1")
    state_file = checkpoint_of(tmp_path / "1") / checkpoint.STATE_FILE
    state = torch.load(state_file, weights_only=True)
    del state["visible"]
    torch.save(state, state_file)
    restarted = learner(tmp_path / "1")
    resume(tmp_path / "1", restarted)
    assert restarted.policy.visible is not None
    assert not restarted.policy.visible.has_start
    assert publish(restarted, tmp_path / "2").keys() == {NOISE}
    versions = [(of_trainer(restarted, tmp_path / "2"), of_file(tmp_path / "2"))]
    measured = publish(restarted, tmp_path / "3")
    versions.append((of_trainer(restarted, tmp_path / "3"), of_file(tmp_path / "3")))
    assert measured == pytest.approx(direct(versions), rel=1e-4)


def test_a_version_in_float32_shows_all(start: Path, tmp_path: Path) -> None:
    exact = learner(start, publish_dtype="float32")
    assert exact.policy.visible is None
    assert publish(exact, tmp_path / "exact") == {VISIBLE: 1.0, LAST_TEN: 1.0, NOISE: 0.0}

    auto = learner(start, publish_dtype="auto")
    versions = [(of_trainer(auto, start), of_file(start))]
    for version, dtype in enumerate(["float32", "bfloat16", "float32"], 1):
        auto.publish_in(dtype)
        measured = publish(auto, tmp_path / str(version))
        versions.append((of_trainer(auto, tmp_path / str(version)), of_file(tmp_path / str(version))))
        assert measured == pytest.approx(direct(versions), rel=1e-4, abs=1e-9)
    assert measured[VISIBLE] == 1.0
    assert measured[NOISE] == 0.0


def test_weights_that_did_not_move_have_no_visible_share(start: Path, tmp_path: Path) -> None:
    one = learner(start)
    save(tmp_path / "1", one, load_tokenizer(start))
    assert one.policy.measured == {CHANGED: 0.0, NOISE: 0.0}


def test_a_merged_adapter_is_measured_on_the_weights_that_it_changes(start: Path, tmp_path: Path) -> None:
    lora = {"rank": 2, "targets": ["q_proj", "up_proj"]}
    one = learner(start, lora=lora, publish="merged", learning_rate=1e-3)
    changes = sorted(
        name
        for name in load_file(start / "model.safetensors")
        if name.endswith(("q_proj.weight", "up_proj.weight"))
    )

    def adapted(tensors: Any) -> Weights:
        return np.concatenate([tensors[name].double().numpy().ravel() for name in changes])

    assert one.policy.adapter is not None
    base = adapted(load_file(start / "model.safetensors"))
    versions = [(base, base)]
    for version in (1, 2, 3):
        measured = publish(one, tmp_path / str(version))
        file = adapted(load_file(tmp_path / str(version) / "model.safetensors"))
        versions.append((adapted(one.policy.adapter.merged()), file))
        assert measured == pytest.approx(direct(versions), rel=1e-4)
    restarted = Learner(
        one.config, recipe("sft"), tmp_path / "3", total_steps=100, reference=start, device="cpu"
    )
    resume(tmp_path / "3", restarted)
    measured = publish(restarted, tmp_path / "4")
    assert measured.keys() == {VISIBLE, NOISE}
    file = adapted(load_file(tmp_path / "4" / "model.safetensors"))
    assert restarted.policy.adapter is not None
    versions.append((adapted(restarted.policy.adapter.merged()), file))
    assert measured[VISIBLE] == pytest.approx(direct(versions)[VISIBLE], rel=1e-4)


def test_an_adapter_in_its_own_matrices_is_not_measured(start: Path, tmp_path: Path) -> None:
    one = learner(start, lora={"rank": 2}, publish="adapter")
    assert publish(one, tmp_path / "1") == {}


def test_the_estimate_of_the_disk_counts_the_same_sample() -> None:
    assert disk_need.SAMPLE == visible_updates.SAMPLE
