"""One experience with everything that the store knows of it: for `trinity-db show` and for the page."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trinity_db.database import Database
from trinity_db.errors import NotFound, TrinityError
from trinity_db.models import load_tokenizer
from trinity_db.schema.queries import query
from trinity_db.store import payloads

HISTORY = ("rewards", "parks", "processing", "drops", "preferences", "batches")
"""The tables about an experience."""


def experience(database: Database, experience_id: int) -> dict[str, Any]:
    """An experience with its text and its history; `tokenizer` is the folder of its tokenizer, or None.

    Raises:
        NotFound: there is no such experience.
    """
    about = {"id": experience_id}
    with database.transaction(read_only=True) as tx:
        found = tx.execute(query("show_experience"), about).fetchone()
        if found is None:
            raise NotFound(f"There is no experience {experience_id}.")
        for part in HISTORY:
            found[part] = tx.execute(query(f"show_{part}"), about).fetchall()
        model = tx.execute(query("show_tokenizer"), about).fetchone()
    return {**found, "tokenizer": model["path"] if model else None}


def tokens(database: Database, experience_id: int) -> dict[str, Any] | None:
    """The arrays of an experience; None where it has none yet. Log-probabilities are in nats.

    Raises:
        NotFound: they were pruned, or are not where they should be in the archive.
        TrinityError: the archive cannot be read.
    """
    payload = payloads.read(database, [experience_id]).get(experience_id)
    if payload is None:
        return None
    logprobs, versions, temperatures = payload.logprobs, payload.versions, payload.temperatures
    return {
        "token_ids": payload.token_ids.tolist(),
        "action_mask": payload.action_mask.astype(int).tolist(),
        # The shortest decimals that are these float32.
        "logprobs": None if logprobs is None else [float(str(value)) for value in logprobs],
        "versions": None if versions is None else versions.tolist(),
        "temperatures": None if temperatures is None else [float(str(value)) for value in temperatures],
    }


def texts(
    ids: Sequence[int], folder: str | None, load: Callable[[Path], Any] = load_tokenizer
) -> dict[str, Any]:
    """The text of each token by the tokenizer in a folder; where it cannot be loaded, why."""
    if folder is None:
        return {"texts": None, "no_texts": "the run names no folder of a model"}
    try:
        tokenizer = load(Path(folder).expanduser())
    except TrinityError as error:
        return {"texts": None, "no_texts": str(error)}
    texts = {token: tokenizer.decode([token], clean_up_tokenization_spaces=False) for token in set(ids)}
    return {"texts": [texts[token] for token in ids]}
