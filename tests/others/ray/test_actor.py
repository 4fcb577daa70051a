"""Actors with small programs for roles: where they are, who gives way, how they end and are lost."""

import logging
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.others.ray.conftest import Machines, machine_of, parent
from tests.support.processes import is_alive
from tests.support.waiting import wait_until
from trinity_db.errors import TrinityError
from trinity_db.ray import cluster
from trinity_db.ray.actor import LOST, Actor
from trinity_db.ray.departures import Departures
from trinity_db.worker.process import Process

# It ends with the actor that started it, as a role does. The actor may end before its first line.
LIVES = """import os, time
parent = int(os.environ['TRINITY_DB_SUPERVISOR'])
print('works', flush=True)
while os.getppid() == parent:
    time.sleep(0.05)"""
DIES = "import sys\nprint('error: no luck', flush=True)\nsys.exit(3)"
# The same, but it takes as long as a test likes, and says by its file that it left in order.
LEAVES = """import os, signal, sys, time
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
parent = int(os.environ['TRINITY_DB_SUPERVISOR'])
print('works', flush=True)
while os.getppid() == parent and not told:
    time.sleep(0.05)
print('leaves', flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
print('has left', flush=True)"""
PLACE_SECONDS = 20.0  # an actor takes 2 s to start, on a busy machine ten times as long

Made = Callable[..., Actor]


class Register:
    """What is known of processes of this machine."""

    def __init__(self) -> None:
        self.fenced: list[int] = []

    def is_at_work(self, host: str, pid: int) -> bool:
        return is_alive(pid)

    def fence(self, host: str, pid: int) -> None:
        self.fenced.append(pid)


@pytest.fixture(scope="module", autouse=True)
def _driver(machines: Machines) -> Iterator[None]:
    with cluster.joined(machines.address):
        yield


@pytest.fixture
def register() -> Register:
    return Register()


@pytest.fixture
def make(tmp_path: Path, register: Register) -> Iterator[Made]:
    """Makes an actor that asks for some of a resource, and ends it after the test."""
    made: list[Actor] = []
    departures = Departures()

    def make(
        name: str,
        program: str,
        resource: str,
        *first: Actor,
        amount: float = 1,
        folder: Path | None = None,
        place_seconds: float = PLACE_SECONDS,
    ) -> Actor:
        arguments = ["-S", "-c", program, str(tmp_path / "left")]
        process = Process(name, arguments, tmp_path / f"{name}.log", folder=folder)
        made.append(Actor(process, {resource: amount}, place_seconds, register, departures, first))
        return made[-1]

    yield make
    (tmp_path / "left").touch()
    for one in made:
        if one.is_alive:
            one.end()
    wait_until(lambda: not any(one.is_alive for one in made), "all have ended")


def until_placed(*actors: Actor) -> None:
    def placed() -> bool:
        assert [one.code for one in actors] == [None] * len(actors), [one.words for one in actors]
        return not any(one.is_waiting for one in actors)

    wait_until(placed, "all have a machine")


def pid_of(actor: Actor) -> int:
    assert actor._place is not None
    return actor._place.pid


def test_a_role_that_dies_says_why_and_keeps_its_machine(machines: Machines, make: Made) -> None:
    machines.add(0, dying=1)
    train = make("train", DIES, "dying")
    explore = make("explore-2", LIVES, "dying", train)
    for actor in (train, explore):
        actor.start()
    for _ in range(2):
        wait_until(lambda: train.code is not None, "it dies")
        assert (train.code, train.words) == (3, "error: no luck")
        assert explore.code is None
        assert explore.is_waiting
        train.start()


def test_a_role_that_cannot_be_started_says_why(machines: Machines, make: Made, tmp_path: Path) -> None:
    machines.add(0, astray=1)
    role = make("train", LIVES, "astray", folder=tmp_path / "missing")
    for _ in range(4):  # more often than an actor has threads
        role.start()
        wait_until(lambda: role.code is not None, "it cannot be started")
        assert (role.code, role.words.partition(": ")[0]) == (1, "it cannot be started")
        assert "missing" in role.words


def test_a_further_explorer_gives_way_to_a_trainer_whose_machine_is_lost(
    machines: Machines, make: Made, register: Register
) -> None:
    first = machines.add(0, room=1)
    train = make("train", LIVES, "room")
    explore = make("explore-2", LIVES, "room", train)
    for actor in (train, explore):
        actor.start()
    until_placed(train)
    assert explore.is_waiting
    machines.add(0, room=1)
    until_placed(train, explore)
    trainer, explorer = pid_of(train), pid_of(explore)

    os.kill(first, signal.SIGKILL)
    wait_until(lambda: train.code is not None, "Ray loses the machine")
    assert train.code == LOST
    assert register.fenced == [trainer]
    train.start()

    def trains_again() -> bool:
        if explore.code is not None:
            explore.start()
        assert train.code is None
        return not train.is_waiting

    wait_until(trains_again, "the explorer gives way")
    wait_until(lambda: not is_alive(explorer), "the explorer has ended")
    assert explore.code is None
    assert explore.is_waiting


def test_a_role_is_ended_at_once(machines: Machines, make: Made) -> None:
    machines.add(0, brief=1)
    role = make(
        "train",
        LIVES.replace("import os, time", "import os, signal, time\nsignal.signal(15, signal.SIG_IGN)"),
        "brief",
    )
    role.start()
    until_placed(role)
    role.kill()
    wait_until(lambda: role.code is not None, "it is killed")
    assert role.code == -signal.SIGKILL


def test_a_role_that_no_machine_has_room_for_says_what_is_lacking(make: Made) -> None:
    role = make("train", LIVES, "rare", place_seconds=0.5)
    role.start()
    with pytest.raises(
        TrinityError, match="train needs 1 rare; the cluster has 0 rare free of 0: add a machine"
    ):
        wait_until(lambda: role.code is not None, "it complains")


def test_what_machines_have_only_together_is_not_waited_for(machines: Machines, make: Made) -> None:
    for _ in range(2):
        machines.add(0, rank=1)
    role = make("train", LIVES, "rank", amount=2, place_seconds=0.5)
    role.start()
    with pytest.raises(
        TrinityError,
        match="train needs 2 rank; no machine of the cluster has all of that free: add a machine",
    ):
        wait_until(lambda: role.code is not None, "it complains")


def test_roles_leave_a_machine_that_is_to_go_and_begin_elsewhere(
    machines: Machines, make: Made, tmp_path: Path, register: Register, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "trinity_db.ray")
    going = machines.add(0, spot=2)
    train, explore = (make(name, LEAVES, "spot") for name in ("train", "explore-2"))
    for actor in (train, explore):
        actor.start()
    until_placed(train, explore)

    machines.drain(going, 300)
    wait_until(lambda: train.code or "leaves" in said(tmp_path, train), "the trainer hears of it")
    wait_until(lambda: explore.code or "leaves" in said(tmp_path, explore), "the explorer hears of it")
    assert (train.code, explore.code, register.fenced) == (None, None, [])
    (line,) = [record.message for record in caplog.records]
    assert re.fullmatch(r"\S+ is about to leave the cluster in \d+ s: its roles are restarted .*", line)

    (tmp_path / "left").touch()
    wait_until(lambda: None not in (train.code, explore.code), "they have left")
    for actor in (train, explore):
        assert (actor.code, actor.words) == (0, "has left")
        actor.start()
    staying = machines.add(0, spot=2)
    until_placed(train, explore)
    assert [machine_of(pid_of(actor)) for actor in (train, explore)] == [staying, staying]
    assert register.fenced == []


@pytest.mark.parametrize("what", ["machine", "actor"])
def test_a_role_that_hears_of_its_loss_leaves_in_order_before_it_is_fenced(
    machines: Machines, make: Made, tmp_path: Path, register: Register, what: str
) -> None:
    machine = machines.add(0, **{what: 1})
    role = make("train", LEAVES, what)
    role.start()
    until_placed(role)
    first = pid_of(role)
    if what == "machine":
        os.kill(machine, signal.SIGTERM)  # as `ray stop` does
    else:
        os.kill(parent(first), signal.SIGKILL)
    wait_until(lambda: role.code or role._lost_at, "Ray has lost it")
    wait_until(lambda: role.code or "leaves" in said(tmp_path, role), "the role hears of it")
    assert (role.code, register.fenced) == (None, [])

    (tmp_path / "left").touch()
    wait_until(lambda: role.code is not None, "it has left")
    assert (role.code, register.fenced) == (LOST, [first])
    assert said(tmp_path, role).endswith("has left\n")
    role.start()
    if what == "machine":
        machine = machines.add(0, machine=1)
    until_placed(role)
    assert machine_of(pid_of(role)) == machine


def said(folder: Path, actor: Actor) -> str:
    return (folder / f"{actor.name}.log").read_text()
