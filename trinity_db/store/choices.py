"""Samplers that choose by what groups are: by parts, each with a share of every batch, or by a SELECT.

All are one mechanism. A SELECT over `drawable`, the groups that may be drawn, offers groups with weights, and
says to which part each belongs. `shares` picks among them. The SELECT only offers: the members of what was
picked are read by a statement of the store's own, which takes no group that may not be drawn.

A draw looks at every group that may be drawn, so its cost grows with their number.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trinity_db import shares
from trinity_db.database import Transaction
from trinity_db.errors import WrongSelect
from trinity_db.schema.queries import query
from trinity_db.shares import Offer, Part
from trinity_db.store.own_select import OwnSelect, answer, within
from trinity_db.store.samplers import Limits, Picked

MAX_OFFERS = 1_000_000  # groups; a draw holds them in memory
# The weights that are not 0 lie in this range, so that keys, chances and the sum of all offers are numbers of
# full precision. Priorities from 1e-18 to 1e18, to the power 2 at most, lie well within it.
LEAST, MOST = 1e-100, 1e100
WHOLE = {20, 21, 23}  # the server's numbers of int8, int2 and int4
NUMBERS = WHOLE | {700, 701, 1700}  # and of float4, float8 and numeric


@dataclass(frozen=True)
class Choice:
    """A sampler that draws among the groups that a SELECT offers."""

    name: str
    select: OwnSelect
    """It yields the columns id and weight, and part unless there is exactly one part."""
    parts: tuple[Part, ...] = ()
    """Empty: those that the SELECT names, by chance and with equal shares."""
    fill: bool = True
    """Whether other parts give what a part is short of. Otherwise the draw waits."""

    def pick(self, tx: Transaction, limits: Limits) -> Picked:
        """Find the groups and their members; nothing is locked or changed.

        Raises:
            WrongSelect: the SELECT fails, or yields something else than groups with weights.
            TrinityError: it takes too long.
        """
        values = asdict(limits)
        statement, snapshot, offers = self.offers(tx, query("drawable_now"), values)
        drawn = shares.draw(self.parts, offers, limits.size, limits.step, self.fill)
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
        """The choice that a batch was drawn by, from its parameters."""
        parts = tuple(Part(**part) for part in content["parts"])
        return cls(content["name"], OwnSelect(**content["select"]), parts, content["fill"])

    def offers(
        self, tx: Transaction, drawable: str, values: Mapping[str, Any]
    ) -> tuple[str, str | None, list[Offer]]:
        """The statement, the snapshot that it saw, and the groups that it offers, by id.

        Args:
            drawable: the statement that says which groups may be drawn, with the columns of drawable_now.

        Raises:
            WrongSelect, TrinityError: as `pick`.
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
        found = [
            Offer(row[0], weight, only or row[2], row[3]) for row, weight in weighed if row[4] and weight
        ]
        return statement, rows[0][5] if rows else None, sorted(found, key=lambda offer: offer.id)

    def _check_columns(self, names: Sequence[str], types: Sequence[int], wanted: Sequence[str]) -> None:
        kinds = dict(zip(names, types, strict=True))
        if sorted(names) != sorted(wanted):
            raise WrongSelect(
                f"{self.select.key}: the SELECT must yield the columns {' and '.join(wanted)}, and yields "
                f"{', '.join(names) or 'none'}."
            )
        for name, fitting, what in (("id", WHOLE, "whole numbers"), ("weight", NUMBERS, "numbers")):
            if kinds[name] not in fitting:
                raise WrongSelect(f"{self.select.key}: the column {name} of the SELECT must hold {what}.")

    def _check_ids(self, ids: Sequence[int | None]) -> None:
        if len(ids) > MAX_OFFERS:
            raise WrongSelect(f"{self.select.key}: the SELECT yields more than {MAX_OFFERS} rows; limit it.")
        seen: set[int] = set()
        for group_id in ids:
            if group_id is None or group_id in seen:
                twice = "NULL as an id" if group_id is None else f"group {group_id} twice"
                raise WrongSelect(f"{self.select.key}: the SELECT yields {twice}.")
            seen.add(group_id)

    def _weights(self, rows: Sequence[tuple[Any, ...]]) -> list[float]:
        """The weight of each row, which the server may give as an int, a float or a Decimal."""
        weights = []
        for group_id, given, *_ in rows:
            weight = math.nan if given is None else float(given)
            # 1e-400 is 0 as a float. NaN is in no range.
            if given != 0 and not LEAST <= weight <= MOST:
                raise WrongSelect(
                    f"{self.select.key}: the SELECT gives group {group_id} the weight "
                    f"{'NULL' if given is None else format(given, '.6g')}; a weight is 0, or a number from "
                    f"{LEAST:g} to {MOST:g}."
                )
            weights.append(weight)
        return weights


def digest(offers: Sequence[Offer]) -> dict[str, Any]:
    """What tells whether the same groups were offered, each to the same part, and the sum of weights."""
    text = "\n".join(f"{offer.id} {offer.part}" for offer in offers)
    return {
        "groups": len(offers),
        "digest": hashlib.blake2b(text.encode(), digest_size=16).hexdigest(),
        "weight": math.fsum(offer.weight for offer in offers),
    }
