"""What other models say of rows: log-probabilities of their trained tokens, beside their arrays.

Who asks the model encodes the answer with the row's payload at hand, so that one of the wrong length never
gets here (`scored`); who reads it decodes it in the same way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trinity_db import arrays
from trinity_db.database import Transaction
from trinity_db.errors import NotFound
from trinity_db.schema.queries import query

Name = Literal["reference", "teacher"]
"""Who says it: the name of the column that algorithms read."""

REMEDIES: dict[Name, str] = {
    "reference": "start the trainer again, which asks it.",
    "teacher": "name one under processors.score, in a new run.",
}


@dataclass(frozen=True)
class Model:
    """Whose log-probabilities they are."""

    name: Name
    digest: str
    """Of its files."""


@dataclass(frozen=True)
class Score:
    """What a model says of one row."""

    experience_id: int
    model: Model
    data: bytes


def scored(
    experience_id: int, model: Model, payload: arrays.Payload, logprobs: NDArray[np.floating]
) -> Score:
    """What a model says of the row that has this payload.

    Raises:
        ValueError: it is not one number for each trained token that a model can say something of.
    """
    return Score(experience_id, model, arrays.encode_scores(payload, logprobs))


def write(tx: Transaction, scores: Sequence[Score]) -> None:
    """Record scores of rows that are there, in place of earlier ones of the same name."""
    tx.execute(
        query("write_scores"),
        {
            "ids": [score.experience_id for score in scores],
            "names": [score.model.name for score in scores],
            "digests": [score.model.digest for score in scores],
            "data": [score.data for score in scores],
        },
    )


def read(
    tx: Transaction, name: Name, rows: Sequence[tuple[int, arrays.Payload]]
) -> list[NDArray[np.float32]]:
    """The log-probabilities of the trained tokens of rows, given as ids and their arrays, in this order.

    Raises:
        NotFound: a row has none.
        ValueError: those of a row are more or fewer than it has tokens.
    """
    ids = [experience_id for experience_id, _ in rows]
    found = tx.execute(query("read_scores"), {"ids": ids, "name": name}, binary=True).fetchall()
    data = {row["experience_id"]: row["data"] for row in found}
    if missing := [experience_id for experience_id in ids if experience_id not in data]:
        raise NotFound(f"Of experience {missing[0]} it is not stored what the {name} says; " + REMEDIES[name])
    return [arrays.decode_scores(payload, data[experience_id]) for experience_id, payload in rows]


def count_unscored(tx: Transaction, run_id: int, model: Model) -> int:
    """Adopted rows with tokens that may be drawn or evaluated, and that the model has not scored."""
    values = {"run_id": run_id, "name": model.name, "digest": model.digest}
    row = tx.execute(query("count_unscored"), values).fetchone()
    assert row is not None
    return int(row["rows"])


def unscored(tx: Transaction, run_id: int, model: Model, after: int, limit: int) -> list[int]:
    """The next such rows, by id."""
    values = {"run_id": run_id, "name": model.name, "digest": model.digest, "after": after, "limit": limit}
    return [row["id"] for row in tx.execute(query("unscored_rows"), values)]
