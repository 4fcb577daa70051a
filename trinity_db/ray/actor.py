"""A role that Ray schedules on a node, as seen by its supervisor."""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from trinity_db.errors import TrinityError
from trinity_db.ray import cluster
from trinity_db.ray.departures import Departures
from trinity_db.ray.place import THREADS, Place, Whereabouts
from trinity_db.worker.process import Process

logger = logging.getLogger(__name__)

# By default Ray also kills the role when the actor ends, such as after the driver dies. The role should
# notice that its supervisor is gone, and release its leases.
NO_KILL = {"RAY_kill_child_processes_on_worker_exit": "0"}
KILL_SECONDS = 1.0  # for a node to receive a kill
# For a role whose actor is gone to sign off: it releases its claims, and a trainer writes a checkpoint.
GOODBYE_SECONDS = 60.0
LOST = -1  # exit code of a role whose actor Ray has lost; the real one is unknown


class Register(Protocol):
    """Access to the store's records of roles on other nodes."""

    def is_at_work(self, host: str, pid: int) -> bool:
        """Whether a process has a live worker that has not signed off."""

    def fence(self, host: str, pid: int) -> None:
        """Fence off a process: reject its further writes, and release its claims."""


class Actor:
    """One role of a run in a Ray cluster.

    It keeps its resources on a node across restarts, so that no other role takes them. If the node is lost,
    it requests another one. Ray itself restarts nothing.

    Args:
        needs: resources to reserve for it on one node, by Ray's names.
        place_seconds: how long it may wait for a node before this is reported.
        register: the store's records of its processes. A process that Ray loses is fenced off: it may still
            be running where Ray cannot see it.
        departures: nodes that are about to leave. The role is stopped on such a node, and restarted
            elsewhere.
        first: roles with higher priority. This role requests a node only while all of them have one, and is
            stopped for them if needed. Empty for a role that the run cannot start without.
    """

    def __init__(
        self,
        process: Process,
        needs: Mapping[str, float],
        place_seconds: float,
        register: Register,
        departures: Departures,
        first: Sequence["Actor"] = (),
    ) -> None:
        self.name = process.name
        self._process = process
        self._needs = needs
        self._place_seconds = place_seconds
        self._register = register
        self._departures = departures
        self._first = first
        self._others: list[Actor] = []
        for actor in first:
            actor._others.append(self)
        self._handle: Any = None
        self._work: Any = None
        self._where: Any = None
        self._place: Whereabouts | None = None
        self._ended: tuple[int, str] | None = None
        self._has_worked = self._gives_way = self._is_ending = self._is_killed = False
        self._waits_since = 0.0
        self._lost_at: float | None = None

    @property
    def log(self) -> str:
        """Path of its log."""
        return f"{self._place.host}:{self._process.log}" if self._place else str(self._process.log)

    @property
    def words(self) -> str:
        """Last line of its output, or how Ray lost it."""
        return self._ended[1] if self._ended else "it is still running"

    @property
    def code(self) -> int | None:
        """Exit code; None while it is running or waiting for a node.

        Raises:
            TrinityError: if the run cannot start, because no node has room for it.
        """
        if self._ended is None:
            if self._place is None and not self._is_ending:
                self._look_for_place()
            if self._work is not None and _is_there(self._work):
                self._ended = self._result()
            elif self._is_to_move() and not self._gives_way and not self._is_ending:
                self._give_way()
        return self._ended[0] if self._ended else None

    @property
    def is_alive(self) -> bool:
        """Whether it was started and has not ended."""
        if self._work is None:  # not requested; reading `code` would do so now
            return False
        return self.code is None and self._work is not None  # reading `code` may withdraw the request

    @property
    def is_waiting(self) -> bool:
        """Whether it is waiting for a node with room for it."""
        return self._place is None and self._ended is None

    def start(self) -> None:
        """Start or restart the role: on its node, or else on a node selected by Ray."""
        if self._is_to_move():
            self._remove()
        self._place = self._ended = self._work = self._lost_at = None
        self._gives_way = False
        self._waits_since = time.monotonic()
        if self._handle is not None or not self._must_give_way():
            self._ask()

    def end(self) -> None:
        """Ask the role to stop. A role that is waiting for a node ends at once."""
        self._is_ending = True
        if self._handle is not None and _is_there(self._where):
            self._handle.end.remote()
        else:
            self._remove()

    def kill(self) -> None:
        """Kill the role. If its node does not respond, the next call gives the actor up."""
        import ray

        if self._handle is not None:
            ray.wait([self._handle.kill.remote()], timeout=KILL_SECONDS)  # our process may exit right after
        if self._is_killed:
            self._remove()
        self._is_ending = self._is_killed = True

    def _ask(self) -> None:
        import ray

        if self._handle is None:
            custom = {name: amount for name, amount in self._needs.items() if name not in ("CPU", "GPU")}
            options = {
                "num_cpus": self._needs.get("CPU", 0),
                "num_gpus": self._needs.get("GPU", 0),
                "resources": custom,
                "max_concurrency": THREADS,
                "scheduling_strategy": "SPREAD",
                "runtime_env": {"env_vars": NO_KILL},
            }
            self._handle = ray.remote(Place).options(**options).remote(self._process)
        self._work, self._where = self._handle.work.remote(), self._handle.where.remote()

    def _look_for_place(self) -> None:
        import ray

        if self._work is None or not _is_there(self._where):
            self._wait()
            return
        try:
            self._place = where = ray.get(self._where)
        except ray.exceptions.RayError:
            return  # the actor is gone, and _work reports it too
        self._process.once = ()
        self._has_worked = True
        logger.info("%s runs on %s, pid %d", self.name, where.host, where.pid)

    def _wait(self) -> None:
        """Request a node, or leave nodes to roles with higher priority; warn if it takes long."""
        if self._must_give_way():
            if self._work is not None:
                self._remove()
                self._work = None
            return
        if self._work is None:
            self._ask()
        if time.monotonic() - self._waits_since < self._place_seconds:
            return
        self._waits_since = time.monotonic()
        request = " and ".join(f"{amount:g} {name}" for name, amount in self._needs.items()) or "a machine"
        message = f"{self.name} needs {request}; {cluster.shortage(self._needs)}"
        if not self._first and not self._has_worked:
            raise TrinityError(f"{message}: add a machine, or lower its request (ray in the configuration)")
        last = next(
            (actor for actor in reversed(self._others) if actor.is_alive and not actor.is_waiting), None
        )
        logger.warning("%s; %s", message, f"stopping {last.name} for it" if last else "it waits")
        if last is not None:
            last._give_way()

    def _must_give_way(self) -> bool:
        return any(actor.is_waiting for actor in self._first)

    def _give_way(self) -> None:
        """Stop the role, and then release its node."""
        self._gives_way = True
        self._handle.end.remote()

    def _is_to_move(self) -> bool:
        return self._place is not None and self._departures.has(self._place)

    def _result(self) -> tuple[int, str] | None:
        """Return exit code and last words. None: not started, and requested again; or about to sign off."""
        import ray

        try:
            code, words = ray.get(self._work)
        except ray.exceptions.RayTaskError as error:
            self._remove()  # another node may work
            return 1, f"it cannot be started: {cluster.first_line(error.cause)}"
        except ray.exceptions.RayError as error:
            self._remove()
            if self._place is None and not self._is_ending and not getattr(error, "actor_init_failed", True):
                # Its node was lost. Ray may select the same one again until it notices.
                self._work = None
                return None
            if self._place is not None and not self._is_killed and not self._has_left(self._place):
                return None
            host = f" on {self._place.host}" if self._place else ""
            *_, reason = str(error).strip().splitlines() or [type(error).__name__]
            return LOST, f"Ray has lost it{host}: {reason.strip()}"
        if self._gives_way:
            self._remove()
        return int(code), str(words)

    def _has_left(self, where: Whereabouts) -> bool:
        """Whether a role whose actor is gone has signed off, or was fenced off.

        It notices that its supervisor is gone, and stops as after SIGTERM. So nothing is lost if a node shuts
        down cleanly, or only the actor dies. On a node that Ray has given up it may keep running, and is
        fenced off.
        """
        self._lost_at = self._lost_at or time.monotonic()
        may_come = time.monotonic() - self._lost_at < GOODBYE_SECONDS and not cluster.is_cut_off(where.node)
        if may_come and self._register.is_at_work(where.host, where.pid):
            return False
        self._register.fence(where.host, where.pid)
        return True

    def _remove(self) -> None:
        """Release the resources that Ray reserves for it."""
        import ray

        if self._handle is not None:
            ray.kill(self._handle)
            self._handle = None


def _is_there(answer: Any) -> bool:
    """Whether an actor's result is available, or will never be."""
    import ray

    return bool(ray.wait([answer], timeout=0)[0])
