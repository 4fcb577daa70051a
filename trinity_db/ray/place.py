"""The actor that runs on a node. Only its methods import ray, which is available on any node."""

import os
import socket
import threading
import time
from typing import NamedTuple

from trinity_db.worker.process import Process

LOOK_SECONDS = 0.2  # between checks of the process
THREADS = 3  # for waiting for the process, for its location, and for signals


class Whereabouts(NamedTuple):
    """Location of a role."""

    host: str
    pid: int
    node: str
    """Node id in the cluster."""


class Place:
    """An actor that starts a role as a child process, and returns how it ends.

    When the actor ends, its child notices that its supervisor is gone, and stops as after SIGTERM.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._is_started = threading.Event()

    def work(self) -> tuple[int, str]:
        """Run the role to its end, and return its exit code and last words.

        Raises:
            OSError: if it cannot be started on this node.
        """
        node = os.getppid()
        self._process.start()
        self._is_started.set()
        while (code := self._process.code) is None:
            if os.getppid() != node:  # the node's raylet died; Ray stops its actors only later
                os._exit(1)
            time.sleep(LOOK_SECONDS)
        self._is_started.clear()  # for the next start
        return code, self._process.words

    def where(self) -> Whereabouts:
        """Return where the role runs, once it is started."""
        import ray

        self._is_started.wait()
        node = str(ray.get_runtime_context().get_node_id())
        return Whereabouts(socket.gethostname(), self._process.pid, node)

    def end(self) -> None:
        """Ask the role to stop."""
        if self._process.is_alive:
            self._process.end()

    def kill(self) -> None:
        """Kill the role."""
        if self._process.is_alive:
            self._process.kill()
