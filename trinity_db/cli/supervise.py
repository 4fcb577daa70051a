"""All roles of a run as processes: started together, restarted when they die, stopped together.

The supervisor owns the processes and nothing else. It reads from the store what the run did, as
any client does. A role that it restarts goes on from there.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from trinity_db import cores
from trinity_db.cli import launch
from trinity_db.cli.configuration import RunConfig
from trinity_db.cli.progress import Progress
from trinity_db.database import Database, Transaction
from trinity_db.errors import DatabaseUnavailable, TrinityError
from trinity_db.schema.queries import query
from trinity_db.service import GIVES_UP, SUPERVISOR
from trinity_db.settings import home
from trinity_db.sinks.follow import mirrored, sinks_of
from trinity_db.store import evaluations, runs

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.5
STOP_SECONDS = 60.0  # a step and a checkpoint of a large model; after that a role is killed
QUICK_DEATH_SECONDS = 30.0  # a role that dies sooner after its start did nothing
# So many quick deaths of one role in a row end the run. So do as many deaths with the same last words and no
# step between them. A row that kills its processor is given up sooner, by max_attempts.
QUICK_DEATHS = 5


@dataclass
class Child:
    """One role's process."""

    name: str
    command: Sequence[str]
    log: Path
    once: Sequence[str] = ()
    """Arguments for its first start only: what a person allowed once is not allowed again after a crash."""
    threads: int = 1
    """Threads to compute with, unless a person has set OMP_NUM_THREADS."""
    process: subprocess.Popen[bytes] = field(init=False)
    started_at: float = 0.0
    quick_deaths: int = 0
    died_as: tuple[str, int] | None = None
    """The last line of its log when it last died, and the run's step then."""

    def start(self) -> None:
        """Start the role in its own session, so that only the supervisor gets a Ctrl-C, and passes it on."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        environment = {cores.VARIABLE: str(self.threads)} | os.environ | {SUPERVISOR: str(os.getpid())}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command, *self.once],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self.once = ()
        self.started_at = time.monotonic()

    def last_words(self) -> str:
        """The last line of its log."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def run(config: RunConfig, arguments: Sequence[str], once: Sequence[str] = (), change: bool = False) -> None:
    """Run all roles of a configuration to the end of the run, or to Ctrl-C.

    Imported rows are processed before the trainer starts, because it would find no pairs otherwise.

    Args:
        once: arguments for the trainer's first start.
    """
    sinks = sinks_of(config.metrics)  # before the run is created: it says which extra is missing
    database, run_row = launch.check(config, change)
    if not config.is_online and config.processors.pair and not launch.process(config, drain=True):
        raise KeyboardInterrupt
    with mirrored(database, run_row, sinks), Progress(database, run_row, config) as progress:
        supervisor = Supervisor(database, run_row, roles_of(config), arguments, once, threads_of(config))
        supervisor.supervise(progress.update)
        progress.update(now=True)


def roles_of(config: RunConfig) -> dict[str, str]:
    """The processes that a run needs, by name, and the role of each.

    Online these are explorers, processors and the trainer; offline the trainer, and processors if they
    archive.
    """
    if config.is_online:
        others = {f"explore-{number}": "explore" for number in range(2, config.explorers + 1)}
        return {"explore": "explore", **others, "process": "process", "train": "train"}
    return {"process": "process", "train": "train"} if config.processors.archive else {"train": "train"}


def threads_of(config: RunConfig) -> dict[str, int]:
    """The cores of this machine, shared among what computes. Processors compute for a teacher."""
    roles = {"explore", "train"} | ({"process"} if config.processors.has_teacher else set())
    names = roles_of(config)
    return cores.shares(list(names), [name for name in names if names[name] in roles], cores.available())


class Supervisor:
    """The processes of one run."""

    def __init__(
        self,
        database: Database,
        run: runs.Run,
        roles: Mapping[str, str],
        arguments: Sequence[str],
        once: Sequence[str] = (),
        threads: Mapping[str, int] | None = None,
    ) -> None:
        self._database = database
        self._run = run
        self._signals = 0
        logs = home() / "logs" / run.name
        self._children = [
            Child(
                name,
                [sys.executable, "-m", "trinity_db", role, *arguments],
                logs / f"{name}.log",
                once if role == "train" else (),
                (threads or {}).get(name, 1),
            )
            for name, role in roles.items()
        ]

    def supervise(self, tick: Callable[[], None]) -> None:
        """Keep the roles alive until the run is finished; `tick` is called about twice a second.

        Raises:
            TrinityError: a role cannot be kept alive.
            KeyboardInterrupt: stopped by a signal; every role has released what it had in hand.
        """
        previous = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            for child in self._children:
                child.start()
            with suppress(DatabaseUnavailable):  # retry waits for it, unless a signal comes meanwhile
                while not self._database.retry(self._look_after, give_up=lambda: self._signals > 0):
                    tick()
                    time.sleep(TICK_SECONDS)
        finally:
            self._stop()
            for number, handler in previous.items():
                signal.signal(number, handler)
        if self._signals:
            raise KeyboardInterrupt

    def _look_after(self) -> bool:
        """Start dead roles again. True when the run and its evaluations are finished, or a signal came."""
        # Before asking whether the run is finished: a role that ends in between has ended for that reason.
        dead = [child for child in self._children if child.process.poll() is not None]
        with self._database.transaction() as tx:
            is_trained = runs.is_finished(tx, self._run.id)
            finished = is_trained and not evaluations.are_open(tx, self._run.id)
            step = _last_step(tx, self._run.id) if dead else 0
        if not finished and not self._signals:
            for child in dead:
                if child.name != "train" or not is_trained:
                    self._revive(child, step)
        return bool(self._signals) or (finished and len(dead) == len(self._children))

    def _revive(self, child: Child, step: int) -> None:
        code, words = child.process.returncode, child.last_words()
        if code == GIVES_UP:
            raise TrinityError(f"{child.name} has ended: {words} (log: {child.log})")
        quick = time.monotonic() - child.started_at < QUICK_DEATH_SECONDS
        # For example, a trainer repeats minutes of steps each time, up to the step that it cannot do.
        alike, child.died_as = child.died_as == (words, step), (words, step)
        child.quick_deaths = child.quick_deaths + 1 if quick or alike else 0
        if child.quick_deaths >= QUICK_DEATHS:
            raise TrinityError(f"{child.name} ends again and again: {words} (log: {child.log})")
        logger.warning("%s ended with code %d, starting it again: %s", child.name, code, words)
        child.start()

    def _stop(self) -> None:
        """Ask every role to end, and kill those that do not within STOP_SECONDS."""
        alive = self._alive()
        for child in alive:
            child.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while any(child.process.poll() is None for child in alive):
            if time.monotonic() > deadline:
                self._kill()
            time.sleep(TICK_SECONDS / 5)

    def _kill(self) -> None:
        for child in self._alive():
            child.process.kill()

    def _alive(self) -> list[Child]:
        return [
            child for child in self._children if hasattr(child, "process") and child.process.poll() is None
        ]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals > 1:  # at once; what the roles had in hand will be done again
            self._kill()
            raise SystemExit(128 + number)
        logger.info("%s: stopping all roles; once more to stop at once", signal.Signals(number).name)


def _last_step(tx: Transaction, run_id: int) -> int:
    """The last committed step; 0 before the first."""
    row = tx.execute(query("run_progress"), {"run_id": run_id}).fetchone()
    assert row is not None
    return int(row["step"])
