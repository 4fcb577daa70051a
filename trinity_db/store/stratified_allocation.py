"""Stratified allocation: how many groups of each part a batch takes, and which.

In a batch of `size`, each part gets its share rounded down or up. Which parts are rounded up follows from the
step and multiples of the golden ratio, which spread evenly: over n steps a part gets its share up to a few
groups, without randomness and without a counter that a crash could lose.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Literal

ALL = "all"
"""Key of missing groups if the parts follow from the offers."""
GOLDEN = Fraction(0x9E3779B97F4A7C15, 2**64)  # the golden ratio minus 1


@dataclass(frozen=True)
class BatchShare:
    """A share of each batch, and how its groups are picked from the offers."""

    name: str
    share: float = 1.0
    """Share relative to the other parts."""
    order: Literal["oldest", "newest", "chance"] = "chance"
    """Whether groups are drawn at random without replacement, in proportion to their weights."""
    beta: float = 0.0
    """Importance correction in the loss for unequal probabilities within the part: from 0 (none) to 1
    (full)."""


@dataclass(frozen=True)
class Offer:
    """A group that may be picked."""

    id: int
    weight: float
    """Weight of the group; above 0."""
    part: str
    luck: float
    """Exponential variate with mean 1. Divided by the weight it is the group's key; the smallest keys are
    picked."""


@dataclass(frozen=True)
class Pick:
    """A picked group."""

    part: str
    probability: float | None
    """Probability of the pick, given the size asked of the part; None if the part does not draw at random."""
    weight: float
    """Weight in the loss; at most 1, and 1 for the part's least likely pick."""


@dataclass(frozen=True)
class Drawn:
    """Result of a draw: the picks; none if some parts have too few groups."""

    groups: Mapping[int, Pick] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)
    """Number of missing groups, by part."""

    def by_part(self) -> dict[str, list[int]]:
        """Return the ids of the picked groups by part."""
        parts = defaultdict(list)
        for group_id, pick in sorted(self.groups.items()):
            parts[pick.part].append(group_id)
        return dict(parts)


def draw(parts: Sequence[BatchShare], offers: Iterable[Offer], size: int, step: int, fill: bool) -> Drawn:
    """Pick `size` of the offered groups, deterministically.

    Args:
        parts: if empty, the parts named by the offers, with equal shares.
        fill: whether the other parts make up for a part's missing groups, in proportion to their shares.
    """
    offered = defaultdict(list)
    for offer in offers:
        offered[offer.part].append(offer)
    are_named = bool(parts)
    parts = parts or [BatchShare(name) for name in sorted(offered)]
    shares = [part.share for part in parts]
    quotas = apportion(shares, size, step) if parts else []
    available = [len(offered[part.name]) for part in parts]
    taken = spread(shares, quotas, available, step) if fill else list(map(min, quotas, available))
    if sum(taken) < size:
        short = zip(parts, quotas, available, strict=True)
        by_part = {part.name: want - have for part, want, have in short if have < want}
        return Drawn(missing=by_part if are_named else {ALL: size - sum(available)})
    groups: dict[int, Pick] = {}
    for part, count in zip(parts, taken, strict=True):
        groups |= _picked(part, offered[part.name], count)
    return Drawn(groups)


def apportion(shares: Sequence[float], size: int, step: int) -> list[int]:
    """[n] Integers that add up to `size`, each its share rounded down or up; on average over steps exact."""
    exact_shares = [Fraction(repr(float(share))) for share in shares]
    unit = size / sum(exact_shares)
    exact = [share * unit for share in exact_shares]
    whole = [math.floor(number) for number in exact]
    rests = accumulate((number - low for number, low in zip(exact, whole, strict=True)), initial=Fraction(0))
    marks = [math.floor(rest + step * GOLDEN % 1) for rest in rests]
    return [low + after - before for low, (before, after) in zip(whole, pairwise(marks), strict=True)]


def spread(shares: Sequence[float], quotas: Sequence[int], available: Sequence[int], step: int) -> list[int]:
    """[n] Groups taken from each part. Others make up for missing groups; fewer in total if none are left."""
    taken = list(map(min, quotas, available))
    while missing := sum(quotas) - sum(taken):
        able = [index for index, have in enumerate(available) if have > taken[index]]
        if not able:
            break
        more = apportion([shares[index] for index in able], missing, step)
        for index, count in zip(able, more, strict=True):
            taken[index] += min(count, available[index] - taken[index])
    return taken


def _picked(part: BatchShare, offered: Sequence[Offer], count: int) -> dict[int, Pick]:
    if not count:
        return {}
    if part.order != "chance":
        ids = sorted((offer.id for offer in offered), reverse=part.order == "newest")[:count]
        return {group_id: Pick(part.name, None, 1.0) for group_id in ids}
    keyed = sorted((offer.luck / offer.weight, offer.id, offer.weight) for offer in offered)
    threshold = keyed[count][0] if count < len(keyed) else math.inf
    chances = {group_id: -math.expm1(-weight * threshold) for _, group_id, weight in keyed[:count]}
    least = min(chances.values())
    return {
        group_id: Pick(part.name, chance, (least / chance) ** part.beta)
        for group_id, chance in chances.items()
    }
