"""Index of responses in which processors find near duplicates.

A row is in the index if its response passed. Processors of a run compare and write under one lock, so the
first row is the one kept, whatever the number of processors and whenever one is killed.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from trinity_db.postgres.connection import Database, Transaction
from trinity_db.schema.queries import query


@dataclass(frozen=True)
class Response:
    """A response to be added to the index."""

    id: int
    bands: Sequence[int]
    shingles: AbstractSet[str]


@dataclass(frozen=True)
class Near:
    """The earlier response that another one nearly duplicates."""

    id: int
    jaccard: float
    """Size of the shingles' intersection over size of their union."""


def admit(
    database: Database,
    run_id: int,
    responses: Sequence[Response],
    threshold: float,
    shingles: Callable[[str], AbstractSet[str]],
) -> dict[int, Near]:
    """Add responses to the index, except near duplicates of indexed ones; returns these by id.

    A response that is indexed already, for example after a crash, stays indexed.

    Args:
        threshold: minimum Jaccard similarity of a near duplicate.
        shingles: returns the shingles of a text.
    """
    bands = [band for response in responses for band in response.bands]
    known = {response.id: response.shingles for response in responses}
    while True:
        with database.transaction() as tx:
            take_turns(tx, run_id)
            indexed = {
                row["id"]: row["bands"] for row in tx.execute(query("rows_with_bands"), {"bands": bands})
            }
            new = [id for id in indexed if id not in known]
            if not new:
                return _admit(tx, responses, indexed, known, threshold)
        # Texts are split without the lock, so the index may have grown afterwards.
        with database.transaction(read_only=True) as tx:
            rows = tx.execute(query("read_responses"), {"ids": new}).fetchall()
        known |= {id: frozenset[str]() for id in new}  # empty if the row was deleted meanwhile
        known |= {row["id"]: shingles(row["response"]) for row in rows}


def take_turns(tx: Transaction, run_id: int) -> None:
    """Block the run's other processors until this transaction ends."""
    tx.execute(query("take_turns"), {"run_id": run_id})


def kept(tx: Transaction, ids: Sequence[int]) -> dict[int, bool]:
    """Return, for each of these rows that exists and is not dropped, whether `clean` has judged it."""
    if not ids:
        return {}
    return {row["id"]: row["is_judged"] for row in tx.execute(query("kept_rows"), {"ids": list(ids)})}


def jaccard(left: AbstractSet[str], right: AbstractSet[str]) -> float:
    """Size of the intersection of two sets over the size of their union."""
    both = len(left & right)
    return both / (len(left) + len(right) - both)


def _admit(
    tx: Transaction,
    responses: Sequence[Response],
    indexed: Mapping[int, Sequence[int]],
    known: Mapping[int, AbstractSet[str]],
    threshold: float,
) -> dict[int, Near]:
    by_band: dict[int, list[int]] = {}
    for id, bands in indexed.items():
        for band in bands:
            by_band.setdefault(band, []).append(id)
    dropped: dict[int, Near] = {}
    admitted: list[Response] = []
    for response in responses:
        if response.id in indexed:
            continue
        others = {id for band in response.bands for id in by_band.get(band, ())}
        near = [Near(id, jaccard(response.shingles, known[id])) for id in sorted(others)]
        nearest = max(near, key=lambda candidate: candidate.jaccard, default=None)
        if nearest is not None and nearest.jaccard >= threshold:
            dropped[response.id] = nearest
            continue
        admitted.append(response)
        for band in response.bands:
            by_band.setdefault(band, []).append(response.id)
    if admitted:
        values = {
            "ids": [response.id for response in admitted],
            "bands": [band for response in admitted for band in response.bands],
            "each": len(admitted[0].bands),
        }
        tx.execute(query("write_bands"), values)
    return dropped
