"""One experience with all its data in the store, for `trinity-db show` and for the page."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trinity_db.errors import NotFound, TrinityError
from trinity_db.models import load_tokenizer
from trinity_db.postgres.connection import Database
from trinity_db.schema.queries import query
from trinity_db.store import payloads, policies
from trinity_db.weights.manifest import OWNER_FILE
from trinity_db.weights.recorded_places import RecordedPlaces

HISTORY = ("sequences", "rewards", "parks", "processing", "drops", "preferences", "batches")
"""Tables about an experience."""
NO_FOLDER = f"this machine has no version below TRINITY_DB_HOME or next to a trainer's {OWNER_FILE}"


def experience(database: Database, experience_id: int) -> dict[str, Any]:
    """Return an experience with its text and history; `tokenizer` is the folder of its tokenizer, or None.

    That is the run's newest version on this machine in a folder that is read without a configuration.

    Raises:
        NotFound: if the experience does not exist.
    """
    about = {"id": experience_id}
    with database.transaction(read_only=True) as tx:
        row = tx.execute(query("show_experience"), about).fetchone()
        if row is None:
            raise NotFound(f"There is no experience {experience_id}.")
        for part in HISTORY:
            row[part] = tx.execute(query(f"show_{part}"), about).fetchall()
        run = tx.execute(query("run_of_experience"), about).fetchone()
        versions = policies.with_checkpoint(tx, run["run_id"]) if run is not None else []
    places = RecordedPlaces()
    folders = [
        version.checkpoint
        for version in versions
        if places.allows_folder(version) and version.checkpoint.is_dir()
    ]
    return {**row, "tokenizer": folders[0] if folders else None}


def attempts(database: Database, run_id: int) -> tuple[list[dict[str, Any]], dict[bytes, dict[str, Any]]]:
    """Return the rollouts of a run, each with its task and the ids of its experiences.

    Also the options left out of requests of its programs, by the digest of the request.
    """
    about = {"run_id": run_id}
    with database.transaction(read_only=True) as tx:
        replaced = {
            bytes(row["digest"]): row["replaced"] for row in tx.execute(query("show_replaced"), about)
        }
        return tx.execute(query("show_attempts"), about).fetchall(), replaced


def tokens(database: Database, experience_id: int) -> dict[str, Any] | None:
    """Return the arrays of an experience; None if it has none yet. Log-probabilities are in nats.

    Raises:
        NotFound: if the arrays were pruned, or are missing from the archive.
        TrinityError: if the archive cannot be read.
    """
    payload = payloads.read(database, [experience_id]).get(experience_id)
    if payload is None:
        return None
    logprobs, versions, temperatures = payload.logprobs, payload.versions, payload.temperatures
    return {
        "token_ids": payload.token_ids.tolist(),
        "action_mask": payload.action_mask.astype(int).tolist(),
        # The shortest decimals that round to these float32 values.
        "logprobs": None if logprobs is None else [float(str(value)) for value in logprobs],
        "versions": None if versions is None else versions.tolist(),
        "temperatures": None if temperatures is None else [float(str(value)) for value in temperatures],
    }


def texts(
    ids: Sequence[int], folder: Path | None, load: Callable[[Path], Any] = load_tokenizer
) -> dict[str, Any]:
    """Text of each token, with the tokenizer in a folder, or the reason why it cannot be loaded."""
    if folder is None:
        return {"texts": None, "no_texts": NO_FOLDER}
    try:
        tokenizer = load(folder)
    except TrinityError as error:
        return {"texts": None, "no_texts": str(error)}
    texts = {token: tokenizer.decode([token], clean_up_tokenization_spaces=False) for token in set(ids)}
    return {"texts": [texts[token] for token in ids]}
