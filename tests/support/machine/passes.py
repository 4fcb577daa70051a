"""The model of a run over data sets whose rows and pairs change meanwhile: what may be drawn, in which order.

Rows and pairs are in one table: a pair has its id with a minus before it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.support.machine.history import Batch, Group, History, Numbers, Row, Table
from trinity_db.store import batches


@dataclass
class Fact:
    """What a row brings with it, and whether it has tokens by now."""

    places: Sequence[int]
    """Where it stands in each pass."""
    is_held_out: bool
    reward: float | None
    has_tokens: bool = False


@dataclass(frozen=True)
class Pair:
    """Two rows; a derived one holds while its rewards agree with it."""

    id: int
    chosen: int
    rejected: int
    is_derived: bool
    is_held_out: bool


class GroupPasses(History):
    """Adopted groups, each drawn as a whole once in a pass."""

    def __init__(self, members: dict[int, list[int]], max_uses: int) -> None:
        super().__init__(max_uses, sorted(row for rows in members.values() for row in rows))
        self.groups = {
            key: Group(0, len(rows), None, state="ready", members={row: self.rows[row] for row in rows})
            for key, rows in members.items()
        }

    def tables(self) -> dict[str, Table]:
        groups: Table = {key: (group.state, group.holder, group.uses) for key, group in self.groups.items()}
        return super().tables() | {"groups": groups}


class Passes(History):
    """Rows and pairs of data sets, each drawn once in a pass while it is fit to be."""

    def __init__(self, facts: dict[int, Fact], max_uses: int, learns_labels: bool) -> None:
        super().__init__(max_uses, facts)
        self.facts = facts
        self.learns_labels = learns_labels
        self.pairs: dict[int, Pair] = {}
        for id, fact in facts.items():
            if fact.reward is not None:
                self.judge(id, fact.reward)

    def judge(self, row: int, value: float) -> None:
        self.rows[row].parts["reward"] = value

    def add(self, pairs: Iterable[Pair]) -> None:
        for pair in pairs:
            self.pairs[-pair.id] = pair
            self.rows[-pair.id] = Row(-pair.id)

    def drop(self, row: int) -> None:
        """The row goes, and the pairs that it is in and that are not in use."""
        self.rows[row].state = "dropped"
        for key, pair in self.pairs.items():
            if row in (pair.chosen, pair.rejected) and self.rows[key].state == "ready":
                self.rows[key].state = "dropped"

    def rated(self) -> list[int]:
        """Rows that say what they are worth, or may be told."""
        return [row for row in self.facts if self.learns_labels or self.rows[row].parts]

    def placed(self, pairs: bool) -> list[Row]:
        """Rows, or pairs, that have a place in a pass, in their order."""
        placed = [
            row
            for row in self.rows.values()
            if row.state == "ready"
            and (row.id in self.pairs) == pairs
            and (self._agrees(self.pairs[row.id]) if pairs else self._is_fit(row))
        ]
        return sorted(placed, key=lambda row: (row.uses, self._place(row), abs(row.id)))

    def drawable(self, pairs: bool) -> list[Row]:
        """Those that a draw can take: of pairs, those with tokens."""
        return [row for row in self.placed(pairs) if not pairs or self._has_tokens(self.pairs[row.id])]

    def draw(self, draw: batches.Draw, pairs: bool) -> Batch | None:
        """The next ones, never of two passes at once."""
        found = self.drawable(pairs)[: draw.batch_size]
        if not found:
            return None
        rows = [row for row in found if row.uses == found[0].uses]
        rewards = [self.rows[self.pairs[row.id].chosen].reward if pairs else row.reward for row in rows]
        numbers: list[Numbers] = [(reward, None, None) for reward in rewards]
        return Batch(draw.step, draw.worker_id, self.with_checkpoint()[0], rows, numbers)

    def _is_fit(self, row: Row) -> bool:
        """Whether passes over rows have the row: one to learn by its label, or one to imitate."""
        fact = self.facts[row.id]
        if fact.is_held_out or not fact.has_tokens:
            return False
        if self.learns_labels:
            return row.reward is not None
        is_worse = any(pair.rejected == row.id for pair in self.pairs.values())
        return not is_worse and (row.reward is None or row.reward > 0)

    def _agrees(self, pair: Pair) -> bool:
        """Whether passes over pairs have the pair: a derived one only while its rewards agree."""
        chosen, rejected = self.rows[pair.chosen].reward, self.rows[pair.rejected].reward
        agrees = chosen is not None and rejected is not None and chosen > rejected
        return not pair.is_held_out and (agrees or not pair.is_derived)

    def _has_tokens(self, pair: Pair) -> bool:
        return self.facts[pair.chosen].has_tokens and self.facts[pair.rejected].has_tokens

    def _place(self, row: Row) -> int:
        of = self.pairs[row.id].chosen if row.id in self.pairs else row.id
        return self.facts[of].places[row.uses]
