"""Prepare adopted rows for the trainer: tokenize text, or drop rows that cannot be used.

Also counts trainable rows and reads rows held out for evaluation; `store.draws` draws them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trinity_db.arrays import codec
from trinity_db.errors import TrinityError
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.schema.queries import query
from trinity_db.schema.states import Draws
from trinity_db.store import payloads, processing

FIT_ROWS = 10_000  # per transaction; some tenths of a second

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
    """An adopted row without tokens."""

    id: int
    prompt: str
    response: str
    messages: list[dict[str, Any]] | None
    tools: list[dict[str, Any]] | None = None
    reply: list[dict[str, Any]] | None = None
    traced: int | None = None
    """Source experience, if it has tokens; None: tokenize the text."""
    temperature: float | None = None
    """Sampling temperature of the source run; None for a data set."""

    @property
    def task(self) -> dict[str, Any]:
        """The prompt in the format of tasks."""
        return {"messages": self.messages, "tools": self.tools} if self.messages else {"prompt": self.prompt}

    @property
    def full_response(self) -> str | list[dict[str, Any]]:
        """The response: messages if it is more than text."""
        return self.response if self.reply is None else self.reply


@dataclass(frozen=True)
class AdoptedSource:
    """A run whose rows were adopted, and have no tokens here yet."""

    id: int
    name: str
    model: dict[str, Any] | None
    """Starting model in that run's configuration."""


def unencoded_sources(tx: Transaction, run_id: int) -> list[AdoptedSource]:
    """List the source runs of adopted rows without tokens; data sets are excluded."""
    return [AdoptedSource(**row) for row in tx.execute(query("unencoded_sources"), {"run_id": run_id})]


def count_unencoded(tx: Transaction, run_id: int) -> int:
    """Count the adopted rows without tokens."""
    row = tx.execute(query("count_unencoded"), {"run_id": run_id}).fetchone()
    assert row is not None
    return int(row["rows"])


def unencoded(tx: Transaction, run_id: int, after: int, limit: int) -> list[Text]:
    """Read the next adopted rows without tokens, by id."""
    rows = tx.execute(query("unencoded_rows"), {"run_id": run_id, "after": after, "limit": limit})
    return [Text(**row) for row in rows]


def write_tokens(tx: Transaction, encoded: Sequence[tuple[int, codec.Payload]]) -> None:
    """Store the tokens of rows, by id."""
    ids = [row_id for row_id, _ in encoded]
    trained = [payload.num_trained for _, payload in encoded]
    lengths = [payload.num_tokens for _, payload in encoded]
    tx.execute(
        query("insert_payloads"),
        {
            "ids": ids,
            "codecs": [codec.CODEC] * len(encoded),
            "num_tokens": lengths,
            "data": [codec.encode(payload) for _, payload in encoded],
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
    """Drop rows that the model cannot use, with reason and explanation, and the pairs that contain them."""
    if not rows:
        return
    ids = [row_id for row_id, _, _ in rows]
    tx.execute(query("drop_ready"), {"ids": ids})
    drops = [processing.Drop(row_id, reason, {"error": explanation}) for row_id, reason, explanation in rows]
    processing.record_drops(tx, run_id, "encode", drops)
    tx.execute(query("drop_pairs_of"), {"run_id": run_id, "ids": ids, "stage": "encode"})


@dataclass(frozen=True)
class HeldOut:
    """Current content of a row held out for evaluation."""

    experience_id: int
    payload: codec.Payload
    reward: float | None


def held_out(database: Database, run_id: int, pairs: bool, limit: int) -> list[HeldOut]:
    """Read rows held out for evaluation; with `pairs`, chosen and rejected rows in turn."""
    name = "held_out_pairs" if pairs else "held_out_rows"
    with database.transaction() as tx:
        rows = tx.execute(query(name), {"run_id": run_id, "limit": limit}).fetchall()
    arrays = payloads.read(database, [row["id"] for row in rows])
    return [HeldOut(row["id"], arrays[row["id"]], row["reward"]) for row in rows]


def seed_groups(database: Database, run_id: int, min_size: int) -> None:
    """Make adopted groups trainable once all their rows have tokens, or drop them. Idempotent.

    Args:
        min_size: minimum number of attempts in a group.
    """
    values = {"run_id": run_id, "min_size": min_size, "limit": FIT_ROWS}
    while True:
        with database.transaction() as tx:
            changed = tx.execute(query("seed_groups"), values).rowcount
        if changed < FIT_ROWS:
            return


def count_unsampled(tx: Transaction, run_id: int) -> int:
    """Count rows of adopted groups without log-probabilities of the policy that sampled them."""
    row = tx.execute(query("count_unsampled"), {"run_id": run_id}).fetchone()
    assert row is not None
    return int(row["rows"])


def count_trainable(tx: Transaction, run_id: int, draws: Draws) -> dict[int, int]:
    """Count the groups, rows or pairs of the whole training, by number of uses so far."""
    rows = tx.execute(query(_COUNTS[draws]), {"run_id": run_id})
    return {row["uses"]: row["rows"] for row in rows}


def steps_left(trainable: Mapping[int, int], batch_size: int, epochs: float) -> int:
    """Number of steps that use each group, row or pair `epochs` times; no step extends into the next pass.

    A partial pass, such as the second of 1.5, counts as its share of steps, rounded up.
    """
    last = math.ceil(epochs)
    passes = range(min(trainable, default=last), last)
    sizes = [sum(rows for uses, rows in trainable.items() if uses <= number) for number in passes]
    steps = [math.ceil(rows / batch_size) for rows in sizes]
    if steps:
        whole = math.ceil(sum(trainable.values()) / batch_size)
        share = epochs - (last - 1)
        left_out = whole - math.ceil(round(share * whole, 6))  # avoid a step too many from float error
        steps[-1] = max(steps[-1] - left_out, 0)
    return sum(steps)


def fit_to_epochs(database: Database, run_id: int, draws: Draws, epochs: int) -> int:
    """Make groups, rows or pairs ready again if more epochs allow it, or trained if fewer do.

    Uses transactions of FIT_ROWS. For the run's trainer; idempotent.

    Returns:
        the number of changed rows.
    """
    name, moved = _FITS[draws], 0
    values = {"run_id": run_id, "epochs": epochs, "limit": FIT_ROWS}
    while True:
        with database.transaction() as tx:
            changed = tx.execute(query(name), values).rowcount
        moved += changed
        if changed < FIT_ROWS:
            return moved


def count_unlabelled(tx: Transaction, run_id: int) -> int:
    """Count rows without the reward that labels them; 0 if the run needs no labels."""
    row = tx.execute(query("count_unlabelled"), {"run_id": run_id}).fetchone()
    assert row is not None
    return int(row["rows"])


def too_few(available: int, experts: int) -> TrinityError:
    """Error for a run with fewer adopted rows than a step adds to its groups."""
    return TrinityError(
        f"algorithm.expert_rows takes {experts} rows to imitate in each step, and the run has {available}: "
        "import more into a data set listed in data, or lower it."
    )
