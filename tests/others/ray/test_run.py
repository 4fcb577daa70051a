"""Runs whose roles are on the machines of a Ray cluster: lost, frozen and added machines, stops and ends."""

import json
import os
import signal
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.acceptance.command import Ended, Store, reversing
from tests.others.ray.conftest import Machines, machine_of
from tests.others.ray.history import ALIVE, REACHED, TRAINED_BY_ANOTHER, check_history, steps
from tests.support.postgres import discard, new_home
from tests.support.processes import is_alive
from tests.support.waiting import wait_until
from trinity_db.postgres import embedded

pytestmark = pytest.mark.timeout(
    1200
)  # one run, which loses machines again and again, is set up in the first test

RUN = "away"
PLACE_SECONDS = 20  # an actor takes 2 s to start, on a busy machine ten times as long
MOST_STEPS = 100_000  # it is stopped before


class Facts(NamedTuple):
    """What was seen of a run that lost machines."""

    trainers: int
    stopped: Ended
    left: list[dict[str, object]]
    """Workers that said no goodbye after Ctrl-C, and after their driver was killed."""
    leased: int
    waiting: str
    """What the second driver said before the cluster had room for all."""
    ended: Ended


def config(store: Store) -> Path:
    run = reversing(MOST_STEPS, 8)
    return store.config(RUN, explorers=2, **run | {"trainer": run["trainer"] | {"learning_rate": 3e-3}})


@pytest.fixture(scope="module")
def facts(store: Store, machines: Machines) -> Facts:
    path = config(store)
    machines.add(cpus=3)
    machines.add(cpus=3)
    driver = store.start("run", path, "--ray", machines.address)
    store.wait_for(REACHED, driver, run=RUN, steps=20)

    # A machine that Ray does not see, but that works on: its trainer goes on until it hears of another.
    (trainer,) = [int(one["pid"]) for one in store.rows(ALIVE, run=RUN) if one["role"] == "train"]
    frozen = machine_of(trainer)
    os.kill(frozen, signal.SIGSTOP)
    store.wait_for(TRAINED_BY_ANOTHER, driver, run=RUN, pid=trainer)
    wait_until(
        lambda: not is_alive(trainer), "the trainer on the frozen machine hears that another has its place"
    )
    store.wait_for(REACHED, driver, run=RUN, steps=steps(store, RUN) + 10)
    os.kill(frozen, signal.SIGKILL)
    driver.signal(signal.SIGINT)
    stopped = driver.wait()
    left = store.rows(ALIVE, run=RUN)
    leased = store.value("SELECT count(*) FROM batch WHERE state = 'leased'")

    fewer = ("--set", f"ray.place_seconds={PLACE_SECONDS}", "--set", "explorers=3")
    driver = store.start("run", path, "--ray", machines.address, *fewer)
    wait_until(lambda: "it waits" in driver.errors, "the cluster has room for three roles")
    waiting = driver.errors
    added = machines.add(cpus=1)
    wait_until(lambda: "explore-3 runs on" in driver.errors, "a machine more has room")
    store.wait_for("SELECT count(*) = 5 FROM (" + ALIVE + ") w", driver, run=RUN)
    (explorer,) = [pid for one in store.rows(ALIVE, run=RUN) if machine_of(pid := int(one["pid"])) == added]
    os.kill(added, signal.SIGKILL)
    wait_until(lambda: not is_alive(explorer), "no role outlives its machine")
    wait_until(lambda: "explore-3 ended with code -1" in driver.errors, "Ray loses the machine")
    store.wait_for(REACHED, driver, run=RUN, steps=max(120, steps(store, RUN) + 10))
    orphans = [int(one["pid"]) for one in store.rows(ALIVE, run=RUN)]
    driver.signal(signal.SIGKILL)
    driver.wait()
    wait_until(lambda: not any(map(is_alive, orphans)), "the roles end with their driver")
    left += store.rows(ALIVE, run=RUN)

    last = ("--change", "--set", f"trainer.steps={steps(store, RUN) + 10}")
    ended = store.run("run", path, "--ray", machines.address, *last)
    trainers = store.value("SELECT count(DISTINCT pid) FROM worker WHERE role = 'train'")
    return Facts(trainers, stopped, left, leased, waiting, ended)


def test_a_role_goes_on_elsewhere_and_its_frozen_double_is_fenced(store: Store, facts: Facts) -> None:
    assert facts.trainers == 4
    assert "was marked as gone, and another has its place" in store.log(RUN, "train")
    assert "train ended with code -1, restarting it: Ray has lost it on" in facts.stopped.stderr


def test_the_end_of_their_driver_ends_the_roles_in_order(facts: Facts) -> None:
    assert facts.stopped.code == 0, facts.stopped.stderr
    assert (facts.left, facts.leased) == ([], 0)


def test_a_further_explorer_waits_for_a_machine_and_says_so(facts: Facts) -> None:
    assert "explore-3 needs 1 CPU; the cluster has 0 CPU free of 3; it waits" in facts.waiting


def test_the_run_ends_with_its_last_step(store: Store, facts: Facts) -> None:
    assert facts.ended.code == 0, facts.ended.stderr
    assert store.value("SELECT state::text FROM run WHERE name = %(run)s", run=RUN) == "finished"


@pytest.mark.usefixtures("facts")
def test_each_step_is_one_batch_and_no_row_is_used_twice(store: Store) -> None:
    check_history(store, RUN)


@pytest.mark.usefixtures("facts")
def test_the_policy_has_learned(store: Store) -> None:
    mean = "SELECT avg(reward) FROM experience WHERE version_min BETWEEN %(first)s AND %(last)s"
    assert store.value(mean, first=90, last=110) > store.value(mean, first=0, last=10) + 0.15


def test_a_run_that_cannot_begin_says_what_its_cluster_lacks(store: Store, machines: Machines) -> None:
    machines.add(cpus=2)
    path = store.config("impossible", **reversing(2, 2))
    asks = ("--set", "ray.train.gpus=1", "--set", f"ray.place_seconds={PLACE_SECONDS}")
    ended = store.run("run", path, "--ray", machines.address, *asks)
    assert ended.code == 1
    lacks = "error: train needs 1 CPU and 1 GPU; the cluster has 0 GPU free of 0"
    assert ended.error_lines == [f"{lacks}: add a machine, or lower its request (ray in the configuration)"]


def test_a_local_cluster_serves_the_embedded_store(store: Store) -> None:
    home = new_home()
    here = {"TRINITY_DB_URL": "", "TRINITY_DB_HOME": str(home)}
    tasks = store.folder / "reverse.jsonl"
    try:
        assert store.run("import", tasks, "--as", "tasks", "--name", "reverse", **here).code == 0
        ended = store.run("run", store.config("here", **reversing(2, 2)), "--ray", "local", **here)
        assert ended.code == 0, ended.stderr
        assert json.loads(store.run("status", "here", "--json", **here).stdout)["state"] == "finished"
    finally:
        discard(embedded.cluster(home))
