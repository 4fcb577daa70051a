"""The roles of a run as actors on the nodes of a Ray cluster: their resources and their environment."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trinity_db.config.base import home
from trinity_db.errors import DatabaseUnavailable
from trinity_db.postgres.connection import Database
from trinity_db.ray import cluster
from trinity_db.ray.actor import Actor
from trinity_db.ray.config import ResourcesConfig
from trinity_db.ray.departures import Departures
from trinity_db.run.configuration import RunConfig
from trinity_db.store import runs, workers
from trinity_db.worker import cores
from trinity_db.worker.process import Process
from trinity_db.worker.service import LEASE_SECONDS

logger = logging.getLogger(__name__)

PASSED_ON = ("TRINITY_DB_", "PG", "HF_")
"""Prefixes of environment variables that name the store, and the Hub with its token."""


@contextmanager
def joined(address: str | None) -> Iterator[None]:
    """Join the Ray cluster at the address as a driver. None: join no cluster.

    Raises:
        TrinityError: if it cannot be joined; raised before a run is created.
    """
    if address is None:
        yield
        return
    cluster.check(address)
    with cluster.joined(address):
        yield


@dataclass(frozen=True)
class Register:
    """Processes of a run as the store records them, by host and process id."""

    database: Database
    run_id: int

    def is_at_work(self, host: str, pid: int) -> bool:
        """Whether a process has a worker with a recent heartbeat; True also if the store is unreachable."""
        try:
            with self.database.transaction() as tx:
                return workers.is_at_work(tx, self.run_id, host, pid, LEASE_SECONDS)
        except DatabaseUnavailable:
            return True

    def fence(self, host: str, pid: int) -> None:
        """Fence off a process: refuse its further writes, and free its place."""
        try:
            with self.database.transaction() as tx:
                workers.stop_process(tx, self.run_id, host, pid)
        except DatabaseUnavailable as error:
            logger.warning("%s; the leases of pid %d on %s will expire", error, pid, host)


def actors(config: RunConfig, processes: Sequence[Process], database: Database, run: runs.Run) -> list[Actor]:
    """Return processes as actors of the joined cluster, additional explorers last."""
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
    """Resources that a role requests on one node, by Ray's names.

    Args:
        has_gpus: whether the cluster has GPUs.
    """
    request: ResourcesConfig = getattr(config.ray, role)
    cpus, gpus = _defaults(config, role)
    if request.cpus is not None:
        cpus = request.cpus
    gpus = request.gpus if request.gpus is not None else gpus if has_gpus else 0
    needs = {"CPU": cpus, "GPU": gpus, **request.resources}
    return {name: amount for name, amount in needs.items() if amount}


def _defaults(config: RunConfig, role: str) -> tuple[float, float]:
    """Default number of cores and GPUs."""
    if role == "train":
        ranks = config.trainer.ranks or 1
        return ranks, ranks
    if role == "process":
        return (1, 1) if config.processors.has_teacher else (0, 0)
    return 1, config.explorer.engine.needed_gpus


def _threads(needs: dict[str, float]) -> str:
    return os.environ.get(cores.VARIABLE, str(max(1, int(needs.get("CPU", 1)))))


def passed_on(config: RunConfig) -> dict[str, str]:
    """Environment variables that a role on another node needs: store, home and API keys.

    They are passed to the actor directly, because Ray shows an actor's environment to everybody.
    """
    names = {*_named(config.model_dump(), "key_env")}
    variables = {
        name: value for name, value in os.environ.items() if name.startswith(PASSED_ON) or name in names
    }
    return variables | {"TRINITY_DB_HOME": str(home())}


def _named(content: Any, key: str) -> Iterator[str]:
    """Values of a key, wherever it occurs in a configuration."""
    if isinstance(content, dict):
        if isinstance(content.get(key), str):
            yield content[key]
        content = [*content.values()]
    if isinstance(content, list | tuple):
        for item in content:
            yield from _named(item, key)
