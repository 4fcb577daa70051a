"""A trainer that starts its ranks, under `trinity-db run`: bereft of a rank, taken up again, stopped."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.acceptance.command import Ended, Store, new_store, reversals
from tests.support.processes import is_alive
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

ROWS = 120
COMMITTED = "SELECT count(*) FROM batch WHERE state = 'committed'"
REACHED = "SELECT count(*) >= %(steps)s FROM batch WHERE state = 'committed'"
TRAINER = "SELECT pid FROM worker WHERE stopped_at IS NULL ORDER BY id DESC LIMIT 1"


class Lives(NamedTuple):
    """A run whose trainer lost a rank, and that was stopped later."""

    ranks: list[int]
    """The processes of both lives of the trainer: the first rank and the second of each."""
    stopped: Ended
    log: str


@pytest.fixture(scope="module")
def store(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with new_store(server, template, tmp_path_factory.mktemp("ranks")) as store:
        yield store


@pytest.fixture(scope="module")
def lives(store: Store) -> Lives:
    rows = [{"prompt": row["prompt"], "response": row["answer"]} for row in reversals(3)]
    store.import_rows("rows", "demonstrations", rows[:ROWS])
    trainer = {"ranks": 2, "sharding": "full", "batch_size": 1, "publish_every": 10}
    config = store.config("ranks", data=["rows"], algorithm="sft", trainer=trainer)
    process = store.start("run", config)
    store.wait_for(REACHED, process, steps=3)
    _, follower = ranks = _ranks(store)
    os.kill(follower, signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, ranks)), "the trainer ends too")

    store.wait_for("SELECT count(*) = 2 FROM worker", process)
    store.wait_for(REACHED, process, steps=store.value(COMMITTED) + 3)
    ranks += _ranks(store)
    process.signal(signal.SIGINT)
    stopped = process.wait()
    return Lives(ranks, stopped, store.log("ranks", "train"))


def _ranks(store: Store) -> list[int]:
    """The trainer's process and that of its other rank."""
    trainer = store.value(TRAINER)
    children = Path(f"/proc/{trainer}/task/{trainer}/children").read_text().split()
    return [trainer, *map(int, children)]


def test_a_lost_rank_is_named_in_one_line_and_the_trainer_starts_again(lives: Lives) -> None:
    lost = "error: Rank 1 of this training was ended by SIGKILL."
    assert lives.log.count(lost) == lives.log.count("error:") == 1
    assert lives.stopped.stderr.count(f"train ended with code 1, restarting it: {lost}") == 1


def test_a_stop_ends_all_ranks_in_order(store: Store, lives: Lives) -> None:
    assert not any(map(is_alive, lives.ranks))
    assert store.value("SELECT count(*) FROM batch WHERE state = 'leased'") == 0
    assert store.value("SELECT max(step) FROM policy_version") == store.value(COMMITTED)
    assert store.value("SELECT max(use_count) FROM experience") == 1
    assert "Traceback" not in lives.log


def test_ranks_that_share_the_weights_share_a_precomputed_reference_too(store: Store) -> None:
    rows = [
        {"prompt": row["prompt"], "chosen": row["answer"], "rejected": row["answer"][:2]}
        for row in reversals(3)
    ]
    store.import_rows("pairs", "preferences", rows[:6])
    trainer = {"ranks": 2, "sharding": "full", "batch_size": 2, "epochs": 1, "reference": "precomputed"}
    config = store.config("dpo", data=["pairs"], algorithm="dpo", trainer=trainer)
    ended = store.run("run", config)
    assert ended.code == 0, ended.stderr
    assert "the starting model scored 12 of 12 rows" in store.log("dpo", "train")
    first = """SELECT value FROM metric m JOIN run r ON r.id = m.run_id
        WHERE r.name = 'dpo' AND m.step = 1 AND m.name = 'rewards/margins'"""
    assert abs(store.value(first)) < 1e-6, "before its first step the policy is the starting model"
