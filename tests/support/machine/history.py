"""The model of what every run has, in plain Python: versions and batches, which uses count and which do not.

It knows no SQL and no clock. Everything has the id it has in the store; dictionaries are in the order of ids.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from trinity_db.errors import LeaseLost
from trinity_db.store import policies

Name = tuple[int, int, int]
"""Of a rollout: group, member, attempt."""
Numbers = tuple[float | None, float | None, int | None]
"""Reward, advantage and staleness, as a batch records them of a row."""
Table = dict[Any, tuple[Any, ...]]


@dataclass
class Row:
    """What is used: an experience, or a pair."""

    id: int
    state: str = "ready"
    holder: int | None = None
    attempt: int = 0
    uses: int = 0
    oldest: int | None = None
    newest: int | None = None
    rollout: Name | None = None
    response: str = ""
    data: bytes = b""
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def reward(self) -> float | None:
        """The sum of the latest event of each name."""
        return math.fsum(self.parts.values()) if self.parts else None


@dataclass
class Group:
    """The attempts at one task."""

    task: int
    expected: int
    holder: int | None
    attempt: int = 1
    state: str = "open"
    uses: int = 0
    oldest: int | None = None
    newest: int | None = None
    members: dict[int, Row | None] = field(default_factory=dict)
    """By ordinal; None: it failed for good."""

    def take(self, member: int, row: Row | None) -> None:
        """A member arrived; the last one completes the group and ends the lease."""
        self.members[member] = row
        if row is not None and row.oldest is not None:
            self.oldest = row.oldest if self.oldest is None else min(self.oldest, row.oldest)
        if row is not None and row.newest is not None:
            self.newest = row.newest if self.newest is None else max(self.newest, row.newest)
        if len(self.members) == self.expected:
            self.state, self.holder = "complete", None

    def rows(self, *states: str) -> list[Row]:
        """Members in one of these states."""
        return [row for row in self.members.values() if row is not None and row.state in states]


@dataclass
class Batch:
    """One draw, with what is recorded of each row."""

    step: int
    worker: int
    version: int
    rows: list[Row]
    numbers: list[Numbers]
    groups: list[Group] = field(default_factory=list)
    state: str = "leased"
    included: int | None = None


@dataclass
class Version:
    """A published version."""

    step: int
    digest: str
    parent: int | None = None
    has_checkpoint: bool = True
    is_withdrawn: bool = False


class History:
    """Versions and batches: which uses count, and which are taken back."""

    def __init__(self, max_uses: int, rows: Iterable[int] = ()) -> None:
        self.max_uses = max_uses
        self.rows = {row: Row(row) for row in rows}
        self.batches: dict[int, Batch] = {}
        self.versions = {0: Version(0, "hash 0")}

    def with_checkpoint(self) -> list[int]:
        """Versions that can be loaded, newest first."""
        return sorted((k for k, v in self.versions.items() if v.has_checkpoint), reverse=True)

    def distance(self, one: int, other: int) -> int:
        """The publications between two versions: up from each to the nearest that both come from."""
        lines = [self._line(one), self._line(other)]
        return min(up + lines[1].index(at) for up, at in enumerate(lines[0]) if at in lines[1])

    def _line(self, version: int) -> list[int]:
        """A version, the one that it was trained from, and so on to version 0."""
        parent = self.versions[version].parent
        return [version] if parent is None else [version, *self._line(parent)]

    def steps(self, version: int | None = None) -> list[int]:
        """The steps that are committed, or those that a version includes."""
        done = [batch for batch in self.batches.values() if batch.state == "committed"]
        if version is not None:
            done = [batch for batch in done if batch.included is not None and batch.included <= version]
        return sorted(batch.step for batch in done)

    def lease(self, batch_id: int, batch: Batch) -> None:
        self.batches[batch_id] = batch
        for row in batch.rows:
            row.state, row.holder, row.attempt = "leased", batch.worker, row.attempt + 1
        for group in batch.groups:
            group.state, group.holder = "leased", batch.worker

    def commit(self, batch_id: int, worker: int) -> bool:
        batch = self.batches[batch_id]
        if batch.state == "committed":
            return False
        if batch.state == "reopened" or batch.worker != worker:
            raise LeaseLost("reopened, or another trainer's")
        batch.state = "committed"
        for row in batch.rows:
            row.uses += 1
            row.state, row.holder = "ready" if row.uses < self.max_uses else "trained", None
        for group in batch.groups:
            group.uses += 1
            group.state, group.holder = "ready" if group.uses < self.max_uses else "trained", None
        return True

    def publish(self, policy: policies.PolicyVersion, worker: int, keep: int) -> None:
        known = self.versions.get(policy.version)
        if known is not None:
            if known.digest != policy.checkpoint_hash:
                raise LeaseLost("the version is another trainer's")
            return
        done = [batch for batch in self.batches.values() if batch.state == "committed"]
        if not any(batch.step == policy.step and batch.worker == worker for batch in done):
            raise LeaseLost("its last step was reopened")
        parent = max(number for number, version in self.versions.items() if not version.is_withdrawn)
        self.versions[policy.version] = Version(policy.step, policy.checkpoint_hash, parent)
        for batch in done:
            if batch.included is None and batch.step <= policy.step:
                batch.included = policy.version
        for old in [version for version in self.with_checkpoint() if version > 0][keep:]:
            self.versions[old].has_checkpoint = False

    def reopen(self, version: int) -> int:
        """Give back what the checkpoint of a version does not include; later versions are withdrawn."""
        for number, later in self.versions.items():
            later.has_checkpoint &= number <= version
            later.is_withdrawn |= number > version
        live = (batch for batch in self.batches.values() if batch.state != "reopened")
        return self._reopen([b for b in live if b.included is None or b.included > version])

    def reopen_leased(self, step: int, worker: int) -> None:
        """Give back what the worker drew for a step and does not know of."""
        found = (batch for batch in self.batches.values() if batch.state == "leased")
        self._reopen([batch for batch in found if (batch.step, batch.worker) == (step, worker)])

    def tables(self) -> dict[str, Table]:
        return {
            "versions": {
                k: (v.step, v.digest, v.has_checkpoint, v.is_withdrawn) for k, v in self.versions.items()
            },
            "batches": {
                k: (b.step, b.state, b.worker, b.version, b.included) for k, b in self.batches.items()
            },
            "items": {
                (key, ordinal): (row.id, *numbers)
                for key, batch in self.batches.items()
                for ordinal, (row, numbers) in enumerate(zip(batch.rows, batch.numbers, strict=True))
            },
            "leases": {k: (r.state, r.holder, r.attempt, r.uses) for k, r in self.rows.items()},
        }

    def _reopen(self, chosen: list[Batch]) -> int:
        for batch in chosen:
            leased: list[Row | Group] = [*batch.rows, *batch.groups]
            for used in leased:
                used.uses -= batch.state == "committed"
                used.holder = None
                if used.state in ("leased", "trained"):
                    used.state = "ready"
            batch.state, batch.included = "reopened", None
        return len(chosen)
