"""Samplers that choose groups by property: by parts, each with a share of every batch, or by a SELECT.

Both use one mechanism. A SELECT over `drawable` (the groups that may be drawn) offers groups, each with a
weight and a part; `shares` picks among them. The SELECT only makes offers: the members of the picked groups
are read by one of the store's statements, which skips groups that may not be drawn.

Each draw scans all groups that may be drawn, so its cost grows with their number.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trinity_db.errors import WrongSelect
from trinity_db.postgres.connection import Transaction
from trinity_db.schema.queries import query
from trinity_db.store import stratified_allocation
from trinity_db.store.samplers import DrawLimits, Picked
from trinity_db.store.stratified_allocation import BatchShare, Offer
from trinity_db.store.user_query import OwnSelect, answer, within

MAX_OFFERS = 1_000_000  # groups, held in memory during a draw
# Range of non-zero weights: keys, probabilities and the sum of all offers keep full float precision.
# Priorities from 1e-18 to 1e18, raised to the power of 2 at most, are well within it.
LEAST, MOST = 1e-100, 1e100
WHOLE = {20, 21, 23}  # type oids of int8, int2 and int4
NUMBERS = WHOLE | {700, 701, 1700}  # and float4, float8 and numeric


@dataclass(frozen=True)
class Choice:
    """A sampler that draws among the groups that a SELECT offers."""

    name: str
    select: OwnSelect
    """Must return the columns id and weight, and part unless there is exactly one part."""
    parts: tuple[BatchShare, ...] = ()
    """Empty: the parts that the SELECT returns, with equal shares."""
    fill: bool = True
    """Whether the other parts make up for a part with too few groups. Otherwise the draw waits."""

    def pick(self, tx: Transaction, limits: DrawLimits) -> Picked:
        """Choose the groups and their members; nothing is locked or changed.

        Raises:
            WrongSelect: if the SELECT fails, or its result is not groups with weights.
            TrinityError: if it exceeds its time limit.
        """
        values = asdict(limits)
        statement, snapshot, offers = self.offers(tx, query("drawable_now"), values)
        drawn = stratified_allocation.draw(self.parts, offers, limits.size, limits.step, self.fill)
        if drawn.missing:
            counted = tx.execute(query("count_drawable"), values).fetchone()
            assert counted is not None
            waits_for_rollouts = counted["groups"] < limits.size
            return Picked([statement], {}, [], [], snapshot, {} if waits_for_rollouts else drawn.missing)
        values["group_ids"] = sorted(drawn.groups)
        members = tx.execute(query("choose_members"), values).fetchall()
        picks = [drawn.groups[member["group_id"]] for member in members]
        for member, pick in zip(members, picks, strict=True):
            member["probability"] = pick.probability
        parameters = {
            "choice": asdict(self),
            "offered": digest(offers),
            "parts": drawn.by_part(),
            "members_snapshot": members[0]["snapshot"] if members else None,
        }
        texts = [statement, query("choose_members")]
        return Picked(texts, parameters, members, [pick.weight for pick in picks], snapshot)

    @classmethod
    def recorded(cls, content: Mapping[str, Any]) -> "Choice":
        """Rebuild the choice of a recorded batch from its parameters."""
        parts = tuple(BatchShare(**part) for part in content["parts"])
        return cls(content["name"], OwnSelect(**content["select"]), parts, content["fill"])

    def offers(
        self, tx: Transaction, drawable: str, values: Mapping[str, Any]
    ) -> tuple[str, str | None, list[Offer]]:
        """Return the statement, the snapshot that it saw, and the groups that it offers, by id.

        Args:
            drawable: statement that selects the groups that may be drawn, with the columns of drawable_now.

        Raises:
            WrongSelect, TrinityError: see `pick`.
        """
        only = self.parts[0].name if len(self.parts) == 1 else None
        relation = f"WITH drawable AS NOT MATERIALIZED (\n{drawable}\n)"
        chosen = f"{within(self.select.text)} AS chosen"
        looked = answer(tx, self.select, f"{relation}\nSELECT chosen.* FROM {chosen} LIMIT 0", values)
        self._check_columns(looked.columns, looked.types, ["id", "weight"] + ["part"] * (only is None))
        part = "NULL" if only is not None else "chosen.part"
        statement = (
            f"{relation},\noffered AS MATERIALIZED (\nSELECT chosen.id, chosen.weight, {part}::text AS part\n"
            f"FROM {chosen}\nLIMIT {MAX_OFFERS + 1}\n)\n"
            "SELECT o.id, o.weight, o.part, trinity.key(o.id, 1, trinity.chance(%(step)s, %(seed)s)),\n"
            "o.id IN (SELECT d.id FROM drawable d), (SELECT pg_current_snapshot()::text)\nFROM offered o"
        )
        rows = answer(tx, self.select, statement, values).rows
        self._check_ids([row[0] for row in rows])
        weighed = zip(rows, self._weights(rows), strict=True)
        offers = [
            Offer(row[0], weight, only or row[2], row[3]) for row, weight in weighed if row[4] and weight
        ]
        return statement, rows[0][5] if rows else None, sorted(offers, key=lambda offer: offer.id)

    def _check_columns(self, names: Sequence[str], types: Sequence[int], wanted: Sequence[str]) -> None:
        kinds = dict(zip(names, types, strict=True))
        if sorted(names) != sorted(wanted):
            raise WrongSelect(
                f"{self.select.key}: the SELECT must return the columns {' and '.join(wanted)}, and returns "
                f"{', '.join(names) or 'none'}."
            )
        for name, fitting, expected in (("id", WHOLE, "whole numbers"), ("weight", NUMBERS, "numbers")):
            if kinds[name] not in fitting:
                raise WrongSelect(f"{self.select.key}: the column {name} of the SELECT must hold {expected}.")

    def _check_ids(self, ids: Sequence[int | None]) -> None:
        if len(ids) > MAX_OFFERS:
            raise WrongSelect(f"{self.select.key}: the SELECT returns more than {MAX_OFFERS} rows; limit it.")
        seen: set[int] = set()
        for group_id in ids:
            if group_id is None or group_id in seen:
                twice = "NULL as an id" if group_id is None else f"group {group_id} twice"
                raise WrongSelect(f"{self.select.key}: the SELECT returns {twice}.")
            seen.add(group_id)

    def _weights(self, rows: Sequence[tuple[Any, ...]]) -> list[float]:
        """Check and return the weight of each row, which the server may send as int, float or Decimal."""
        weights = []
        for group_id, value, *_ in rows:
            weight = math.nan if value is None else float(value)
            # 1e-400 becomes 0 as a float. NaN is outside every range.
            if value != 0 and not LEAST <= weight <= MOST:
                raise WrongSelect(
                    f"{self.select.key}: the SELECT gives group {group_id} the weight "
                    f"{'NULL' if value is None else format(value, '.6g')}; a weight is 0, or a number from "
                    f"{LEAST:g} to {MOST:g}."
                )
            weights.append(weight)
        return weights


def digest(offers: Sequence[Offer]) -> dict[str, Any]:
    """Digest of the offered groups and their parts, with their number and the sum of weights."""
    text = "\n".join(f"{offer.id} {offer.part}" for offer in offers)
    return {
        "groups": len(offers),
        "digest": hashlib.blake2b(text.encode(), digest_size=16).hexdigest(),
        "weight": math.fsum(offer.weight for offer in offers),
    }
