"""Samplers: which of the groups that may be drawn a draw takes.

Each is one statement that sees one snapshot; `store.batches` leases what it found. The two that draw by
chance pick groups one after the other, each in proportion to its weight among those that are left, and say
how likely each was: 1 - exp(-weight * key), where key is that of the first group that was left out. Given the
keys of all others this is the chance to be drawn, so that sums over a batch with one through it as factor
are unbiased for the store (Cohen and Kaplan, "Summarizing data using bottom-k sketches", PODC 2007).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from psycopg.rows import DictRow

from trinity_db.database import Transaction
from trinity_db.schema.queries import query

LOWEST_OCTAVE = -60  # of priority 0 alone, which weighs nothing where priorities count

# How many groups a cell may hold, half of it at least, and how many places it has for them. The wider the
# cells, the larger the share of places that are taken, and the fewer probes it takes, each of which reads
# more entries of the index: these numbers cost least, where the index is in memory and where it is not.
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
class Sampler:
    """How groups are picked: the oldest, the newest, by even chance, or by one that follows priorities."""

    name: Literal["fifo", "newest", "uniform", "prioritized"] = "fifo"
    alpha: float = 0.0
    """A group's weight is its priority to this power."""
    beta: float = 0.0
    """How far the loss makes up for unequal chances: not at all (0) or wholly (1)."""


FIFO = Sampler()


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

    query: str
    """Name of the statement."""
    parameters: Mapping[str, float]
    """What the statement was given beside the limits."""
    members: Sequence[DictRow]
    """Of whole groups, in the order of their ids: id, group_id, reward, staleness, probability, snapshot.
    Those of fewer groups than were asked for when there are no more."""


def pick(tx: Transaction, sampler: Sampler, limits: Limits) -> Picked:
    """Find the groups; nothing is locked or changed."""
    if sampler.name in ("fifo", "newest"):
        name = "draw_groups" if sampler.name == "fifo" else "draw_newest"
        return Picked(name, {}, tx.execute(query(name), asdict(limits)).fetchall())
    lowest = LOWEST_OCTAVE + (sampler.name == "prioritized")
    for effort in _efforts(limits.size):
        parameters = {"lowest": lowest, "alpha": sampler.alpha, "crowd": CROWD, "places": PLACES, **effort}
        rows = tx.execute(query("draw_by_chance"), asdict(limits) | parameters).fetchall()
        if rows[0]["is_decided"]:
            break
    members = [row for row in rows if row["id"] is not None]
    return Picked("draw_by_chance", parameters | {"beta": sampler.beta}, members)


def weights(sampler: Sampler, probabilities: Sequence[Any]) -> list[float]:
    """Each row's share in the loss; at most 1, and 1 for the least likely."""
    if sampler.name != "prioritized" or not probabilities:
        return [1.0] * len(probabilities)
    least = min(probabilities)
    return [float((least / probability) ** sampler.beta) for probability in probabilities]


def _efforts(size: int) -> Iterator[dict[str, int]]:
    few = max(MIN_FEW, FEW_PER_GROUP * size)
    for probes in PROBES_PER_GROUP:
        yield {"few": few, "probes": probes * (size + 1)}
    yield {"few": ALL, "probes": 0}
