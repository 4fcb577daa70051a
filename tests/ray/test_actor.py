"""Actors with small programs for roles: where they are, who gives way, and how they end."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.processes import is_alive
from tests.ray.conftest import Machines
from tests.waiting import wait_until
from trinity_db.errors import TrinityError
from trinity_db.process import Process
from trinity_db.ray import cluster
from trinity_db.ray.actor import LOST, Actor

# It ends with the actor that started it, as a role does.
LIVES = """import os, time
parent = os.getppid()
print('works', flush=True)
while os.getppid() == parent:
    time.sleep(0.05)"""
DIES = "import sys\nprint('error: no luck', flush=True)\nsys.exit(3)"
PLACE_SECONDS = 20.0  # an actor takes 2 s to start, on a busy machine ten times as long

Made = Callable[..., Actor]


@pytest.fixture(scope="module", autouse=True)
def _driver(machines: Machines) -> Iterator[None]:
    with cluster.joined(machines.address):
        yield


@pytest.fixture
def fenced() -> list[tuple[str, int]]:
    return []


@pytest.fixture
def make(tmp_path: Path, fenced: list[tuple[str, int]]) -> Iterator[Made]:
    """Makes an actor that asks for one of a resource, and ends it after the test."""
    made: list[Actor] = []

    def make(name: str, program: str, resource: str, *first: Actor, folder: Path | None = None) -> Actor:
        process = Process(name, ["-S", "-c", program], tmp_path / f"{name}.log", folder=folder)
        made.append(Actor(process, {resource: 1}, PLACE_SECONDS, lambda *place: fenced.append(place), first))
        return made[-1]

    yield make
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
    return actor._place[1]


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
    machines: Machines, make: Made, fenced: list[tuple[str, int]]
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
    assert [pid for _, pid in fenced] == [trainer]
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


def test_a_role_that_no_machine_has_room_for_says_what_is_lacking(
    monkeypatch: pytest.MonkeyPatch, make: Made
) -> None:
    role = make("train", LIVES, "rare")
    monkeypatch.setattr(role, "_place_seconds", 0.5)
    role.start()
    with pytest.raises(
        TrinityError, match="train needs 1 rare; the cluster has 0 rare free of 0: add a machine"
    ):
        wait_until(lambda: role.code is not None, "it complains")
