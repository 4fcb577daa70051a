"""The supervisor: which roles it starts again for ever, and which it gives up."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.rows import Scene
from tests.support.waiting import wait_until
from trinity_db.cli import supervise
from trinity_db.cli.supervise import Supervisor
from trinity_db.errors import TrinityError
from trinity_db.store import runs
from trinity_db.worker.process import Process
from trinity_db.worker.service import GIVES_UP
from trinity_db.worker.signals import endings

LIVES = supervise.QUICK_DEATHS + 1  # the first one is not like another

ROLE = """
import pathlib, sys
lives = pathlib.Path(sys.argv[1])
lives.write_text(lives.read_text() + "x")
print("error: " + sys.argv[2].format(life=len(lives.read_text())), file=sys.stderr)
sys.exit(0 if len(lives.read_text()) == int(sys.argv[4]) else int(sys.argv[3]))
"""


WAITS = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("it is here", flush=True)
time.sleep(60)
"""


class Mortal:
    """A supervised role that says a line and ends, after what counts as a long life.

    Args:
        until: the life that ends well; 0: none does.
    """

    def __init__(
        self, scene: Scene, folder: Path, says: str, code: int = 1, name: str = "train", until: int = 0
    ) -> None:
        self._scene = scene
        self._lives = folder / "lives"
        self._lives.touch()
        arguments = ["-S", "-c", ROLE, str(self._lives), says, str(code), str(until)]
        child = Process(name, arguments, folder / f"{name}.log")
        self._supervisor = Supervisor(scene.database, scene.run, [child])

    @property
    def lives(self) -> int:
        return len(self._lives.read_text())

    def supervise(self, tick: Callable[[], None] = lambda: None) -> None:
        """Until it is given up, or its run ends, which is so after some lives."""

        def until() -> None:
            tick()
            if self.lives > LIVES + 1:
                with self._scene.database.transaction() as tx:
                    runs.finish(tx, self._scene.run.id)

        self._supervisor.supervise(until)


@pytest.fixture(autouse=True)
def _no_life_is_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path))
    monkeypatch.setattr(supervise, "QUICK_DEATH_SECONDS", 0.0)
    monkeypatch.setattr(supervise, "TICK_SECONDS", 0.01)


def test_a_role_that_ends_alike_again_and_again_is_given_up_however_long_it_lives(
    scene: Scene, tmp_path: Path
) -> None:
    role = Mortal(scene, tmp_path, "step 3 has no loss")
    with pytest.raises(TrinityError, match="train keeps failing: error: step 3 has no loss"):
        role.supervise()
    assert role.lives == LIVES


def test_a_role_that_gives_up_is_not_started_again(scene: Scene, tmp_path: Path) -> None:
    role = Mortal(scene, tmp_path, "the {life}th SELECT fails", GIVES_UP)
    with pytest.raises(TrinityError, match=r"train has ended: error: the 1th SELECT fails \(log: "):
        role.supervise()
    assert role.lives == 1


def test_a_role_that_says_something_else_each_time_is_started_again(scene: Scene, tmp_path: Path) -> None:
    role = Mortal(scene, tmp_path, "the {life}th accident")
    role.supervise()
    assert role.lives > LIVES


def test_a_role_of_a_run_that_goes_on_is_started_again(scene: Scene, tmp_path: Path) -> None:
    for _ in range(2):  # of eight tasks each
        scene.make_ready(8)
    steps = iter(range(1, 17))
    lives = 0

    def train() -> None:
        nonlocal lives
        if role.lives > lives:
            lives = role.lives
            scene.train(next(steps), size=1)

    role = Mortal(scene, tmp_path, "an accident")
    role.supervise(train)
    assert role.lives > LIVES


def test_processors_that_fail_to_archive_a_finished_run_are_not_passed_over(
    scene: Scene, tmp_path: Path
) -> None:
    with scene.database.transaction() as tx:
        runs.finish(tx, scene.run.id)
    role = Mortal(scene, tmp_path, "the archive cannot be written", name="process")
    with pytest.raises(TrinityError, match="process keeps failing: error: the archive cannot be"):
        role.supervise()
    assert role.lives == LIVES


def test_other_roles_of_a_finished_run_stay_dead(scene: Scene, tmp_path: Path) -> None:
    with scene.database.transaction() as tx:
        runs.finish(tx, scene.run.id)
    role = Mortal(scene, tmp_path, "the engine dies as it ends", name="explore")
    role.supervise()
    assert role.lives == 1


def test_processors_of_a_finished_run_that_are_killed_go_on_with_the_archive(
    scene: Scene, tmp_path: Path
) -> None:
    with scene.database.transaction() as tx:
        runs.finish(tx, scene.run.id)
    role = Mortal(scene, tmp_path, "killed", name="process", until=2)
    role.supervise()
    assert role.lives == 2


TALKED_OVER = """
import sys
log = open(sys.argv[1], "a")
print("error: there is a worker already", file=sys.stderr, flush=True)
print("INFO step 7", file=log, flush=True)
sys.exit(1)
"""


def test_the_words_of_a_role_are_its_error_although_another_writes_to_its_log(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("error: of an earlier life\n")
    role = Process("train", ["-S", "-c", TALKED_OVER, str(log)], log)
    role.start()
    wait_until(lambda: not role.is_alive, "it has ended")
    assert role.words == "error: there is a worker already"
    silent = Process("train", ["-S", "-c", "pass"], log)
    silent.start()
    wait_until(lambda: not silent.is_alive, "it has ended")
    assert silent.words == "it wrote nothing"


def test_a_role_whose_log_was_removed_is_started_again(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "train.log"
    role = Process("train", ["-S", "-c", "import sys; sys.exit(3)"], log)
    role.start()
    wait_until(lambda: not role.is_alive, "it has ended")
    shutil.rmtree(log.parent)
    assert role.words == "its log was removed"
    role.start()
    wait_until(lambda: not role.is_alive, "it has ended")
    assert role.words == "it wrote nothing"


@pytest.mark.usefixtures("terminal")
def test_a_terminal_that_closes_stops_all_roles_although_it_says_so_twice(
    scene: Scene, tmp_path: Path
) -> None:
    role = Process("train", ["-S", "-c", WAITS], tmp_path / "train.log")

    def close() -> None:
        if (tmp_path / "train.log").read_text():
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGHUP)

    with pytest.raises(KeyboardInterrupt):
        Supervisor(scene.database, scene.run, [role]).supervise(close)
    assert role.code == 0, "it ended in its own way"


@pytest.mark.usefixtures("terminal")
def test_under_nohup_a_terminal_that_closes_ends_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert signal.SIGHUP not in endings()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.SIGHUP in endings()
