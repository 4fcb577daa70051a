"""Two processes that train one policy, started by torchrun: stopped, bereft of one, taken up again.

What is left of it all are the weights that one undisturbed process comes to.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from safetensors.torch import load_file

from tests.acceptance.command import Ended, Store, new_store, reversals
from tests.acceptance.steps_of_ranks import assert_same_weights
from tests.support.processes import is_alive
from tests.support.waiting import wait_until

STEPS, BATCH_SIZE, EPOCHS = 60, 4, 2
COMMITTED = "SELECT count(*) >= %(steps)s FROM batch WHERE state = 'committed'"
LATEST = "SELECT max(step) FROM policy_version"
LEFT = "SELECT count(*) FROM batch WHERE state = 'leased'"


class Lives(NamedTuple):
    """A run that was stopped, disturbed and ended, always by torchrun."""

    stopped: Ended
    stopped_at: tuple[int, int, int]
    """Steps that were committed, those that the latest checkpoint includes, and batches left in hand."""
    bereft: Ended
    finished: Ended
    diverged: Ended
    """Another run, whose loss is soon no number."""


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
    for store, sharding in zip(stores, ("none", "full"), strict=True):
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
    # AdamW multiplies the weights by 1 - 100 · 1e7 at each step, and float32 ends at 3e38.
    divergent = ("trainer.learning_rate=100", "trainer.weight_decay=1e7")
    changes = ("--set", "name=diverges", *(word for one in divergent for word in ("--set", one)))
    diverged = store.start_ranks(2, "train", config, *changes).wait()
    return Lives(stopped, stopped_at, bereft, finished, diverged)


def test_a_signal_to_torchrun_stops_all_in_order(lives: Lives) -> None:
    committed, included, in_hand = lives.stopped_at
    assert committed == included
    assert in_hand == 0
    assert "error:" not in lives.stopped.stderr


def test_an_error_ends_all_and_is_said_once(lives: Lives) -> None:
    assert lives.diverged.code != 0
    assert lives.diverged.stderr.count("error:") == 1
    assert "the loss is" in lives.diverged.stderr


def test_a_lost_process_ends_the_others(lives: Lives) -> None:
    assert lives.bereft.code != 0
    assert "lost another rank" in lives.bereft.stderr


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


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
