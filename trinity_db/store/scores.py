"""Scores from other models: log-probabilities of rows' trained tokens, stored next to their arrays.

The writer encodes a score with the row's payload at hand, so one of the wrong length is never stored
(`scored`); the reader decodes it in the same way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trinity_db.arrays import codec
from trinity_db.errors import NotFound
from trinity_db.postgres.connection import Transaction
from trinity_db.schema.queries import query

Name = Literal["reference", "teacher"]
"""Model that gives the scores: the name of the column that algorithms read."""

REMEDIES: dict[Name, str] = {
    "reference": "start the trainer again, which asks it.",
    "teacher": "name one under processors.score, in a new run.",
}


@dataclass(frozen=True)
class Model:
    """Model that gives the log-probabilities."""

    name: Name
    digest: str
    """Digest of its files."""


@dataclass(frozen=True)
class Score:
    """A model's log-probabilities for one row."""

    experience_id: int
    model: Model
    data: bytes


def scored(experience_id: int, model: Model, payload: codec.Payload, logprobs: NDArray[np.floating]) -> Score:
    """Encode a model's score for the row with this payload.

    Raises:
        ValueError: unless it has one number for each trained token that a model can score.
    """
    return Score(experience_id, model, codec.encode_scores(payload, logprobs))


def write(tx: Transaction, scores: Sequence[Score]) -> None:
    """Store scores of existing rows, replacing earlier ones of the same name."""
    tx.execute(
        query("write_scores"),
        {
            "ids": [score.experience_id for score in scores],
            "names": [score.model.name for score in scores],
            "digests": [score.model.digest for score in scores],
            "data": [score.data for score in scores],
        },
    )


def read(tx: Transaction, name: Name, rows: Sequence[tuple[int, codec.Payload]]) -> list[NDArray[np.float32]]:
    """Read the log-probabilities of the trained tokens of rows, given as ids and their arrays, in this order.

    Raises:
        NotFound: if a row has none.
        ValueError: if a row's score does not match its number of tokens.
    """
    ids = [experience_id for experience_id, _ in rows]
    score_rows = tx.execute(query("read_scores"), {"ids": ids, "name": name}, binary=True).fetchall()
    data = {row["experience_id"]: row["data"] for row in score_rows}
    if missing := [experience_id for experience_id in ids if experience_id not in data]:
        raise NotFound(f"Experience {missing[0]} has no score from the {name}: " + REMEDIES[name])
    return [codec.decode_scores(payload, data[experience_id]) for experience_id, payload in rows]


def count_unscored(tx: Transaction, run_id: int, model: Model) -> int:
    """Count adopted rows with tokens, drawable or held out, that the model has not scored."""
    values = {"run_id": run_id, "name": model.name, "digest": model.digest}
    row = tx.execute(query("count_unscored"), values).fetchone()
    assert row is not None
    return int(row["rows"])


def unscored(tx: Transaction, run_id: int, model: Model, after: int, limit: int) -> list[int]:
    """Return the ids of the next such rows."""
    values = {"run_id": run_id, "name": model.name, "digest": model.digest, "after": after, "limit": limit}
    return [row["id"] for row in tx.execute(query("unscored_rows"), values)]
