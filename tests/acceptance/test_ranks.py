"""Several processes that train together, started by torchrun, come to what one process comes to."""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.acceptance import steps_of_ranks
from tests.acceptance.command import TORCHRUN
from tests.support.saving import checkpoint_of
from trinity_db.config.shared import ScratchConfig
from trinity_db.models import build_scratch, folder_digest
from trinity_db.trainer.checkpoints.checkpoint import TENSORS_FILE
from trinity_db.trainer.distribution.ranks import ALONE

SHARDINGS = ("none", "full")
CASES = [
    *(f"{name}{when}" for name in steps_of_ranks.ALGORITHMS for when in ("", ", again", ", evaluated")),
    *steps_of_ranks.SIZES,
    "sft, canary",
    "lora, canary",
    "padded",
    "experts",
    "replayed experts",
    "starting scores",
    "nothing to learn",
]

LAST_CALLS = """
from pathlib import Path
import torch
from trinity_db.trainer.distribution.ranks import join_ranks

with join_ranks() as ranks:
    ranks.sum(torch.ones(3))
    ranks.broadcast("enough")
print(*(path.read_text() for path in Path("/proc/self/task").glob("*/comm")), sep="")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, and the checkpoint that one process made."""
    folder = tmp_path_factory.mktemp("steps")
    tiny = ScratchConfig(alphabet="0123456789", hidden_size=16, heads=2, context=32)
    for seed, name in enumerate(("start", "moved")):
        build_scratch(tiny, seed, folder / name)
    build_scratch(ScratchConfig(alphabet="0123456789", hidden_size=64, layers=12), 2, folder / "deep")
    steps_of_ranks.build_padded(folder / "padded")
    steps_of_ranks.build_experts(folder / "experts")
    one = steps_of_ranks.learner(ALONE, folder, "dpo")
    for seed in range(2):
        one.step(steps_of_ranks.batch(6, seed))
    steps_of_ranks.save(one, folder / "alone" / "two")
    return folder


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, dict[str, Any]]:
    return steps_of_ranks.steps(ALONE, folder, "none", folder / "alone")


@pytest.fixture(scope="module")
def together(folder: Path) -> dict[str, Any]:
    """What two processes come to, by how they share the weights."""
    command = [*TORCHRUN, "--nproc-per-node", "2", "-m", steps_of_ranks.__name__, str(folder)]
    ended = subprocess.run(
        command, env=os.environ | {"OMP_NUM_THREADS": "1"}, cwd=Path(__file__).parents[2], capture_output=True
    )
    assert ended.returncode == 0, ended.stderr.decode()
    found: dict[str, Any] = torch.load(folder / "found.pt", weights_only=False)
    return found


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("case", CASES)
def test_two_processes_make_the_step_that_one_makes(
    alone: dict[str, dict[str, Any]], together: dict[str, Any], case: str, sharding: str
) -> None:
    expected, found = alone[case], together[sharding][case]
    assert found["metrics"] == pytest.approx(expected["metrics"], abs=1e-6, rel=1e-5)
    for mine, theirs in zip(found.get("gradients", ()), expected.get("gradients", ()), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)


def test_an_optimizer_on_the_cpu_makes_the_same_step(
    alone: dict[str, dict[str, Any]], together: dict[str, Any]
) -> None:
    found = together["offloaded"]
    assert found["metrics"] == pytest.approx(alone["dpo"]["metrics"], abs=1e-6, rel=1e-5)
    for mine, theirs in zip(found["gradients"], alone["dpo"]["gradients"], strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)
    assert found["devices"] == {"cpu"}


def test_a_rank_never_holds_more_than_its_part_one_layer_and_what_is_outside_of_layers(
    together: dict[str, Any],
) -> None:
    """Of the policy, and then of the reference beside it: the starting model, which has two layers."""
    for rank in together["loading"]:
        small = rank["whole"] / 20
        assert rank["layer"] < small + rank["whole"] / 12
        assert rank["most"] < rank["whole"] / 2 + rank["layer"] + 2 * rank["outside"] + small
        assert rank["then"] < rank["whole"] / 2 + small
        assert rank["then"] > rank["whole"] / 2 - small


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_a_stop_and_a_loss_that_is_no_number_are_the_same_on_each(
    together: dict[str, Any], sharding: str
) -> None:
    first, second = together[f"{sharding}, failures"]
    assert first == second
    assert first[:2] == ["Abandoned", "NonFiniteLoss"]
    assert math.isfinite(float(first[2]))
    assert first[3] == "True", "gradients of the step that was stopped are left"


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_a_checkpoint_of_one_process_goes_on_in_two_and_theirs_in_one(
    folder: Path, together: dict[str, Any], sharding: str
) -> None:
    one = steps_of_ranks.resumed(ALONE, folder, "alone/two")
    found = steps_of_ranks.step(one, steps_of_ranks.batch(6, seed=3))
    assert together[f"{sharding}, resumed"]["metrics"] == pytest.approx(found["metrics"], abs=1e-6, rel=1e-5)
    other = steps_of_ranks.resumed(ALONE, folder, f"{sharding}/resumed")
    rows = steps_of_ranks.batch(6, seed=4)
    assert other.steps_done == one.steps_done == 3
    assert other.step(rows) == pytest.approx(one.step(rows), abs=1e-5, rel=1e-4)
    steps_of_ranks.assert_same_weights(other.policy.model.state_dict(), one.policy.model.state_dict())
    sizes = {
        (folder / name / "model.safetensors").stat().st_size for name in ("start", f"{sharding}/resumed")
    }
    assert len(sizes) == 1  # what was tied still is


def test_no_thread_that_took_part_in_the_last_call_outlives_it() -> None:
    """One that lets go of a tensor while the interpreter ends aborts the process."""
    command = [*TORCHRUN, "--nproc-per-node", "2", "--no-python", sys.executable, "-c", LAST_CALLS]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout
    assert "gloo" not in ended.stdout


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("name", steps_of_ranks.SAVED)
def test_what_stands_beside_the_model_is_whole_in_their_checkpoints(
    folder: Path, alone: dict[str, Any], together: dict[str, Any], name: str, sharding: str
) -> None:
    one, two = folder / "alone" / name, folder / sharding / name
    files = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(two) for path in two.rglob("*") if path.is_file())
    weights = [file for file in files if file.suffix == ".safetensors"]
    assert len(weights) == {"ppo": 2, "lora": 2, "synchronised": 1}[name]
    for file in weights:
        steps_of_ranks.assert_same_weights(load_file(two / file), load_file(one / file))
        assert (one / file).stat().st_size == (two / file).stat().st_size


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("name", steps_of_ranks.SAVED)
def test_ranks_with_parts_write_them_and_go_on_to_the_bit(
    folder: Path, together: dict[str, Any], name: str, sharding: str
) -> None:
    assert together[sharding][f"{name}, resumed"]["metrics"] == {"exact": 1.0}
    alone, found = (checkpoint_of(folder / of / name) for of in ("alone", sharding))
    whole = load_file(alone / TENSORS_FILE)
    parts = [load_file(part / TENSORS_FILE) for part in folder_digest.parts_of(found)]
    assert len(parts) == {"none": 1, "full": 2}[sharding]
    sizes = [sum(part[tensor].numel() for tensor in whole if tensor in part) for part in parts]
    assert sum(sizes) == sum(tensor.numel() for tensor in whole.values())
    assert max(sizes) < 1.1 * min(sizes)
    rows = {tensor: [part[tensor] for part in parts if tensor in part] for tensor in whole}
    steps_of_ranks.assert_same_weights({tensor: torch.cat(one) for tensor, one in rows.items()}, whole)
