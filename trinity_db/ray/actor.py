"""A role that Ray gives a machine, as its supervisor looks after it."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trinity_db.errors import TrinityError
from trinity_db.process import Process
from trinity_db.ray import cluster
from trinity_db.ray.place import THREADS, Place

logger = logging.getLogger(__name__)

# Without it Ray kills the role as well when it ends the actor, as after the death of the driver. The role is
# to find that its supervisor is gone, and to give its leases back.
NO_KILL = {"RAY_kill_child_processes_on_worker_exit": "0"}
KILL_SECONDS = 1.0  # for a machine to hear that a role is to end at once
LOST = -1  # the exit code of a role whose actor Ray has lost; its own is not known


class Actor:
    """One role of a run in a Ray cluster.

    It keeps its place on a machine from life to life, so that no other role takes the room meanwhile. If the
    machine is lost, it asks for another. Ray itself starts nothing again.

    Args:
        needs: what Ray is to keep for it on one machine, by Ray's names.
        place_seconds: how long it may wait for a machine before that is said.
        fence: called with host and process id when Ray has lost it. The process may live on where Ray does
            not see it.
        first: the roles that the run needs more than this one. It asks for a machine while all of them have
            one, and gives way to them. None are first for a role that the run cannot begin without.
    """

    def __init__(
        self,
        process: Process,
        needs: Mapping[str, float],
        place_seconds: float,
        fence: Callable[[str, int], None],
        first: Sequence["Actor"] = (),
    ) -> None:
        self.name = process.name
        self._process = process
        self._needs = needs
        self._place_seconds = place_seconds
        self._fence = fence
        self._first = first
        self._others: list[Actor] = []
        for one in first:
            one._others.append(self)
        self._handle: Any = None
        self._work: Any = None
        self._where: Any = None
        self._place: tuple[str, int] | None = None
        self._ended: tuple[int, str] | None = None
        self._has_worked = self._gives_way = self._is_ending = self._is_killed = False
        self._waits_since = 0.0

    @property
    def log(self) -> str:
        """Where it writes what it says."""
        return f"{self._place[0]}:{self._process.log}" if self._place else str(self._process.log)

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
        self._place = self._ended = self._work = None
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
            self._place = ray.get(self._where)
        except ray.exceptions.RayError:
            return  # the actor is gone, and _work says so too
        self._process.once = ()
        self._has_worked = True
        logger.info("%s runs on %s, pid %d", self.name, *self._place)

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

    def _result(self) -> tuple[int, str] | None:
        """How its life has ended. None: it had not begun, and is asked for again."""
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
            if self._place is not None and not self._is_ending:
                self._fence(*self._place)
            host = f" on {self._place[0]}" if self._place else ""
            *_, reason = str(error).strip().splitlines() or [type(error).__name__]
            return LOST, f"Ray has lost it{host}: {reason.strip()}"
        if self._gives_way:
            self._gives_way = False
            self._remove()
        return int(code), str(words)

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
