"""What is done to a run: kills, cut connections, restarts of the server, processes that freeze and go on.

What happens when, and to which process, is drawn from a seed before it begins (`plan`). The Driver plays the
plan on a crew and its server, and fills places that became empty. It waits for times of the plan, and for
conditions.
"""

import math
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import psycopg

from tests.acceptance.command import Store
from tests.chaos.crew import ROLES, Crew, Member
from tests.support.pooler import Pooler
from tests.support.processes import is_alive
from tests.support.waiting import WAIT_SECONDS, wait_until
from trinity_db.postgres.embedded.cluster import Cluster
from trinity_db.worker.service import LEASE_SECONDS

ROUND_SECONDS = 55  # a disturbance every three: about as long as a role takes to come back
TICK_SECONDS = 0.05
KILL_SECONDS = 10.0  # to find a process with something in hand; after that one is killed whatever it does
FREEZE_SECONDS = 45.0  # the same; after that none is frozen
ZOMBIE_SECONDS = (5.0, 15.0)  # for which a process stays frozen after its lease has ended
DOWN_SECONDS = 3.0  # at most, in a restart of the server, on top of what that takes by itself

# One round. Those that freeze for long come first, and the others go on meanwhile. The trainer comes last:
# while it is frozen the others have little to do.
FIRST = ("freeze explore", "freeze process")
THEN = (
    *("kill explore", "kill process", "kill train") * 2,
    *("cut one", "cut some", "cut all") * 2,
    *("restart fast", "restart immediate", "crash"),
)
LAST = ("freeze train",)
POOLER = ("pooler cut", "pooler cut", "pooler restart")  # where the roles connect through one
SHARES = {"one": 0.0, "all": 1.0}

IN_HAND = """
SELECT w.id,
       (SELECT count(*) FROM experience e WHERE e.worker_id = w.id)
       + (SELECT count(*) FROM rollout_group g WHERE g.worker_id = w.id)
       + (SELECT count(*) FROM batch b WHERE b.worker_id = w.id AND b.state = 'leased') AS held
FROM worker w WHERE w.pid = %(pid)s ORDER BY w.id DESC LIMIT 1
"""
GONE = "SELECT bool_and(w.stopped_at IS NOT NULL) AS is_gone FROM worker w WHERE w.pid = %(pid)s"
BACKENDS = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
ORDER BY backend_start
"""
AT_WORK = "SELECT pid FROM worker WHERE stopped_at IS NULL"
HELD_BY_THE_DEAD = "SELECT worker FROM lease_view WHERE NOT alive"
COMMITTED = "SELECT count(*) FROM batch WHERE state = 'committed'"


@dataclass(frozen=True)
class Disturbance:
    """One thing that will happen."""

    at: float
    """Seconds after the beginning, those that earlier disturbances take not counted."""
    what: str
    victim: int
    """A number from which the one among several candidates follows."""
    share: float
    """Of the connections, where some are cut; of the range, where something takes a drawn time."""


def plan(
    seed: int, seconds: float, more: Sequence[str] = (), roles: Collection[str] = ROLES
) -> list[Disturbance]:
    """What happens in so many seconds: whole rounds, each in an order of its own, until the time is over.

    Each round has `more` besides what every run goes through. Processes of other `roles` are left alone.
    """
    random, found = Random(seed), list[Disturbance]()
    for begin in range(0, math.ceil(seconds), ROUND_SECONDS):
        acts = [
            *random.sample(FIRST, len(FIRST)),
            *random.sample((*THEN, *more), len(THEN) + len(more)),
            *LAST,
        ]
        times = sorted(begin + ROUND_SECONDS * random.random() for _ in acts)
        found += [
            Disturbance(at, what, random.randrange(2**16), random.random())
            for at, what in zip(times, acts, strict=True)
        ]
    left_alone = {f"{act} {role}" for act in ("kill", "freeze") for role in ROLES if role not in roles}
    return [d for d in found if d.at < seconds and d.what not in left_alone]


@dataclass
class Zombie:
    """A process that is frozen until its lease has ended, and comes back then."""

    member: Member
    worker: int
    held: int
    """Rows, groups and batches that it had in hand."""
    until: float
    """When it may come back, on the monotonic clock."""
    woken_at: float | None = None
    """Seconds since the epoch."""


@dataclass
class Driver:
    """Plays a plan."""

    store: Store
    cluster: Cluster
    crew: Crew
    say: Callable[[str], None]
    pooler: Pooler | None = None
    """Through which the roles connect; None: they connect to the server itself."""
    count: Counter[str] = field(default_factory=Counter)
    frozen: list[Zombie] = field(default_factory=list)
    zombies: list[Zombie] = field(default_factory=list)
    """Those that came back."""

    def play(self, disturbances: Sequence[Disturbance]) -> None:
        """Do it all, keeping every place filled, until the last frozen process has come back."""
        began, coming, tick = time.monotonic(), deque(disturbances), threading.Event()
        while coming or self.frozen:
            if coming and time.monotonic() - began >= coming[0].at:
                disturbed_at = time.monotonic()
                self._disturb(coming.popleft())
                began += time.monotonic() - disturbed_at  # the plan's clock stands still meanwhile
            self._look_after_crew()
            tick.wait(TICK_SECONDS)

    def settle(self, num_batches: int) -> None:
        """Leave the run alone until it has committed so many more batches, and every process is at work.

        A process that starts takes a killed one for gone, and the next heartbeat of a rescuer gives back what
        that one held. If all are stopped before that, it stays held until the next start.
        """
        wanted = self._committed() + num_batches

        def done() -> bool:
            self.crew.refill()
            at_work = {row["pid"] for row in self._ask(AT_WORK)}
            wanted_at_work = {member.process.pid for member in self.crew.places}
            running = {member.process.pid for member in self.crew.members if member.process.running}
            is_whole = wanted_at_work <= at_work <= running and not self._ask(HELD_BY_THE_DEAD)
            return is_whole and self._committed() >= wanted

        wait_until(done, f"{num_batches} more batches, undisturbed, and all processes at work")

    def _disturb(self, disturbance: Disturbance) -> None:
        act, _, what = disturbance.what.partition(" ")
        match act:
            case "kill":
                self._kill(what, disturbance)
            case "freeze":
                self._freeze(what, disturbance)
            case "cut":
                self._cut(SHARES.get(what, disturbance.share), disturbance)
            case "crash":
                self._crash(disturbance)
            case "restart":
                self._restart(what, disturbance)
            case "pooler":
                self._disturb_pooler(what, disturbance)

    def _kill(self, role: str, disturbance: Disturbance) -> None:
        caught = self._catch(role, disturbance, KILL_SECONDS)
        member = caught.member if caught else self._choose(role, disturbance)
        if member is not None:
            member.kill()
            self._tell(f"kill {role}", f"killed {member.name}, {caught.held if caught else 0} rows in hand")

    def _cut(self, share: float, disturbance: Disturbance) -> None:
        """Cut connections: at least one, at most all."""
        backends = self._backends()
        chosen = Random(disturbance.victim).sample(backends, max(1, round(share * len(backends))))
        self._ask("SELECT pg_terminate_backend(pid) FROM unnest(%(pids)s::integer[]) AS pid", pids=chosen)
        self._tell("cut", f"cut {len(chosen)} of {len(backends)} connections", len(chosen))

    def _crash(self, disturbance: Disturbance) -> None:
        """Kill one of the server's processes; it disconnects all clients then, and recovers."""

        def kill() -> bool:
            backends = self._backends()
            try:
                os.kill(backends[disturbance.victim % len(backends)], signal.SIGKILL)
            except ProcessLookupError:  # its client has left since the server was asked
                return False
            return True

        self._await_work(disturbance)
        wait_until(kill, "a process of the server is killed")
        self._tell("crash", "killed a process of the server")

    def _restart(self, mode: str, disturbance: Disturbance) -> None:
        self._await_work(disturbance)
        server = int((self.cluster.data / "postmaster.pid").read_text().split()[0])
        os.kill(server, {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode])
        wait_until(lambda: not is_alive(server), "the server goes down")
        threading.Event().wait(disturbance.share * DOWN_SECONDS)
        self.cluster.ensure_running()
        self._tell("restart", f"restarted the server, {mode}")

    def _disturb_pooler(self, what: str, disturbance: Disturbance) -> None:
        """Take their connections from all clients; a restart also takes their place to connect to."""
        assert self.pooler is not None
        self._await_work(disturbance)
        if what == "cut":
            self._tell("pooler cut", f"cut {self.pooler.cut_clients()} clients' connections to the pooler")
        else:
            self.pooler.kill()
            threading.Event().wait(disturbance.share * DOWN_SECONDS)
            self.pooler.start()
            self._tell("pooler restart", "killed the pooler and started it again")

    def _freeze(self, role: str, disturbance: Disturbance) -> None:
        caught = self._catch(role, disturbance, FREEZE_SECONDS)
        if caught is None:
            self.say(f"no {role} was found with something in hand")
            return
        shortest, longest = ZOMBIE_SECONDS
        caught.until += LEASE_SECONDS + shortest + disturbance.share * (longest - shortest)
        self.frozen.append(caught)
        self._tell(f"freeze {role}", f"froze {caught.member.name}, {caught.held} rows in hand")

    def _catch(self, role: str, disturbance: Disturbance, seconds: float) -> Zombie | None:
        """Stop a process of a role at a moment when it has something in hand; None when there is none."""
        deadline, tick = time.monotonic() + seconds, threading.Event()
        while time.monotonic() < deadline:
            member = self._choose(role, disturbance)
            if member is not None:
                member.freeze()
                worker, held = self._in_hand(member)
                if held:
                    return Zombie(member, worker, held, time.monotonic())
                member.thaw()
            tick.wait(TICK_SECONDS)
            self._look_after_crew()
        return None

    def _await_work(self, disturbance: Disturbance) -> None:
        """Until a process of the first role has something in hand, if one comes to that."""
        caught = self._catch(self.crew.seats[0][0], disturbance, KILL_SECONDS)
        if caught is not None:
            caught.member.thaw()

    def _look_after_crew(self) -> None:
        """Fill empty places, and let those come back whose time is over and who hold nothing any more."""
        self.crew.refill()
        for zombie in list(self.frozen):
            member, overdue = zombie.member, time.monotonic() - zombie.until
            if overdue < 0:
                continue
            if member.role == "train" and not member.replaced:
                self.crew.replace(member)
            # It may hold nothing before another one has its place: its commit was on the way when it froze.
            has_lost_place = not member.replaced or self._ask(GONE, pid=member.process.pid)[0]["is_gone"]
            if self._in_hand(member)[1] == 0 and has_lost_place:
                self.frozen.remove(zombie)
                self._wake(zombie)
            else:
                started = max(place.started_at for place in self.crew.places if place.role == member.role)
                # A new trainer has to live until it takes the place of the frozen one.
                waited = min(overdue, time.time() - started) if member.role == "train" else overdue
                assert waited < WAIT_SECONDS, f"what {member.name} held is not given back"

    def _wake(self, zombie: Zombie) -> None:
        zombie.woken_at = time.time()
        zombie.member.thaw()
        self.zombies.append(zombie)
        self._tell("zombie", f"woke {zombie.member.name}")
        if zombie.member.replaced:
            wait_until(
                lambda: not zombie.member.process.running, f"{zombie.member.name} sees it was replaced"
            )

    def _choose(self, role: str, disturbance: Disturbance) -> Member | None:
        found = self.crew.candidates(role)
        return found[disturbance.victim % len(found)] if found else None

    def _in_hand(self, member: Member) -> tuple[int, int]:
        """A process's worker, and how much that has leased; 0, 0 before it has registered."""
        found = self._ask(IN_HAND, pid=member.process.pid)
        return (found[0]["id"], found[0]["held"]) if found else (0, 0)

    def _backends(self) -> list[int]:
        """The processes of the server that a client is connected to, as soon as there are any."""
        found: list[int] = []

        def connected() -> bool:
            self._look_after_crew()
            found[:] = [row["pid"] for row in self._ask(BACKENDS)]
            return bool(found)

        wait_until(connected, "a client is connected")
        return found

    def _committed(self) -> int:
        return int(self._ask(COMMITTED)[0]["count"])

    def _ask(self, statement: str, **values: Any) -> list[dict[str, Any]]:
        """What a statement finds, as soon as the server answers."""
        answers: list[list[dict[str, Any]]] = []

        def answered() -> bool:
            with suppress(psycopg.OperationalError):
                answers.append(self.store.rows(statement, **values))
            return bool(answers)

        wait_until(answered, statement)
        return answers[0]

    def _tell(self, kind: str, text: str, times: int = 1) -> None:
        self.count[kind] += times
        self.say(text)
