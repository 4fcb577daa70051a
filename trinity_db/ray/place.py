"""What an actor does on its machine. Only its methods import ray: a cluster brings it along."""

import os
import socket
import threading
import time
from typing import NamedTuple

from trinity_db.process import Process

LOOK_SECONDS = 0.2  # between two looks at the process
THREADS = 3  # one waits for the process, one tells where it is, one passes signals on


class Whereabouts(NamedTuple):
    """Where a role runs."""

    host: str
    pid: int
    node: str
    """The machine's id in the cluster."""


class Place:
    """An actor: it starts a role as a child process, and tells how it ends.

    When the actor ends, its child finds that its supervisor is gone, and stops as after SIGTERM.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._is_started = threading.Event()

    def work(self) -> tuple[int, str]:
        """Run the role to its end; returns its exit code and its last words.

        Raises:
            OSError: it cannot be started on this machine.
        """
        node = os.getppid()
        self._process.start()
        self._is_started.set()
        while (code := self._process.code) is None:
            if os.getppid() != node:  # Ray's own process of this machine died; Ray ends its actors late then
                os._exit(1)
            time.sleep(LOOK_SECONDS)
        self._is_started.clear()  # for its next life
        return code, self._process.words

    def where(self) -> Whereabouts:
        """Where the role runs, once it is started."""
        import ray

        self._is_started.wait()
        node = str(ray.get_runtime_context().get_node_id())
        return Whereabouts(socket.gethostname(), self._process.pid, node)

    def end(self) -> None:
        """Ask the role to end."""
        if self._process.is_alive:
            self._process.end()

    def kill(self) -> None:
        """End the role at once."""
        if self._process.is_alive:
            self._process.kill()
