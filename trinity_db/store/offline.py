"""Adopted rows on their way to the trainer: text that has no tokens yet gets them, or is dropped.

How many there are to learn from, and which are kept for evaluation, is asked here too; `store.draws` draws
them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trinity_db import arrays
from trinity_db.database import Database, Transaction
from trinity_db.errors import TrinityError
from trinity_db.schema.queries import query
from trinity_db.schema.states import Draws
from trinity_db.store import payloads, processing

FIT_ROWS = 10_000  # of one transaction; some tenths of a second

_COUNTS: dict[Draws, str] = {
    "groups": "count_groups",
    "rows": "count_rows",
    "labels": "count_rows",
    "pairs": "count_pairs",
}
_FITS: dict[Draws, str] = {
    "groups": "fit_groups_to_epochs",
    "rows": "fit_rows_to_epochs",
    "labels": "fit_rows_to_epochs",
    "pairs": "fit_pairs_to_epochs",
}


@dataclass(frozen=True)
class Text:
    """An adopted row that has no tokens yet."""

    id: int
    prompt: str
    response: str
    messages: list[dict[str, Any]] | None
    tools: list[dict[str, Any]] | None = None
    reply: list[dict[str, Any]] | None = None
    traced: int | None = None
    """The experience that it was adopted from, if that has tokens; None: they follow from the text."""
    temperature: float | None = None
    """At which the run that it was adopted from samples; None if that is a data set."""

    @property
    def task(self) -> dict[str, Any]:
        """The prompt in the form in which tasks have it."""
        return {"messages": self.messages, "tools": self.tools} if self.messages else {"prompt": self.prompt}

    @property
    def said(self) -> str | list[dict[str, Any]]:
        """The response: messages where it is more than a text."""
        return self.response if self.reply is None else self.reply


@dataclass(frozen=True)
class Source:
    """A run whose rows were adopted, and have no tokens here yet."""

    id: int
    name: str
    model: dict[str, Any] | None
    """Its starting model, as its configuration has it."""


def unencoded_sources(tx: Transaction, run_id: int) -> list[Source]:
    """The runs that adopted rows without tokens are of; data sets are not among them."""
    return [Source(**row) for row in tx.execute(query("unencoded_sources"), {"run_id": run_id})]


def count_unencoded(tx: Transaction, run_id: int) -> int:
    """How many adopted rows have no tokens yet."""
    row = tx.execute(query("count_unencoded"), {"run_id": run_id}).fetchone()
    assert row is not None
    return int(row["rows"])


def unencoded(tx: Transaction, run_id: int, after: int, limit: int) -> list[Text]:
    """The next adopted rows without tokens, by id."""
    rows = tx.execute(query("unencoded_rows"), {"run_id": run_id, "after": after, "limit": limit})
    return [Text(**row) for row in rows]


def write_tokens(tx: Transaction, encoded: Sequence[tuple[int, arrays.Payload]]) -> None:
    """Store the tokens of rows, by id."""
    ids = [row_id for row_id, _ in encoded]
    trained = [payload.num_trained for _, payload in encoded]
    lengths = [payload.num_tokens for _, payload in encoded]
    tx.execute(
        query("insert_payloads"),
        {
            "ids": ids,
            "codecs": [arrays.CODEC] * len(encoded),
            "num_tokens": lengths,
            "data": [arrays.encode(payload) for _, payload in encoded],
        },
    )
    tx.execute(
        query("encode_rows"),
        {
            "ids": ids,
            "prompt_lengths": [length - k for length, k in zip(lengths, trained, strict=True)],
            "response_lengths": trained,
        },
    )


def drop(tx: Transaction, run_id: int, rows: Sequence[tuple[int, str, str]]) -> None:
    """Drop rows that the model cannot use, each with reason and explanation, and the pairs they are in."""
    if not rows:
        return
    ids = [row_id for row_id, _, _ in rows]
    tx.execute(query("drop_ready"), {"ids": ids})
    drops = [processing.Drop(row_id, reason, {"error": explanation}) for row_id, reason, explanation in rows]
    processing.record_drops(tx, run_id, "encode", drops)
    tx.execute(query("drop_pairs_of"), {"run_id": run_id, "ids": ids, "stage": "encode"})


@dataclass(frozen=True)
class HeldOut:
    """A row that is kept for evaluation, as it is now."""

    experience_id: int
    payload: arrays.Payload
    reward: float | None


def held_out(database: Database, run_id: int, pairs: bool, limit: int) -> list[HeldOut]:
    """Rows, or chosen and rejected ones in turn, that are kept for evaluation."""
    name = "held_out_pairs" if pairs else "held_out_rows"
    with database.transaction() as tx:
        rows = tx.execute(query(name), {"run_id": run_id, "limit": limit}).fetchall()
    found = payloads.read(database, [row["id"] for row in rows])
    return [HeldOut(row["id"], found[row["id"]], row["reward"]) for row in rows]


def seed_groups(database: Database, run_id: int, min_size: int) -> None:
    """Let adopted groups whose rows all have tokens into passes, or drop them; harmless when repeated.

    Args:
        min_size: attempts that a group needs.
    """
    values = {"run_id": run_id, "min_size": min_size, "limit": FIT_ROWS}
    while True:
        with database.transaction() as tx:
            found = tx.execute(query("seed_groups"), values).rowcount
        if found < FIT_ROWS:
            return


def count_unsampled(tx: Transaction, run_id: int) -> int:
    """How many rows of adopted groups have no log-probabilities of the policy that sampled them."""
    row = tx.execute(query("count_unsampled"), {"run_id": run_id}).fetchone()
    assert row is not None
    return int(row["rows"])


def count_trainable(tx: Transaction, run_id: int, draws: Draws) -> dict[int, int]:
    """Groups, rows or pairs that the whole of the training uses, by how often each was used already."""
    rows = tx.execute(query(_COUNTS[draws]), {"run_id": run_id})
    return {row["uses"]: row["rows"] for row in rows}


def steps_left(trainable: Mapping[int, int], batch_size: int, epochs: float) -> int:
    """How many steps use each group, row or pair `epochs` times; no step reaches into the next pass.

    Of a pass that is not ended, such as the second of 1.5, it is the share of its steps, rounded up.
    """
    last = math.ceil(epochs)
    passes = range(min(trainable, default=last), last)
    sizes = [sum(rows for uses, rows in trainable.items() if uses <= number) for number in passes]
    steps = [math.ceil(rows / batch_size) for rows in sizes]
    if steps:
        whole = math.ceil(sum(trainable.values()) / batch_size)
        share = epochs - (last - 1)
        left_out = whole - math.ceil(round(share * whole, 6))  # what is no whole number by rounding is one
        steps[-1] = max(steps[-1] - left_out, 0)
    return sum(steps)


def fit_to_epochs(database: Database, run_id: int, draws: Draws, epochs: int) -> int:
    """Make groups, rows or pairs ready again that may be used more often than before, or the other way round.

    In transactions of FIT_ROWS. For the run's trainer; harmless when repeated.

    Returns:
        how many it moved.
    """
    name, moved = _FITS[draws], 0
    values = {"run_id": run_id, "epochs": epochs, "limit": FIT_ROWS}
    while True:
        with database.transaction() as tx:
            found = tx.execute(query(name), values).rowcount
        moved += found
        if found < FIT_ROWS:
            return moved


def count_unlabelled(tx: Transaction, run_id: int) -> int:
    """Rows that lack the reward that would say whether they are good; 0 where the run does not ask."""
    row = tx.execute(query("count_unlabelled"), {"run_id": run_id}).fetchone()
    assert row is not None
    return int(row["rows"])


def too_few(available: int, experts: int) -> TrinityError:
    """What to say where a run has fewer adopted rows to imitate than a step takes beside its groups."""
    return TrinityError(
        f"algorithm.expert_rows takes {experts} rows to imitate in each step, and the run has {available}: "
        "import more into a data set that data: names, or lower it."
    )
