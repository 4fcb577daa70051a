"""Several processes that train together, started by torchrun, come to what one process comes to."""

import math
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file

from tests.acceptance import steps_of_ranks
from tests.acceptance.command import TORCHRUN, Ended, Store, is_alive, new_store, reversals, wait_until
from trinity_db.config import ScratchConfig
from trinity_db.models import build_scratch
from trinity_db.trainer.ranks import ALONE

SHARDINGS = ("none", "full")
CASES = [
    *(f"{name}{when}" for name in steps_of_ranks.ALGORITHMS for when in ("", ", again", ", evaluated")),
    *steps_of_ranks.SIZES,
    "nothing to learn",
]

STEPS, BATCH_SIZE, EPOCHS = 60, 4, 2
COMMITTED = "SELECT count(*) >= %(steps)s FROM batch WHERE state = 'committed'"
LATEST = "SELECT max(step) FROM policy_version"
LEFT = "SELECT count(*) FROM batch WHERE state = 'leased'"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, and the checkpoint that one process made."""
    folder = tmp_path_factory.mktemp("steps")
    tiny = ScratchConfig(alphabet="0123456789", hidden_size=16, heads=2, context=32)
    for seed, name in enumerate(("start", "moved")):
        build_scratch(tiny, seed, folder / name)
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


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_a_stop_and_a_loss_that_is_no_number_are_the_same_on_each(
    together: dict[str, Any], sharding: str
) -> None:
    first, second = together[f"{sharding}, failures"]
    assert first == second
    assert first[:2] == ["Abandoned", "NonFiniteLoss"]
    assert math.isfinite(float(first[2]))


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
    assert_same_weights(other.policy.model.state_dict(), one.policy.model.state_dict())
    sizes = {
        (folder / name / "model.safetensors").stat().st_size for name in ("start", f"{sharding}/resumed")
    }
    assert len(sizes) == 1  # what was tied still is


class Lives(NamedTuple):
    """A run that was stopped, disturbed and ended, always by torchrun."""

    stopped: Ended
    stopped_at: tuple[int, int, int]
    """Steps that were committed, those that the latest checkpoint includes, and batches left in hand."""
    bereft: Ended
    finished: Ended
    diverged: Ended
    """Another run, whose loss is soon no number."""


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("name", steps_of_ranks.SAVED)
def test_what_stands_beside_the_model_is_whole_in_their_checkpoints(
    folder: Path, alone: dict[str, Any], together: dict[str, Any], name: str, sharding: str
) -> None:
    one, two = folder / "alone" / name, folder / sharding / name
    files = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(two) for path in two.rglob("*") if path.is_file())
    weights = [file for file in files if file.suffix == ".safetensors"]
    assert len(weights) == 2
    for file in weights:
        assert_same_weights(load_file(two / file), load_file(one / file))
        assert (one / file).stat().st_size == (two / file).stat().st_size


@pytest.fixture(scope="module")
def stores(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Store]]:
    """Two alike."""
    with (
        new_store(server, template, tmp_path_factory.mktemp("one")) as one,
        new_store(server, template, tmp_path_factory.mktemp("two")) as two,
    ):
        yield [one, two]


@pytest.fixture(scope="module")
def configs(stores: list[Store]) -> list[Path]:
    rows = [
        {"prompt": row["prompt"], "response": row["answer"]}
        for row in reversals(3)[: STEPS * BATCH_SIZE // EPOCHS]
    ]
    configs = []
    for store, sharding in zip(stores, SHARDINGS, strict=True):
        store.import_rows("rows", "demonstrations", rows)
        trainer = {"sharding": sharding, "epochs": EPOCHS, "batch_size": BATCH_SIZE, "micro_batch_size": 1}
        trainer |= {"learning_rate": 1e-4, "publish_every": 25}
        configs.append(store.config("ranks", data=["rows"], algorithm="sft", trainer=trainer))
    return configs


@pytest.fixture(scope="module")
def lives(stores: list[Store], configs: list[Path]) -> Lives:
    store, config = stores[1], configs[1]
    process = store.start_ranks(2, "train", config)
    store.wait_for(COMMITTED, process, steps=3)
    process.signal(signal.SIGTERM)
    stopped = process.wait()
    committed = store.value("SELECT count(*) FROM batch WHERE state = 'committed'")
    stopped_at = committed, store.value(LATEST), store.value(LEFT)

    process = store.start_ranks(2, "train", config)
    store.wait_for(COMMITTED, process, steps=committed + 3)
    trainer = store.value("SELECT pid FROM worker ORDER BY id DESC LIMIT 1")
    (follower,) = (pid for pid in _children(process.pid) if pid != trainer)
    os.kill(follower, signal.SIGKILL)
    bereft = process.wait()
    wait_until(lambda: not is_alive(trainer), "the trainer ends")

    finished = store.start_ranks(2, "train", config).wait()
    changes = ("--set", "name=diverges", "--set", "trainer.learning_rate=1e30")
    diverged = store.start_ranks(2, "train", config, *changes).wait()
    return Lives(stopped, stopped_at, bereft, finished, diverged)


@pytest.mark.slow
def test_a_signal_to_torchrun_stops_all_in_order(lives: Lives) -> None:
    committed, included, in_hand = lives.stopped_at
    assert committed == included
    assert in_hand == 0
    assert "error:" not in lives.stopped.stderr


@pytest.mark.slow
def test_an_error_ends_all_and_is_said_once(lives: Lives) -> None:
    assert lives.diverged.code != 0
    assert lives.diverged.stderr.count("error:") == 1
    assert "the loss is" in lives.diverged.stderr


@pytest.mark.slow
def test_a_lost_process_ends_the_others(lives: Lives) -> None:
    assert lives.bereft.code != 0
    assert "lost another rank" in lives.bereft.stderr


@pytest.mark.slow
def test_the_run_ends_with_the_weights_that_one_process_comes_to(
    stores: list[Store], configs: list[Path], lives: Lives
) -> None:
    alone = stores[0].run("train", configs[0])
    assert (alone.code, lives.finished.code) == (0, 0), lives.finished.stderr
    folders = []
    for store in stores:
        latest = store.rows("SELECT step, checkpoint FROM policy_version ORDER BY version DESC LIMIT 1")[0]
        assert latest["step"] == STEPS
        folders.append(Path(latest["checkpoint"]))
    start = Path(stores[0].value("SELECT checkpoint FROM policy_version WHERE version = 0"))
    one, two, before = (load_file(path / "model.safetensors") for path in (*folders, start))
    assert_same_weights(two, one)
    assert max(float((weight - before[name]).abs().max()) for name, weight in one.items()) > 1e-3


def assert_same_weights(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, atol=1e-5, rtol=0, msg=name)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
