"""Samplers: which of the groups that may be drawn a draw takes.

Each of these is one statement that sees one snapshot; `store.draws` leases what it found. `store.choices`
has those that choose by what groups are. The two that draw by chance pick groups one after the other, each in
proportion to its weight among those that are left, and say how likely each was: 1 - exp(-weight * key), where
key is that of the first group that was left out. Given the keys of all others this is the chance to be drawn,
so that sums over a batch with one through it as factor are unbiased for the store (Cohen and Kaplan,
"Summarizing data using bottom-k sketches", PODC 2007).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

from psycopg.rows import DictRow

from trinity_db.database import Transaction
from trinity_db.schema.queries import query

LOWEST_OCTAVE = -60  # of priority 0 alone, which weighs nothing where priorities count

# How many groups a cell may hold, half of it at least, and how many places it has for them. In wider
# cells a larger share of the places is taken. So a draw needs fewer probes, but each probe reads more entries
# of the index. These numbers cost least, whether the index is in memory or not.
CROWD, PLACES = 16, 62

# An octave with no more groups than this is read as a whole. Of a larger one as many are read to choose the
# width of its cells: then a cell holds more groups than its places with a chance of 1e-13.
MIN_FEW = 64
FEW_PER_GROUP = 4
ALL = 2**62

# One probe in four to twelve hits a group. The second number is for groups that outweigh the others by far
# and are hit again and again. Where it is not enough either, all groups are read.
PROBES_PER_GROUP = (14, 240)


@dataclass(frozen=True)
class Limits:
    """What may be drawn, how much of it, and whose chance it is."""

    run_id: int
    step: int
    seed: int
    size: int
    """In groups."""
    version: int
    """What staleness is counted from."""
    max_staleness: int | None


@dataclass(frozen=True)
class Picked:
    """What was found, and how it can be found again."""

    texts: Sequence[str]
    """The statements, as they were sent."""
    parameters: Mapping[str, Any]
    """What the statements were given and what was chosen beside the limits."""
    members: Sequence[DictRow]
    """Of whole groups, in the order of their ids: id, group_id, reward, staleness, probability, snapshot.
    Those of fewer groups than were asked for when there are no more."""
    weights: Sequence[float]
    """Each member's share in the loss."""
    snapshot: str | None
    """What the statement that chose the groups saw, a pg_snapshot; None where it found nothing."""
    missing: Mapping[str, int] = field(default_factory=dict)
    """By part, how many groups the draw lacks although enough groups may be drawn."""


class Picks(Protocol):
    """A rule by which a draw chooses among the groups that may be drawn."""

    @property
    def name(self) -> str:
        """Recorded with the batch."""

    def pick(self, tx: Transaction, limits: Limits) -> Picked:
        """Find groups and their members; nothing is locked or changed."""


@dataclass(frozen=True)
class Sampler:
    """How groups are picked: the oldest, the newest, by even chance, or by one that follows priorities."""

    name: Literal["fifo", "newest", "uniform", "prioritized"] = "fifo"
    alpha: float = 0.0
    """A group's weight is its priority to this power."""
    beta: float = 0.0
    """How far the loss makes up for unequal chances: not at all (0) or wholly (1)."""

    def pick(self, tx: Transaction, limits: Limits) -> Picked:
        """Find the groups; nothing is locked or changed."""
        if self.name in ("fifo", "newest"):
            name = "draw_groups" if self.name == "fifo" else "draw_newest"
            text = query(name)
            members = tx.execute(text, asdict(limits)).fetchall()
            return Picked([text], {}, members, [1.0] * len(members), _snapshot(members))
        text, lowest = query("draw_by_chance"), LOWEST_OCTAVE + (self.name == "prioritized")
        for effort in _efforts(limits.size):
            parameters = {"lowest": lowest, "alpha": self.alpha, "crowd": CROWD, "places": PLACES, **effort}
            rows = tx.execute(text, asdict(limits) | parameters).fetchall()
            if rows[0]["is_decided"]:
                break
        members = [row for row in rows if row["id"] is not None]
        weights = self._weights([member["probability"] for member in members])
        return Picked([text], parameters | {"beta": self.beta}, members, weights, _snapshot(members))

    def _weights(self, probabilities: Sequence[float]) -> list[float]:
        """Each row's share in the loss; at most 1, and 1 for the least likely."""
        if self.name != "prioritized" or not probabilities:
            return [1.0] * len(probabilities)
        least = min(probabilities)
        return [float((least / probability) ** self.beta) for probability in probabilities]


FIFO = Sampler()


def _snapshot(members: Sequence[DictRow]) -> str | None:
    return members[0]["snapshot"] if members else None


def _efforts(size: int) -> Iterator[dict[str, int]]:
    few = max(MIN_FEW, FEW_PER_GROUP * size)
    for probes in PROBES_PER_GROUP:
        yield {"few": few, "probes": probes * (size + 1)}
    yield {"few": ALL, "probes": 0}
