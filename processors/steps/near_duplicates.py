"""Responses that are nearly the same as an earlier one, by MinHash and locality-sensitive hashing."""

import importlib.util
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trinity_db.config import ModelConfig
from trinity_db.errors import ConfigError
from trinity_db.processors.step import Context, Drop, step
from trinity_db.processors.words import runs, words
from trinity_db.store import neighbours

HASHES = 128  # of a signature
FOUND = 0.995  # least chance that a near duplicate right at the threshold shares a band with the first

Within = Literal["group", "task", "run"]


@step(batch=256)
class NotNearDuplicate:
    """Drops responses that are nearly the same as one that came first: most runs of words are in both.

    MinHash, by the package datasketch, finds which responses may be so, and the exact share decides. The
    index is in the store: it survives restarts, and all processors of a run share it. A response that is
    nearly the same as one that a later step dropped is compared with it no more, so name this step last. The
    response of fewer words than a run is compared as a whole, and one without words passes.

    Args:
        threshold: Smallest share (Jaccard similarity) of runs of words in common, from which on the row is
            dropped. Of the rows right at it, some 0.5% are not found.
        words: Length of a run.
        within: What a response is compared with: those of its rollout `group`, of all attempts of the run at
            its `task`, or of the whole `run`. What an earlier policy said of the task counts too, so with
            `task` a policy that repeats itself has fewer and fewer rows.

    Source: Broder 1997; for training data Lee et al., arXiv 2107.06499, who have runs of 5 and 0.8.
    """

    def __init__(
        self,
        run: Context,
        *,
        threshold: Annotated[float, Field(ge=0.1, le=1)] = 0.8,
        words: Annotated[int, Field(ge=1, le=100)] = 5,
        within: Within = "task",
    ) -> None:
        self._database = run.database
        self._threshold = threshold
        self._words = words
        self._within = within
        self._rows = band_rows(threshold)

    @staticmethod
    def check(model: ModelConfig, **options: Any) -> None:
        """Find out before the run is created that the package is missing.

        Raises:
            ConfigError: it is.
        """
        if importlib.util.find_spec("datasketch") is None:
            raise ConfigError(
                "not_near_duplicate needs the package datasketch: pip install 'trinity-db[duplicates]'."
            )

    def __call__(
        self,
        id: Sequence[int],
        run_id: Sequence[int],
        task_id: Sequence[int | None],
        group_id: Sequence[int | None],
        response: Sequence[str],
    ) -> Iterator[tuple[int, Drop | None]]:
        """Why rows are dropped, each with the row that came first."""
        places = {"run": run_id, "task": task_id, "group": group_id}[self._within]
        shingles = {one: self._shingles(text) for one, text in zip(id, response, strict=True)}
        compared = [(one, place) for one, place in zip(id, places, strict=True) if shingles[one]]
        signatures = _signatures([shingles[one] for one, _ in compared])
        responses = [
            neighbours.Response(one, self._bands(signature, (run_id[0], place)), shingles[one])
            for (one, place), signature in zip(compared, signatures, strict=True)
        ]
        near = neighbours.admit(self._database, run_id[0], responses, self._threshold, self._shingles)
        for number, one in enumerate(id):
            found = near.get(one)
            detail = {"of": found.id, "jaccard": round(found.jaccard, 4)} if found else None
            yield number, Drop("near_duplicate", detail) if found else None

    def _shingles(self, text: str) -> frozenset[str]:
        return frozenset(runs(words(text), self._words))

    def _bands(self, signature: NDArray[np.uint32], place: tuple[int, int | None]) -> list[int]:
        """A number for each band, by which it is equal only to the same band of the same place."""
        found = []
        for number, start in enumerate(range(0, HASHES - self._rows + 1, self._rows)):
            band = signature[start : start + self._rows].astype("<u4").tobytes()
            key = f"{self._within} {place} {self._words} {self._rows} {number} ".encode()
            found.append(int.from_bytes(blake2b(key + band, digest_size=8).digest(), "big", signed=True))
        return found


def band_rows(threshold: float) -> int:
    """How many hashes make a band: as many as find a near duplicate at the threshold with chance FOUND.

    Two signatures agree in each hash with a chance that is the Jaccard similarity of the sets.
    """

    def found(rows: int) -> float:
        return float(1 - (1 - threshold**rows) ** (HASHES // rows))

    return max(rows for rows in range(1, HASHES + 1) if found(rows) >= FOUND)


def _signatures(sets: Sequence[frozenset[str]]) -> list[NDArray[np.uint32]]:
    """[HASHES] numbers for each set, the same in every process."""
    from datasketch import MinHash, sha1_hash32  # here, because it loads scipy

    as_bytes = ([one.encode() for one in sorted(found)] for found in sets)
    hashed = MinHash.generator(as_bytes, num_perm=HASHES, seed=1, hashfunc=sha1_hash32, scheme="affine32")
    return [one.hashvalues for one in hashed]
