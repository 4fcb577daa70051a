"""Runs all roles of a run as processes, restarts them when they die, and stops them together.

The supervisor owns the processes, on this machine or in a Ray cluster, and nothing else. It reads the run's
progress from the store, as any client does. A restarted role continues from the state in the store.
"""

import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Protocol

from trinity_db.cli.progress import Progress, outcome
from trinity_db.config.base import home
from trinity_db.errors import ConfigError, DatabaseUnavailable, StoreUpgraded, TrinityError
from trinity_db.insight.sinks.follow import mirrored, sinks_of
from trinity_db.postgres import upgrades
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.run import checks, disk, first_task, in_cluster, joining
from trinity_db.run.configuration import RunConfig
from trinity_db.schema.queries import query
from trinity_db.store import evaluations, runs, stopping
from trinity_db.worker import cores
from trinity_db.worker.process import Process
from trinity_db.worker.service import GIVES_UP
from trinity_db.worker.signals import endings

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.5
STOP_SECONDS = 60.0  # enough for a step and a checkpoint of a large model; then a role is killed
QUICK_DEATH_SECONDS = 30.0  # a role that dies sooner after its start has not worked
# This many quick deaths of one role in a row end the run, and this many deaths with the same last words and
# no step between them. A row that kills its processor is given up sooner, by max_attempts.
QUICK_DEATHS = 5


class Child(Protocol):
    """One role of a run: a process of this machine, or an actor that Ray has placed on a node."""

    @property
    def name(self) -> str: ...

    @property
    def log(self) -> Path | str: ...

    @property
    def code(self) -> int | None:
        """Exit code; None while the role runs or waits for a node."""

    @property
    def is_alive(self) -> bool:
        """Whether it was started and has not ended."""

    @property
    def is_waiting(self) -> bool:
        """Whether no node has room for it."""

    @property
    def words(self) -> str:
        """Last line of its output."""

    def start(self) -> None: ...

    def end(self) -> None:
        """Ask the role to stop."""

    def kill(self) -> None:
        """Kill the role."""


@dataclass
class Lives:
    """The supervisor's record of a role's starts and deaths."""

    started_at: float = 0.0
    quick_deaths: int = 0
    died_as: tuple[str, int] | None = None
    """Last line of its log at its last death, and the run's step then."""


def run(
    config: RunConfig,
    arguments: Sequence[str],
    once: Sequence[str] = (),
    change: bool = False,
    address: str | None = None,
    quiet: bool = False,
) -> None:
    """Run all roles of a configuration until the run ends, Ctrl-C or `trinity-db stop`.

    Imported rows are processed before the trainer starts, which would otherwise find no pairs.

    Args:
        once: arguments for the trainer's first start.
        address: address of the Ray cluster on whose nodes the roles run. None: this machine.
        quiet: print no progress and no outcome.
    """
    sinks = sinks_of(config.metrics)  # before the run is created: it names a missing extra
    with in_cluster.joined(address):
        config = joining.pinned(config)
        checks.check_fits(config)
        if address is not None and config.explorer.is_served:
            raise ConfigError(
                "explorer.workflow: served: agents would not know the node of the endpoint; leave out --ray."
            )
        if address is None and not config.is_external:
            disk.check_need(config)
        database, run_row = joining.open_run(config, change)
        asked_before = joining.decide(database, lambda tx: stopping.asked_at(tx, run_row.id))
        if not config.is_online and config.processors.pair:
            from trinity_db.run.process import run_processors

            if not run_processors(config, drain=True):
                raise KeyboardInterrupt
        if config.waits_for:
            logger.info(
                "waits for your program, which %s run '%s' (docs/guides/python.md)",
                *(config.waits_for, config.name),
            )
        processes = processes_of(config, arguments, once)
        children = in_cluster.actors(config, processes, database, run_row) if address else processes
        shown = nullcontext() if quiet else first_task.logged(database, run_row, config)
        with (
            shown,
            mirrored(database, run_row, sinks),
            Progress(database, run_row, config, quiet) as progress,
        ):
            Supervisor(database, run_row, children, asked_before).supervise(progress.update)
            progress.update(now=True)
        if not quiet:
            for line in outcome(database, run_row):
                logger.info("%s: %s", run_row.name, line)


def roles_of(config: RunConfig) -> dict[str, str]:
    """Return the processes that a run needs, by name, with the role of each.

    Online: explorers, processors and the trainer. Offline: the trainer, and processors if they archive or
    remove old rows. Without trainer or explorers if a program outside of trinity-db does their work.
    """
    trainer = {} if config.is_external else {"train": "train"}
    if config.is_online and config.explorer.is_external:
        return {"process": "process", **trainer}
    if config.is_online:
        first = "serve" if config.explorer.is_served else "explore"
        others = {f"explore-{number}": "explore" for number in range(2, config.explorers + 1)}
        return {"explore": first, **others, "process": "process", **trainer}
    return {"process": "process", **trainer} if config.processors.works_offline else trainer


def processes_of(config: RunConfig, arguments: Sequence[str], once: Sequence[str] = ()) -> list[Process]:
    """Return a run's processes for this machine. Each may use all of its cores.

    Args:
        once: arguments for the trainer's first start.
    """
    logs, threads = home() / "logs" / config.name, str(cores.available())
    return [
        Process(
            name,
            ["-m", "trinity_db", role, *arguments],
            logs / f"{name}.log",
            once if role == "train" else (),
            {cores.VARIABLE: os.environ.get(cores.VARIABLE, threads)},
        )
        for name, role in roles_of(config).items()
    ]


class Supervisor:
    """Supervisor of the roles of one run.

    Args:
        asked_before: time of the last stop request when the command began; None if there was none. Any later
            request stops the run, even a request before the roles start.
    """

    def __init__(
        self,
        database: Database,
        run: runs.Run,
        children: Sequence[Child],
        asked_before: datetime | None = None,
    ) -> None:
        self._database = database
        self._run = run
        self._signals = 0
        self._is_asked_to_stop = False
        self._asked_before = asked_before
        self._children = children
        self._lives = {child.name: Lives() for child in children}

    def supervise(self, tick: Callable[[], None]) -> None:
        """Keep the roles alive until the run is finished; `tick` is called about twice per second.

        Raises:
            TrinityError: if a role cannot be kept alive. StoreUpgraded: if the store is being upgraded; every
            role has released its current work. KeyboardInterrupt: if stopped by a signal or by `trinity-db
            stop`; every role has released its current
                work.
        """
        previous = {number: signal.signal(number, self._on_signal) for number in endings()}
        upgrade: StoreUpgraded | None = None
        try:
            for child in self._children:
                self._start(child)
            with suppress(DatabaseUnavailable):  # retry waits for the database, unless a signal comes
                while not self._database.retry(self._look_after, give_up=lambda: self._signals > 0):
                    tick()
                    time.sleep(TICK_SECONDS)
        except StoreUpgraded as error:
            upgrade = error
        finally:
            self._stop()
            for number, handler in previous.items():
                signal.signal(number, handler)
        if self._signals or self._is_asked_to_stop:
            raise KeyboardInterrupt
        if upgrade is not None:
            raise upgrade

    def _look_after(self) -> bool:
        """Restart dead roles. True when the run and its evaluations are finished, or the run is to stop."""
        # Read before checking whether the run is finished: a role that ends in between has ended for that
        # reason.
        dead = [child for child in self._children if child.code is not None]
        with self._database.transaction() as tx:
            upgrades.check(tx)
            is_trained = runs.is_finished(tx, self._run.id)
            finished = is_trained and not evaluations.are_open(tx, self._run.id)
            step = _last_step(tx, self._run.id) if dead else 0
            is_asked = stopping.asked_at(tx, self._run.id) != self._asked_before
        to_revive = [child for child in dead if self._is_needed(child, is_trained, finished)]
        if finished and not to_revive and all(child in dead or child.is_waiting for child in self._children):
            return True
        if is_asked:
            logger.info("the run was asked to stop: stopping all roles")
            self._is_asked_to_stop = True
        if self._signals or is_asked:
            return True
        for child in to_revive:
            self._revive(child, step)
        return False

    def _is_needed(self, child: Child, is_trained: bool, finished: bool) -> bool:
        """Whether a role that has ended has work left. Processors archive after all others have ended."""
        if child.name == "train":
            return not is_trained
        return not finished or (child.name == "process" and child.code != 0)

    def _revive(self, child: Child, step: int) -> None:
        code, words, lives = child.code, child.words, self._lives[child.name]
        if code == GIVES_UP:
            raise TrinityError(f"{child.name} has ended: {words} (log: {child.log})")
        quick = time.monotonic() - lives.started_at < QUICK_DEATH_SECONDS
        # For example, a trainer that repeats minutes of steps each time, up to the step that fails.
        alike, lives.died_as = lives.died_as == (words, step), (words, step)
        lives.quick_deaths = lives.quick_deaths + 1 if quick or alike else 0
        if lives.quick_deaths >= QUICK_DEATHS:
            raise TrinityError(f"{child.name} keeps failing: {words} (log: {child.log})")
        logger.warning("%s ended with code %d, restarting it: %s", child.name, code, words)
        self._start(child)

    def _start(self, child: Child) -> None:
        self._lives[child.name].started_at = time.monotonic()
        child.start()

    def _stop(self) -> None:
        """Ask every role to stop, and kill the rest after STOP_SECONDS."""
        alive = self._alive()
        for child in alive:
            child.end()
        deadline = time.monotonic() + STOP_SECONDS
        while any(child.is_alive for child in alive):
            if time.monotonic() > deadline:
                self._kill()
            time.sleep(TICK_SECONDS / 5)

    def _kill(self) -> None:
        for child in self._alive():
            child.kill()

    def _alive(self) -> list[Child]:
        return [child for child in self._children if child.is_alive]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._signals and number == signal.SIGHUP:
            return  # a closing terminal may send it twice, once through its shell
        self._signals += 1
        if self._signals > 1:  # at once; the roles' current work will be repeated
            self._kill()
            raise SystemExit(128 + number)
        logger.info("%s: stopping all roles; repeat to kill them", signal.Signals(number).name)


def _last_step(tx: Transaction, run_id: int) -> int:
    """Last committed step; 0 before the first."""
    row = tx.execute(query("run_progress"), {"run_id": run_id}).fetchone()
    assert row is not None
    return int(row["step"])
