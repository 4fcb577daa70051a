"""The law of draws by parts: how many groups of each part a batch takes, and which.

A batch of `size` gives each part the whole number below its share, or the one above. Which parts get one more
follows from the step by multiples of the golden ratio, which spread evenly: over n steps a part has its share
up to a few groups, without any chance and without a counter that a crash could lose.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Literal

ALL = "all"
"""What a draw waits for whose parts are those that are offered."""
GOLDEN = Fraction(0x9E3779B97F4A7C15, 2**64)  # the golden ratio less 1


@dataclass(frozen=True)
class Part:
    """A share of each batch, and how groups are picked among those that are offered for it."""

    name: str
    share: float = 1.0
    """Relative to the shares of the other parts."""
    order: Literal["oldest", "newest", "chance"] = "chance"
    """By chance: one after the other, each in proportion to its weight among those that are left."""
    beta: float = 0.0
    """How far the loss makes up for unequal chances within the part: not at all (0) or wholly (1)."""


@dataclass(frozen=True)
class Offer:
    """A group that may be picked."""

    id: int
    weight: float
    """Above 0."""
    part: str
    luck: float
    """Exponential with mean 1. Divided by the weight it is the group's key: the smallest keys are picked."""


@dataclass(frozen=True)
class Pick:
    """A group that was picked."""

    part: str
    probability: float | None
    """How likely, given what was asked of the part; None where no chance was at work."""
    weight: float
    """In the loss; at most 1, and 1 for the least likely of the part."""


@dataclass(frozen=True)
class Drawn:
    """What was picked. Nothing, if some parts have fewer groups than they need."""

    groups: Mapping[int, Pick] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)
    """By part, how many groups it waits for."""

    def by_part(self) -> dict[str, list[int]]:
        """The ids of the groups of each part."""
        found = defaultdict(list)
        for group_id, pick in sorted(self.groups.items()):
            found[pick.part].append(group_id)
        return dict(found)


def draw(parts: Sequence[Part], offers: Iterable[Offer], size: int, step: int, fill: bool) -> Drawn:
    """Pick `size` of the groups that are offered; which ones follows from the arguments alone.

    Args:
        parts: may be empty: then they are those that the offers name, with equal shares.
        fill: whether the other parts give what a part is short of, in proportion to their shares.
    """
    offered = defaultdict(list)
    for offer in offers:
        offered[offer.part].append(offer)
    are_named = bool(parts)
    parts = parts or [Part(name) for name in sorted(offered)]
    shares = [part.share for part in parts]
    asked = apportion(shares, size, step) if parts else []
    available = [len(offered[part.name]) for part in parts]
    taken = spread(shares, asked, available, step) if fill else list(map(min, asked, available))
    if sum(taken) < size:
        short = zip(parts, asked, available, strict=True)
        by_part = {part.name: want - have for part, want, have in short if have < want}
        return Drawn(missing=by_part if are_named else {ALL: size - sum(available)})
    groups: dict[int, Pick] = {}
    for part, count in zip(parts, taken, strict=True):
        groups |= _picked(part, offered[part.name], count)
    return Drawn(groups)


def apportion(shares: Sequence[float], size: int, step: int) -> list[int]:
    """[n] Whole numbers that add up to `size`, each next to its share of it; over many steps equal to it."""
    given = [Fraction(repr(float(share))) for share in shares]
    unit = size / sum(given)
    exact = [share * unit for share in given]
    whole = [math.floor(number) for number in exact]
    rests = accumulate((number - low for number, low in zip(exact, whole, strict=True)), initial=Fraction(0))
    marks = [math.floor(rest + step * GOLDEN % 1) for rest in rests]
    return [low + after - before for low, (before, after) in zip(whole, pairwise(marks), strict=True)]


def spread(shares: Sequence[float], asked: Sequence[int], available: Sequence[int], step: int) -> list[int]:
    """[n] How many each part gives. The others give what one lacks; fewer in all if there are no more."""
    taken = list(map(min, asked, available))
    while missing := sum(asked) - sum(taken):
        able = [place for place, have in enumerate(available) if have > taken[place]]
        if not able:
            break
        more = apportion([shares[place] for place in able], missing, step)
        for place, count in zip(able, more, strict=True):
            taken[place] += min(count, available[place] - taken[place])
    return taken


def _picked(part: Part, offered: Sequence[Offer], count: int) -> dict[int, Pick]:
    if not count:
        return {}
    if part.order != "chance":
        ids = sorted((offer.id for offer in offered), reverse=part.order == "newest")[:count]
        return {group_id: Pick(part.name, None, 1.0) for group_id in ids}
    keyed = sorted((offer.luck / offer.weight, offer.id, offer.weight) for offer in offered)
    threshold = keyed[count][0] if count < len(keyed) else math.inf
    chances = {group_id: -math.expm1(-weight * threshold) for _, group_id, weight in keyed[:count]}
    least = min(chances.values())
    return {of: Pick(part.name, chance, (least / chance) ** part.beta) for of, chance in chances.items()}
