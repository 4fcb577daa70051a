"""A role that Ray gives a machine, as its supervisor looks after it."""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from trinity_db.errors import TrinityError
from trinity_db.process import Process
from trinity_db.ray import cluster
from trinity_db.ray.departures import Departures
from trinity_db.ray.place import THREADS, Place, Whereabouts

logger = logging.getLogger(__name__)

# Without it Ray kills the role as well when it ends the actor, as after the death of the driver. The role is
# to find that its supervisor is gone, and to give its leases back.
NO_KILL = {"RAY_kill_child_processes_on_worker_exit": "0"}
KILL_SECONDS = 1.0  # for a machine to hear that a role is to end at once
# For a role whose actor is gone to sign off: it gives back what it has, and a trainer writes a checkpoint.
GOODBYE_SECONDS = 60.0
LOST = -1  # the exit code of a role whose actor Ray has lost; its own is not known


class Register(Protocol):
    """What the store knows of roles that run elsewhere."""

    def is_at_work(self, host: str, pid: int) -> bool:
        """Whether a process has a worker that has not signed off and is heard."""

    def fence(self, host: str, pid: int) -> None:
        """Refuse what a process writes from now on, and free its place."""


class Actor:
    """One role of a run in a Ray cluster.

    It keeps its place on a machine from life to life, so that no other role takes the room meanwhile. If the
    machine is lost, it asks for another. Ray itself starts nothing again.

    Args:
        needs: what Ray is to keep for it on one machine, by Ray's names.
        place_seconds: how long it may wait for a machine before that is said.
        register: what the store knows of its processes. If Ray loses one, it is fenced: it may live on where
            Ray does not see it.
        departures: the machines that are to go. The role ends on such a machine, and begins elsewhere.
        first: the roles that the run needs more than this one. It asks for a machine while all of them have
            one, and gives way to them. None are first for a role that the run cannot begin without.
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
        for one in first:
            one._others.append(self)
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
        """Where it writes what it says."""
        return f"{self._place.host}:{self._process.log}" if self._place else str(self._process.log)

    @property
    def words(self) -> str:
        """The last line that it said, or how Ray lost it."""
        return self._ended[1] if self._ended else "it has not ended"

    @property
    def code(self) -> int | None:
        """Its exit code; None while it lives or waits for a machine.

        Raises:
            TrinityError: the run cannot begin, because no machine has room for it.
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
        if self._work is None:  # it was not asked for; code would do that now
            return False
        return self.code is None and self._work is not None  # code may withdraw it

    @property
    def is_waiting(self) -> bool:
        """Whether no machine has room for it."""
        return self._place is None and self._ended is None

    def start(self) -> None:
        """Begin a life of the role: where it was, or else on a machine that Ray gives it."""
        if self._is_to_move():
            self._remove()
        self._place = self._ended = self._work = self._lost_at = None
        self._gives_way = False
        self._waits_since = time.monotonic()
        if self._handle is not None or not self._must_give_way():
            self._ask()

    def end(self) -> None:
        """Ask the role to end. One that waits for a machine ends at once."""
        self._is_ending = True
        if self._handle is not None and _is_there(self._where):
            self._handle.end.remote()
        else:
            self._remove()

    def kill(self) -> None:
        """End the role at once. If its machine does not hear it, the next call gives it up."""
        import ray

        if self._handle is not None:
            ray.wait([self._handle.kill.remote()], timeout=KILL_SECONDS)  # this process may end at once
        if self._is_killed:
            self._remove()
        self._is_ending = self._is_killed = True

    def _ask(self) -> None:
        import ray

        if self._handle is None:
            rest = {name: amount for name, amount in self._needs.items() if name not in ("CPU", "GPU")}
            options = {
                "num_cpus": self._needs.get("CPU", 0),
                "num_gpus": self._needs.get("GPU", 0),
                "resources": rest,
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
            return  # the actor is gone, and _work says so too
        self._process.once = ()
        self._has_worked = True
        logger.info("%s runs on %s, pid %d", self.name, where.host, where.pid)

    def _wait(self) -> None:
        """Ask for a machine, or leave those there are to roles that come first; say that it takes long."""
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
        wanted = " and ".join(f"{amount:g} {name}" for name, amount in self._needs.items()) or "a machine"
        message = f"{self.name} needs {wanted}; {cluster.shortage(self._needs)}"
        if not self._first and not self._has_worked:
            raise TrinityError(f"{message}: add a machine, or let it ask for less (ray in the configuration)")
        last = next((one for one in reversed(self._others) if one.is_alive and not one.is_waiting), None)
        logger.warning("%s; %s", message, f"{last.name} gives way" if last else "it waits")
        if last is not None:
            last._give_way()

    def _must_give_way(self) -> bool:
        return any(one.is_waiting for one in self._first)

    def _give_way(self) -> None:
        """End this life, and leave the machine then."""
        self._gives_way = True
        self._handle.end.remote()

    def _is_to_move(self) -> bool:
        return self._place is not None and self._departures.has(self._place)

    def _result(self) -> tuple[int, str] | None:
        """How its life has ended. None: it had not begun, and is asked for again; or it is about to leave."""
        import ray

        try:
            code, words = ray.get(self._work)
        except ray.exceptions.RayTaskError as error:
            self._remove()  # another machine may do
            return 1, f"it cannot be started: {cluster.first_line(error.cause)}"
        except ray.exceptions.RayError as error:
            self._remove()
            if self._place is None and not self._is_ending and not getattr(error, "actor_init_failed", True):
                # Its machine went. Ray may choose that one again, as long as it does not know.
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
        """Whether a role whose actor is gone has signed off, or was fenced.

        It finds that its supervisor is gone, and stops as after SIGTERM. So nothing is lost if a machine ends
        in order, or only the actor dies. On a machine that Ray has given up it may work on, and is fenced.
        """
        self._lost_at = self._lost_at or time.monotonic()
        may_come = time.monotonic() - self._lost_at < GOODBYE_SECONDS and not cluster.is_cut_off(where.node)
        if may_come and self._register.is_at_work(where.host, where.pid):
            return False
        self._register.fence(where.host, where.pid)
        return True

    def _remove(self) -> None:
        """Free what Ray keeps for it."""
        import ray

        if self._handle is not None:
            ray.kill(self._handle)
            self._handle = None


def _is_there(answer: Any) -> bool:
    """Whether the answer of an actor is there, or it will never come."""
    import ray

    return bool(ray.wait([answer], timeout=0)[0])
