"""A Ray cluster of several nodes on this machine, and a store beside it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster

from tests.acceptance.command import Store, new_store, reversals

BYTES = 80 << 20  # of each node's object store, which nothing of ours goes through
# A machine that does not answer is given up after 5 s rather than 30.
HEALTH = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
}


class Machines:
    """The cluster. Its head takes no roles."""

    def __init__(self) -> None:
        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "include_dashboard": False,
                "object_store_memory": BYTES,
                "_system_config": HEALTH,
            },
        )
        self._ids: dict[int, str] = {}
        """Of the nodes that were added, by the number of their hearts."""

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, cpus: int, **resources: float) -> int:
        """Add a machine; returns the number of the process that is its heart."""
        node: Any = self._cluster.add_node(num_cpus=cpus, resources=resources, object_store_memory=BYTES)
        (raylet,) = node.all_processes["raylet"]
        heart = int(raylet.process.pid)
        self._ids[heart] = str(node.node_id)
        return heart

    def drain(self, heart: int, seconds: int) -> None:
        """Let Ray know that a machine will go, as the operators of spot machines do."""
        ray = str(Path(sys.executable).with_name("ray"))
        command = [ray, "drain-node", "--address", self.address]
        which = ["--node-id", self._ids[heart], "--deadline-remaining-seconds", str(seconds)]
        why = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "a spot machine"]
        subprocess.run([*command, *which, *why], check=True)

    def close(self) -> None:
        self._cluster.shutdown()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def machine_of(role: int) -> int:
    """The heart of the machine that a role's process is on: it started an actor, which started the role."""
    return parent(parent(role))


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    machines = Machines()
    yield machines
    machines.close()


@pytest.fixture(scope="module")
def store(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with new_store(server, template, tmp_path_factory.mktemp("ray")) as store:
        store.import_rows("reverse", "tasks", reversals(2))
        yield store
