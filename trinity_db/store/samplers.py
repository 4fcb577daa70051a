"""Samplers: choose which groups a draw takes.

Each sampler here is one statement with one snapshot; `store.draws` leases the result. Samplers that choose by
properties of groups are in `store.choices`. Two samplers are random: they pick groups one after the other,
with probability proportional to weight among the remaining groups. A group's inclusion probability is 1 -
exp(-weight * key), where key is that of the first group left out. Given the keys of all other groups this is
exact, so sums over a batch weighted by its inverse are unbiased estimates for the store (Cohen and Kaplan,
"Summarizing data using bottom-k sketches", PODC 2007).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

from psycopg.rows import DictRow

from trinity_db.postgres.connection import Transaction
from trinity_db.schema.queries import query

LOWEST_OCTAVE = -60  # only for priority 0, whose weight is 0 in the prioritized sampler

# Maximum number of groups in a cell (at least half of it is used), and the number of places in a cell. Wider
# cells fill a larger share of their places, so a draw needs fewer probes, but each probe reads more index
# entries. These numbers are the cheapest, with the index in memory or not.
CROWD, PLACES = 16, 62

# An octave with at most this many groups is read completely. Of a larger one this many groups are read to
# choose the width of its cells: a cell then has more groups than places with a probability of 1e-13.
MIN_FEW = 64
FEW_PER_GROUP = 4
ALL = 2**62

# One probe in four to twelve hits a group. The second number is for groups that far outweigh the others and
# are hit repeatedly. If it is not enough either, all groups are read.
PROBES_PER_GROUP = (14, 240)


@dataclass(frozen=True)
class DrawLimits:
    """Groups that may be drawn, the number to draw, and the seed."""

    run_id: int
    step: int
    seed: int
    size: int
    """Number of groups."""
    version: int
    """Latest published version."""
    versions_ahead: int
    """Publications from `version` to the version that the step's weights are or will be."""
    max_staleness: int | None


@dataclass(frozen=True)
class Picked:
    """Result of a sampler, with what is needed to rerun it."""

    texts: Sequence[str]
    """The statements as sent."""
    parameters: Mapping[str, Any]
    """Parameters of the statements and choices, in addition to the limits."""
    members: Sequence[DictRow]
    """Rows of complete groups in order of id: id, group_id, reward, staleness, probability, snapshot. Fewer
    groups than requested if there are not enough."""
    weights: Sequence[float]
    """Weight of each member in the loss."""
    snapshot: str | None
    """The pg_snapshot of the statement that chose the groups; None if it found nothing."""
    missing: Mapping[str, int] = field(default_factory=dict)
    """Number of groups missing per part, although enough groups may be drawn."""


class Picks(Protocol):
    """Rule for choosing among the groups that may be drawn."""

    @property
    def name(self) -> str:
        """Name recorded with the batch."""

    def pick(self, tx: Transaction, limits: DrawLimits) -> Picked:
        """Choose groups and read their members; nothing is locked or changed."""


@dataclass(frozen=True)
class Sampler:
    """Picks groups: the oldest, the newest, uniformly at random, or at random weighted by priority."""

    name: Literal["fifo", "newest", "uniform", "prioritized"] = "fifo"
    alpha: float = 0.0
    """Exponent: a group's weight is its priority to this power."""
    beta: float = 0.0
    """Correction of unequal probabilities in the loss, from 0 (none) to 1 (full)."""

    def pick(self, tx: Transaction, limits: DrawLimits) -> Picked:
        """Choose the groups; nothing is locked or changed."""
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
        """Loss weight of each row; at most 1, and 1 for the least likely one."""
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
