"""Embeddings of responses, for semantic search, and semantic near-duplicate removal."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from trinity_db.arrays import vectors
from trinity_db.arrays.vectors import EmbeddedRow, Near, Vectors
from trinity_db.config.shared import ModelConfig
from trinity_db.errors import ConfigError
from trinity_db.models import check_libraries, hub
from trinity_db.models.folder_digest import digest
from trinity_db.models.loading import check_folder
from trinity_db.processors.jobs.embedding import Embedder, EmbeddingEndpoint, Local, digest_of
from trinity_db.processors.lists.step import Context, Drop, step
from trinity_db.store import instances, neighbours

FOUND = 100  # nearest rows fetched first; more are fetched if all of these have been dropped since


@dataclass(frozen=True)
class _Query:
    """A row, and the rows that it is compared with."""

    vector: NDArray[np.float32]
    position: int
    where: Mapping[str, int | None]
    limit: int = FOUND


def _address(url: str | None) -> str | None:
    parts = urlsplit(url or "")
    if url is not None and (parts.scheme not in ("http", "https") or not parts.hostname or parts.password):
        raise ValueError("url has the form https://api.openai.com/v1, without a password; use key_env")
    return url


@step(batch=64)
class Embed:
    """Writes an embedding of each response to Lance, for semantic search with `trinity-db search`.

    With `threshold` it also drops responses that mean nearly the same as an earlier one. The vectors survive
    restarts and are shared by all processors of a run. The vector of a row that this step drops is removed.
    Put this step last: a row that a later step drops counts as the first until its verdict is stored.

    Args:
        path: Folder of a sentence embedding model in Hugging Face format, or OWNER/NAME on the Hub. Each
            processor loads it.
        revision: Branch, tag or commit of a model on the Hub, like model.revision.
        url: Alternatively, the address of an endpoint with OpenAI's embeddings API, such as
            http://localhost:8000/v1.
        model: Name under which the endpoint serves the model.
        key_env: Name of the environment variable with the endpoint's key. null: no key.
        threshold: Cosine of two vectors from which the later row is dropped. null: no row is dropped.
        within: Scope of the comparison: the rollout `group`, all attempts at the `task` in this run, or the
            whole `run`.
    """

    def __init__(
        self,
        run: Context,
        *,
        path: Path | None = None,
        revision: str | None = None,
        url: Annotated[str | None, AfterValidator(_address)] = None,
        model: str | None = None,
        key_env: str | None = None,
        threshold: Annotated[float | None, Field(gt=0, le=1)] = None,
        within: Literal["group", "task", "run"] = "task",
    ) -> None:
        self._database = run.database
        self._embedder: Embedder
        if path is not None:
            self._embedder = Local(hub.folder(path, revision))
        else:
            self._embedder = EmbeddingEndpoint(str(url), str(model), key_env)
        self.loaded_digest = digest_of(self._embedder.made_by)
        self._threshold = threshold
        self._within = within
        self._vectors: Vectors | None = None

    @staticmethod
    def model_digest(
        context: Context,
        *,
        path: Path | None,
        revision: str | None,
        url: str | None,
        model: str | None,
        **options: Any,
    ) -> str:
        """Return the digest of the model that would be loaded now.

        Raises:
            ConfigError: if its folder is missing.
        """
        if path is None:
            return digest_of({"url": url, "model": model})
        folder = hub.folder(path, revision)
        check_folder(folder)
        return digest_of({"digest": digest(folder)})

    @staticmethod
    def check(
        policy: ModelConfig,
        *,
        path: Path | None,
        revision: str | None,
        url: str | None,
        model: str | None,
        key_env: str | None,
        **options: Any,
    ) -> None:
        """Find mistakes before the run is created, without loading the model.

        Raises:
            ConfigError: if not exactly one model is named, or its folder contains no model.
        """
        if (path is None) == (url is None):
            raise ConfigError("embed: give either path, a folder, or url, an endpoint.")
        if (url is None) != (model is None):
            raise ConfigError(
                "embed: url and model belong together: the endpoint, and the name of its model."
            )
        if path is not None:
            from trinity_db.models.embedding import check_embedding_model

            check_libraries("torch", "transformers")
            check_embedding_model(hub.folder(path, revision, with_weights=False))
        elif revision is not None:
            raise ConfigError("embed: revision applies to a model on the Hub, which path names.")
        else:
            EmbeddingEndpoint(str(url), str(model), key_env)

    def __call__(
        self,
        id: Sequence[int],
        run_id: Sequence[int],
        task_id: Sequence[int | None],
        group_id: Sequence[int | None],
        response: Sequence[str],
    ) -> Iterator[tuple[int, Drop | None]]:
        """Yield None or a drop that names the earlier row, for each row."""
        made = self._embedder.embed(response)
        rows = [EmbeddedRow(*row) for row in zip(id, task_id, group_id, made, strict=True)]
        table = self._table(run_id[0], made.shape[1])
        known = table.positions(id)  # present after a crash
        if new := [row for row in rows if row.experience_id not in known]:
            table.add(new)
        near = self._near(table, rows) if self._threshold is not None else {}
        if near:
            table.remove(list(near))
        for index, experience_id in enumerate(id):
            earlier = near.get(experience_id)
            detail = {"of": earlier.experience_id, "cosine": round(earlier.cosine, 4)} if earlier else None
            yield index, Drop("near_in_meaning", detail) if earlier else None

    def _table(self, run_id: int, size: int) -> Vectors:
        if self._vectors is None:
            with self._database.transaction() as tx:
                store = instances.identify(tx).id
            name = vectors.name_of(run_id, store, self.loaded_digest)
            self._vectors = vectors.opened(name)
            if self._vectors is None:
                # The only transaction that waits for Lance, because Lance does not create tables atomically.
                with self._database.transaction() as tx:
                    neighbours.take_turns(tx, run_id)
                    self._vectors = vectors.make(name, size)
        return self._vectors

    def _near(self, table: Vectors, rows: Sequence[EmbeddedRow]) -> dict[int, Near]:
        """Return, for each row to drop, the nearest earlier row that is not dropped itself.

        Another processor may be about to drop the earlier row. This one therefore judges such rows too, in
        the same way, against the rows before them.
        """
        positions = table.positions([row.experience_id for row in rows])
        queries = {
            row.experience_id: _Query(row.vector, positions[row.experience_id], self._where(row))
            for row in rows
        }
        known = dict(queries)
        earlier: dict[int, list[Near]] = {}
        dropped: dict[int, Near | None] = {}
        while queries:
            further: dict[int, _Query] = {}
            for id, near, is_all in self._earlier(table, queries):
                asking = queries[id]
                if not is_all:
                    further[id] = replace(asking, limit=2 * asking.limit)
                    continue
                earlier[id] = [earlier_row for earlier_row, _ in near]
                for earlier_row in (earlier_row for earlier_row, is_judged in near if not is_judged):
                    if earlier_row.experience_id in known or earlier_row.experience_id in dropped:
                        continue
                    vector = table.vector(earlier_row.experience_id)
                    if vector is None:  # another processor has just dropped it
                        dropped[earlier_row.experience_id] = None
                    else:
                        known[earlier_row.experience_id] = _Query(vector, earlier_row.position, asking.where)
                        further[earlier_row.experience_id] = known[earlier_row.experience_id]
            queries = further
        for id in sorted(earlier, key=lambda id: known[id].position):
            first = next(
                (earlier_row for earlier_row in earlier[id] if earlier_row.experience_id not in dropped), None
            )
            if first is not None:
                dropped[id] = first
        return {id: first for id in positions if (first := dropped.get(id)) is not None}

    def _where(self, row: EmbeddedRow) -> Mapping[str, int | None]:
        return {} if self._within == "run" else {f"{self._within}_id": getattr(row, f"{self._within}_id")}

    def _earlier(
        self, table: Vectors, queries: Mapping[int, _Query]
    ) -> Iterator[tuple[int, list[tuple[Near, bool]], bool]]:
        """Yield for each row its near earlier rows that are not dropped, the nearest first, each with whether
        it has a verdict already; then whether the list suffices: it is complete, or contains a row with a
        verdict.
        """
        assert self._threshold is not None
        answers = {
            id: table.near(query.vector, self._threshold, query.limit, query.where)
            for id, query in queries.items()
        }
        others = {near_row.experience_id for some in answers.values() for near_row in some}
        with self._database.transaction(read_only=True) as tx:
            is_judged = neighbours.kept(tx, sorted(others))
        for id, some in answers.items():
            near = [
                (near_row, is_judged[near_row.experience_id])
                for near_row in some
                if near_row.position < queries[id].position and near_row.experience_id in is_judged
            ]
            yield id, near, len(some) < queries[id].limit or any(is_judged for _, is_judged in near)
