"""A run that another process stops by the store, and that the same commands go on with."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.acceptance.command import Ended, Store, new_store, reversals, reversing

MOST_STEPS, BATCH_SIZE = 100_000, 4  # it is stopped before
LAST_STEPS = 20  # of the resumed run
COMMITTED = "SELECT count(*) >= %(steps)s FROM batch WHERE state = 'committed'"
HELD = """
SELECT (SELECT count(*) FROM experience WHERE worker_id IS NOT NULL AND state IN ('raw', 'clean', 'scored'))
     + (SELECT count(*) FROM rollout_group WHERE worker_id IS NOT NULL AND state = 'open')
     + (SELECT count(*) FROM batch WHERE state = 'leased')
"""


class Stopped(NamedTuple):
    """How the command ended that asked, and those that were asked."""

    stop: Ended
    run: Ended
    explorer: Ended
    held: int
    not_included: int
    """Committed batches without a checkpoint that has them."""
    steps: int


@pytest.fixture(scope="module")
def store(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with new_store(server, template, tmp_path_factory.mktemp("stop")) as store:
        store.import_rows("reverse", "tasks", reversals(2))
        yield store


@pytest.fixture(scope="module")
def config(store: Store) -> Path:
    return store.config("stopped", **reversing(MOST_STEPS, BATCH_SIZE))


@pytest.fixture(scope="module")
def stopped(store: Store, config: Path) -> Stopped:
    """Supervised roles, and an explorer that a person started elsewhere."""
    run, explorer = store.start("run", config), store.start("explore", config)
    store.wait_for("SELECT count(*) = 4 FROM worker WHERE stopped_at IS NULL", run, explorer)
    store.wait_for(COMMITTED, run, steps=3)
    stop = store.run("stop", "stopped", "--json")
    committed = "SELECT count(*) FROM batch WHERE state = 'committed'"
    not_included = f"{committed} AND included_version IS NULL"
    ended = stop, run.wait(), explorer.wait()
    return Stopped(*ended, store.value(HELD), store.value(not_included), store.value(committed))


@pytest.fixture(scope="module")
def finished(store: Store, config: Path, stopped: Stopped) -> Ended:
    """The same command again, with fewer steps."""
    last = stopped.steps + LAST_STEPS
    return store.run("run", config, "--change", "--set", f"trainer.steps={last}")


def test_all_that_were_asked_end_as_on_ctrl_c(stopped: Stopped) -> None:
    assert stopped.stop.code == 0, stopped.stop.stderr
    roles = [worker["role"] for worker in json.loads(stopped.stop.stdout)["stopped"]]
    assert sorted(roles) == ["explore", "explore", "process", "train"]
    assert (stopped.run.code, stopped.explorer.code) == (0, 0), stopped
    assert stopped.run.error_lines == ["Stopped; repeat the command to continue."]
    assert "the run was asked to stop" in stopped.explorer.stderr


def test_nothing_is_held_and_the_checkpoint_has_every_step(stopped: Stopped) -> None:
    assert (stopped.held, stopped.not_included) == (0, 0)
    assert stopped.steps >= 3


def test_the_run_goes_on_with_nothing_lost_or_twice(store: Store, stopped: Stopped, finished: Ended) -> None:
    assert finished.code == 0, finished.stderr
    steps = store.rows("SELECT step, state::text FROM batch ORDER BY step")
    last = stopped.steps + LAST_STEPS
    assert steps == [{"step": step, "state": "committed"} for step in range(1, last + 1)]
    used = store.rows(
        "SELECT e.state::text, e.use_count, count(*) AS batches FROM batch_item i"
        " JOIN experience e ON e.id = i.experience_id GROUP BY e.id"
    )
    assert {(row["state"], row["use_count"], row["batches"]) for row in used} == {("trained", 1, 1)}


def test_a_finished_run_cannot_be_stopped(store: Store, finished: Ended) -> None:
    ended = store.run("stop", "stopped")
    assert (ended.code, ended.error_lines) == (
        *(1, ["error: Run 'stopped' is finished, and no worker of it is alive."]),
    )
