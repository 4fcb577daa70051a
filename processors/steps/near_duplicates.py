"""Near-duplicate removal with MinHash and locality-sensitive hashing."""

import importlib.util
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trinity_db.config.shared import ModelConfig
from trinity_db.errors import ConfigError
from trinity_db.processors.jobs.words import runs, words
from trinity_db.processors.lists.step import Context, Drop, step
from trinity_db.store import neighbours

HASHES = 128  # per signature
FOUND = 0.995  # minimum probability of detecting a near duplicate exactly at the threshold

Within = Literal["group", "task", "run"]


@step(batch=256)
class NotNearDuplicate:
    """Drops responses that are nearly the same as an earlier one, measured by shared runs of words.

    MinHash, using the package datasketch, finds candidates, and the exact similarity decides. The index is in
    the store: it survives restarts, and all processors of a run share it. Responses dropped by a later step
    are no longer compared, so put this step last. A response of fewer words than a run is compared as a
    whole; a response without words passes.

    Args:
        threshold: Jaccard similarity of the runs of words from which the later row is dropped. Of the rows
            exactly at the threshold, about 0.5% are missed.
        words: Length of a run.
        within: Scope of the comparison: the rollout `group`, all attempts at the `task` in this run, or the
            whole `run`. Responses of earlier policies count too, so with `task` a policy that repeats itself
            loses more and more rows.

    Source: Broder 1997; for training data Lee et al., arXiv 2107.06499, who use runs of 5 and 0.8.
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
        """Check before the run is created that datasketch is installed.

        Raises:
            ConfigError: if it is not.
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
        """Yield None or a drop that names the earlier row, for each row."""
        places = {"run": run_id, "task": task_id, "group": group_id}[self._within]
        shingles = {
            experience_id: self._shingles(text) for experience_id, text in zip(id, response, strict=True)
        }
        compared = [
            (experience_id, scope_id)
            for experience_id, scope_id in zip(id, places, strict=True)
            if shingles[experience_id]
        ]
        signatures = _signatures([shingles[experience_id] for experience_id, _ in compared])
        responses = [
            neighbours.Response(
                experience_id, self._bands(signature, (run_id[0], scope_id)), shingles[experience_id]
            )
            for (experience_id, scope_id), signature in zip(compared, signatures, strict=True)
        ]
        near = neighbours.admit(self._database, run_id[0], responses, self._threshold, self._shingles)
        for number, experience_id in enumerate(id):
            earlier = near.get(experience_id)
            detail = {"of": earlier.id, "jaccard": round(earlier.jaccard, 4)} if earlier else None
            yield number, Drop("near_duplicate", detail) if earlier else None

    def _shingles(self, text: str) -> frozenset[str]:
        return frozenset(runs(words(text), self._words))

    def _bands(self, signature: NDArray[np.uint32], scope_id: tuple[int, int | None]) -> list[int]:
        """Return a number for each band, equal only for the same band in the same scope."""
        numbers = []
        for number, start in enumerate(range(0, HASHES - self._rows + 1, self._rows)):
            band = signature[start : start + self._rows].astype("<u4").tobytes()
            key = f"{self._within} {scope_id} {self._words} {self._rows} {number} ".encode()
            numbers.append(int.from_bytes(blake2b(key + band, digest_size=8).digest(), "big", signed=True))
        return numbers


def band_rows(threshold: float) -> int:
    """Return the number of hashes in a band that detects near duplicates at the threshold with probability
    FOUND.

    Two signatures agree in each hash with a probability equal to the Jaccard similarity of the sets.
    """

    def probability(rows: int) -> float:
        return float(1 - (1 - threshold**rows) ** (HASHES // rows))

    return max(rows for rows in range(1, HASHES + 1) if probability(rows) >= FOUND)


def _signatures(sets: Sequence[frozenset[str]]) -> list[NDArray[np.uint32]]:
    """Return [HASHES] numbers for each set, the same in every process."""
    from datasketch import MinHash, sha1_hash32  # here, because it loads scipy

    as_bytes = ([shingle.encode() for shingle in sorted(shingles)] for shingles in sets)
    hashed = MinHash.generator(as_bytes, num_perm=HASHES, seed=1, hashfunc=sha1_hash32, scheme="affine32")
    return [signature.hashvalues for signature in hashed]
