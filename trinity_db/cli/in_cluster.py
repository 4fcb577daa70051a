"""The roles of a run on the machines of a Ray cluster: what each asks for, and what it is told."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trinity_db import cores
from trinity_db.configuration import RunConfig
from trinity_db.database import Database
from trinity_db.errors import DatabaseUnavailable
from trinity_db.explorer.config import EndpointConfig, VLLMConfig
from trinity_db.process import Process
from trinity_db.ray import cluster
from trinity_db.ray.actor import Actor
from trinity_db.ray.config import ResourcesConfig
from trinity_db.ray.departures import Departures
from trinity_db.service import LEASE_SECONDS
from trinity_db.settings import home
from trinity_db.store import runs, workers

logger = logging.getLogger(__name__)

PASSED_ON = ("TRINITY_DB_", "PG", "HF_")
"""Beginnings of the names of variables that name the store, and the Hub with its token."""


@contextmanager
def joined(address: str | None) -> Iterator[None]:
    """Be a driver of the Ray cluster at the address. None: of no cluster.

    Raises:
        TrinityError: it cannot be joined; before a run is created.
    """
    if address is None:
        yield
        return
    cluster.check(address)
    with cluster.joined(address):
        yield


@dataclass(frozen=True)
class Register:
    """What the store knows of the processes of a run, by host and process id."""

    database: Database
    run_id: int

    def is_at_work(self, host: str, pid: int) -> bool:
        """Whether a process has a worker that has not signed off and is heard, or the store is away."""
        try:
            with self.database.transaction() as tx:
                return workers.is_at_work(tx, self.run_id, host, pid, LEASE_SECONDS)
        except DatabaseUnavailable:
            return True

    def fence(self, host: str, pid: int) -> None:
        """Refuse what a process writes from now on, and free its place."""
        try:
            with self.database.transaction() as tx:
                workers.stop_process(tx, self.run_id, host, pid)
        except DatabaseUnavailable as error:
            logger.warning("%s; the leases of pid %d on %s run out by themselves", error, pid, host)


def actors(config: RunConfig, processes: Sequence[Process], database: Database, run: runs.Run) -> list[Actor]:
    """These processes as actors of the cluster that was joined: further explorers last."""
    register, departures, has_gpus = Register(database, run.id), Departures(), cluster.has_gpus()

    def actor(process: Process, role: str, first: Sequence[Actor]) -> Actor:
        needs = needs_of(config, role, has_gpus)
        environment = passed_on(config) | {cores.VARIABLE: _threads(needs)}
        there = replace(process, environment=environment, folder=Path.cwd())
        return Actor(there, needs, config.ray.place_seconds, register, departures, first)

    roles = ("explore", "process", "train")
    needed = [actor(process, process.name, ()) for process in processes if process.name in roles]
    return needed + [actor(process, "explore", needed) for process in processes if process.name not in roles]


def needs_of(config: RunConfig, role: str, has_gpus: bool) -> dict[str, float]:
    """What a role asks for on one machine, by Ray's names of resources.

    Args:
        has_gpus: whether the cluster has any.
    """
    asked: ResourcesConfig = getattr(config.ray, role)
    cpus, gpus = _defaults(config, role)
    if asked.cpus is not None:
        cpus = asked.cpus
    gpus = asked.gpus if asked.gpus is not None else gpus if has_gpus else 0
    needs = {"CPU": cpus, "GPU": gpus, **asked.resources}
    return {name: amount for name, amount in needs.items() if amount}


def _defaults(config: RunConfig, role: str) -> tuple[float, float]:
    """Cores and GPUs."""
    if role == "train":
        ranks = config.trainer.ranks or 1
        return ranks, ranks
    if role == "process":
        return (1, 1) if config.processors.has_teacher else (0, 0)
    engine = config.explorer.engine
    if isinstance(engine, EndpointConfig):
        return 1, 0
    return 1, engine.tensor_parallel if isinstance(engine, VLLMConfig) else 1


def _threads(needs: dict[str, float]) -> str:
    return os.environ.get(cores.VARIABLE, str(max(1, int(needs.get("CPU", 1)))))


def passed_on(config: RunConfig) -> dict[str, str]:
    """Variables of this process that a role on another machine needs: store, home and keys of servers.

    They go with the actor itself, because Ray shows everybody the environment that an actor is started in.
    """
    names = {*_named(config.model_dump(), "key_env")}
    found = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON) or name in names}
    return found | {"TRINITY_DB_HOME": str(home())}


def _named(content: Any, key: str) -> Iterator[str]:
    """The values of a key, at each place in a configuration that has it."""
    if isinstance(content, dict):
        if isinstance(content.get(key), str):
            yield content[key]
        content = [*content.values()]
    if isinstance(content, list | tuple):
        for one in content:
            yield from _named(one, key)
