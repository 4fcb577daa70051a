"""A run that is moved, stopped, taken up again, and disturbed in its last steps."""

import os
import signal
from typing import NamedTuple

import pytest

from tests.acceptance.command import Ended, Process, Store, reversing
from tests.others.ray.conftest import Machines, machine_of
from tests.others.ray.history import (
    ALIVE,
    LEASED,
    REACHED,
    REFUSED,
    TRAINED_BY_ANOTHER,
    UNFINISHED,
    check_history,
    steps,
)
from tests.support.processes import is_alive
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(600)  # its first test sets the run up

RUN = "going"
MOST_STEPS = 100_000  # it is stopped before
LAST_STEPS = 40  # of the run that is taken up again
AT_WORK = f"SELECT count(*) = 3 FROM ({ALIVE}) w"


class Facts(NamedTuple):
    """What was seen of the run."""

    was_moved: bool
    """Whether all roles were on the machine that was to go, and then on the other one."""
    said: str
    refused: int
    """Results of roles that were moved."""
    asked: Ended
    """`trinity-db stop` in another process."""
    stopped: Ended
    leased: int
    """After the stop, and after the command was killed in the last steps."""
    is_unfinished: bool
    last: int
    """The last step of the run that was taken up again."""
    committed: int
    """When the trainer was killed."""
    ended: Ended


def trainer_of(store: Store) -> int:
    (pid,) = [int(one["pid"]) for one in store.rows(ALIVE, run=RUN) if one["role"] == "train"]
    return pid


def hearts(store: Store) -> set[int]:
    return {machine_of(int(one["pid"])) for one in store.rows(ALIVE, run=RUN)}


@pytest.fixture(scope="module")
def facts(store: Store, machines: Machines) -> Facts:
    # A role that asks for nothing may also be on the head.
    path = store.config(RUN, ray={"process": {"cpus": 1}}, **reversing(MOST_STEPS, 8))

    def begin(*options: str) -> Process:
        driver = store.start("run", path, "--ray", machines.address, *options)
        store.wait_for(AT_WORK, driver, run=RUN)
        return driver

    first = machines.add(cpus=3)
    driver = begin()
    store.wait_for(REACHED, driver, run=RUN, steps=2)
    before, trainer, second = hearts(store), trainer_of(store), machines.add(cpus=3)
    machines.drain(first, 300)
    store.wait_for(TRAINED_BY_ANOTHER, driver, run=RUN, pid=trainer)
    store.wait_for(AT_WORK, driver, run=RUN)
    store.wait_for(REACHED, driver, run=RUN, steps=steps(store, RUN) + 2)
    was_moved = before == {first} and hearts(store) == {second}
    said, refused = driver.errors, store.value(REFUSED)

    asked = store.run("stop", RUN)
    stopped = driver.wait()
    leased = store.value(LEASED)

    last = steps(store, RUN) + LAST_STEPS
    fewer = ("--change", "--set", f"trainer.steps={last}")
    driver = begin(*fewer)
    store.wait_for(REACHED, driver, run=RUN, steps=last - 20)
    orphans = [int(one["pid"]) for one in store.rows(ALIVE, run=RUN)]
    driver.kill()
    wait_until(lambda: not any(map(is_alive, orphans)), "the roles end with their command")
    leased += store.value(LEASED)
    is_unfinished = bool(store.value(UNFINISHED, run=RUN))

    driver = begin(*fewer)
    trainer = trainer_of(store)
    store.wait_for(REACHED, driver, run=RUN, steps=last - 5)
    os.kill(trainer, signal.SIGKILL)
    wait_until(lambda: not is_alive(trainer), "the trainer is dead")
    committed = steps(store, RUN)
    ended = driver.wait()
    return Facts(was_moved, said, refused, asked, stopped, leased, is_unfinished, last, committed, ended)


def test_all_roles_leave_a_machine_that_is_to_go(facts: Facts) -> None:
    assert facts.was_moved
    assert facts.said.count("is about to leave the cluster in") == 1, facts.said
    for role in ("explore", "process", "train"):
        assert f"{role} ended with code 0, restarting it" in facts.said
    assert facts.refused == 0


def test_another_process_stops_the_run(facts: Facts) -> None:
    assert facts.asked.code == 0, facts.asked.stderr
    assert facts.stopped.code == 0, facts.stopped.stderr
    assert facts.leased == 0


def test_a_run_whose_command_and_trainer_die_in_its_last_steps_ends_well(store: Store, facts: Facts) -> None:
    assert facts.is_unfinished
    assert facts.committed < facts.last
    assert "train ended with code -9, restarting it" in facts.ended.stderr
    assert facts.ended.code == 0, facts.ended.stderr
    assert steps(store, RUN) == facts.last
    check_history(store, RUN)
