"""The processes of a run: one place for each role, filled again when its process has died.

A Crew starts the installed command, or a program in place of a role, and keeps what became of each process:
when it was started, how it ended, and whether that was our doing.
"""

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.acceptance.command import Ended, Process, Store

ROLES = ("explore", "explore", "process", "process", "train")
STOP_SECONDS = 60.0  # a step, a checkpoint, and the patience with a busy machine


@dataclass
class Member:
    """One process of the crew."""

    role: str
    store: Store
    """Through which it was started."""
    process: Process
    started_at: float
    """Seconds since the epoch."""
    killed: bool = False
    """By us."""
    frozen: bool = False
    replaced: bool = False
    """Another one has its place: it must end by itself."""
    gave_up: bool = False
    """It ended though it was not asked to."""
    ended: Ended | None = None

    @property
    def name(self) -> str:
        return f"{self.role} {self.process.pid}"

    @property
    def can_be_disturbed(self) -> bool:
        return self.process.running and not self.frozen and not self.replaced

    def kill(self) -> None:
        """End it as a power cut would."""
        self.killed = True
        self.process.signal(signal.SIGKILL)

    def freeze(self) -> None:
        """It takes no steps any more, and does not know."""
        self.frozen = True
        self.process.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on where it stood, as if no time had passed."""
        self.frozen = False
        self.process.signal(signal.SIGCONT)


@dataclass
class Crew:
    """The processes that work or worked on a run."""

    seats: list[tuple[str, Store]]
    """The role of each place, and the store through which its processes are started."""
    config: Path
    environment: dict[str, str]
    say: Callable[[str], None]
    programs: Mapping[str, Path] = field(default_factory=dict)
    """Scripts in place of the command, by role. Each gets the name of the run."""
    places: list[Member] = field(default_factory=list)
    """Who works now, by place."""
    members: list[Member] = field(default_factory=list)
    """All that ever did."""

    def start(self) -> None:
        """Fill every place."""
        self.places = [self._start(role, store) for role, store in self.seats]

    def refill(self) -> None:
        """Start another process in the place of each that has ended."""
        for place, member in enumerate(self.places):
            if not member.process.running:
                self._bury(member)
                self.places[place] = self._start(*self.seats[place])

    def replace(self, member: Member) -> Member:
        """Start another process in the place of one that is frozen."""
        member.replaced = True
        place = self.places.index(member)
        self.places[place] = self._start(*self.seats[place])
        return self.places[place]

    def candidates(self, role: str) -> list[Member]:
        """Those of a role that can be disturbed, by place."""
        return [member for member in self.places if member.role == role and member.can_be_disturbed]

    def stop(self) -> None:
        """Ask all processes to end, and wait until they have."""
        for member in self.places:
            member.process.signal(signal.SIGTERM)
        for member in self.members:
            if member.ended is None:
                member.ended = member.process.wait(STOP_SECONDS)

    def release(self) -> None:
        """Let the frozen hear the signal that ends them."""
        for member in self.members:
            if member.frozen:
                member.thaw()

    def _start(self, role: str, store: Store) -> Member:
        started_at = time.time()
        if role in self.programs:
            process = store.start_python(self.programs[role], self.config.stem, **self.environment)
        else:
            process = store.start(role, self.config, **self.environment)
        member = Member(role, store, process, started_at)
        self.members.append(member)
        self.say(f"started {member.name}")
        return member

    def _bury(self, member: Member) -> None:
        member.ended = member.process.wait()
        if not member.killed:
            member.gave_up = True
            self.say(f"{member.name} ended by itself, code {member.ended.code}: {last_line(member.ended)}")


def last_line(ended: Ended) -> str:
    """What a process said at its end."""
    lines = ended.stderr.strip().splitlines()
    return lines[-1] if lines else "it said nothing"
