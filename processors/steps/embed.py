"""Embeddings of responses, for searches by meaning, and near duplicates by meaning."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from trinity_db import vectors
from trinity_db.config import ModelConfig
from trinity_db.errors import ConfigError
from trinity_db.models import check_libraries, hub
from trinity_db.models.folder_digest import digest
from trinity_db.models.loading import check_folder
from trinity_db.processors.embedding import Embedder, Endpoint, Local, digest_of
from trinity_db.processors.step import Context, Drop, step
from trinity_db.store import instances, neighbours
from trinity_db.vectors import Near, Row, Vectors

FOUND = 100  # nearest rows that are looked at first; if all of them were dropped since, more are


@dataclass(frozen=True)
class _Asked:
    """A row, and which rows it is compared with."""

    vector: NDArray[np.float32]
    place: int
    where: Mapping[str, int | None]
    limit: int = FOUND


def _address(url: str | None) -> str | None:
    parts = urlsplit(url or "")
    if url is not None and (parts.scheme not in ("http", "https") or not parts.hostname or parts.password):
        raise ValueError("url has the form https://api.openai.com/v1, without a password; use key_env")
    return url


@step(batch=64)
class Embed:
    """Writes a vector of each response to Lance, by which `trinity-db search` finds rows by their meaning.

    With `threshold` it also drops responses that mean nearly the same as one that came first. The vectors
    survive restarts, and all processors of a run share them. A vector of a row that it drops is removed. Name
    this step last: a row that a later step drops counts as the first while its verdict is not written.

    Args:
        path: Folder of a model of sentence embeddings in Hugging Face format, or OWNER/NAME of one of the
            Hub. Each processor loads it.
        revision: Branch, tag or commit of a model of the Hub, as in model.revision.
        url: Or the address of an endpoint that speaks OpenAI's embeddings, as http://localhost:8000/v1.
        model: Name under which the endpoint serves the model.
        key_env: Name of the environment variable that holds the endpoint's key. null: it wants none.
        threshold: Smallest cosine of two vectors from which on the row is dropped. null: none is dropped.
        within: What a response is compared with: those of its rollout `group`, of all attempts of the run at
            its `task`, or of the whole `run`.
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
            self._embedder = Endpoint(str(url), str(model), key_env)
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
        """The digest of the model that would be loaded now.

        Raises:
            ConfigError: its folder is missing.
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
            ConfigError: no model is named, or two, or its folder has none.
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
            raise ConfigError("embed: revision is of a model of the Hub, which path names.")
        else:
            Endpoint(str(url), str(model), key_env)

    def __call__(
        self,
        id: Sequence[int],
        run_id: Sequence[int],
        task_id: Sequence[int | None],
        group_id: Sequence[int | None],
        response: Sequence[str],
    ) -> Iterator[tuple[int, Drop | None]]:
        """Why rows are dropped, each with the row that came first."""
        made = self._embedder.embed(response)
        rows = [Row(*row) for row in zip(id, task_id, group_id, made, strict=True)]
        table = self._table(run_id[0], made.shape[1])
        known = table.places(id)  # as after a crash
        if new := [row for row in rows if row.experience_id not in known]:
            table.add(new)
        near = self._near(table, rows) if self._threshold is not None else {}
        if near:
            table.remove(list(near))
        for place, one in enumerate(id):
            found = near.get(one)
            detail = {"of": found.experience_id, "cosine": round(found.cosine, 4)} if found else None
            yield place, Drop("near_in_meaning", detail) if found else None

    def _table(self, run_id: int, size: int) -> Vectors:
        if self._vectors is None:
            with self._database.transaction() as tx:
                store = instances.identify(tx).id
            name = vectors.name_of(run_id, store, self.loaded_digest)
            self._vectors = vectors.opened(name)
            if self._vectors is None:
                # Here alone a transaction waits for Lance, which does not make a table atomically.
                with self._database.transaction() as tx:
                    neighbours.take_turns(tx, run_id)
                    self._vectors = vectors.make(name, size)
        return self._vectors

    def _near(self, table: Vectors, rows: Sequence[Row]) -> dict[int, Near]:
        """For each row that is to be dropped, the nearest one that came before it and is not dropped.

        Another processor may be about to drop the earlier row. So this one judges such rows too, in the same
        way, by the rows before them.
        """
        places = table.places([row.experience_id for row in rows])
        asked = {
            row.experience_id: _Asked(row.vector, places[row.experience_id], self._where(row)) for row in rows
        }
        known = dict(asked)
        earlier: dict[int, list[Near]] = {}
        dropped: dict[int, Near | None] = {}
        while asked:
            further: dict[int, _Asked] = {}
            for id, near, is_all in self._earlier(table, asked):
                one = asked[id]
                if not is_all:
                    further[id] = replace(one, limit=2 * one.limit)
                    continue
                earlier[id] = [other for other, _ in near]
                for other in (other for other, is_judged in near if not is_judged):
                    if other.experience_id in known or other.experience_id in dropped:
                        continue
                    vector = table.vector(other.experience_id)
                    if vector is None:  # another processor dropped it just now
                        dropped[other.experience_id] = None
                    else:
                        known[other.experience_id] = _Asked(vector, other.place, one.where)
                        further[other.experience_id] = known[other.experience_id]
            asked = further
        for id in sorted(earlier, key=lambda id: known[id].place):
            first = next((other for other in earlier[id] if other.experience_id not in dropped), None)
            if first is not None:
                dropped[id] = first
        return {id: first for id in places if (first := dropped.get(id)) is not None}

    def _where(self, row: Row) -> Mapping[str, int | None]:
        return {} if self._within == "run" else {f"{self._within}_id": getattr(row, f"{self._within}_id")}

    def _earlier(
        self, table: Vectors, asked: Mapping[int, _Asked]
    ) -> Iterator[tuple[int, list[tuple[Near, bool]], bool]]:
        """For each row those before it that are near and not dropped, the nearest first.

        With each whether it is judged already; then whether these are enough: all, or one that is judged.
        """
        assert self._threshold is not None
        found = {
            id: table.near(one.vector, self._threshold, one.limit, one.where) for id, one in asked.items()
        }
        others = {one.experience_id for some in found.values() for one in some}
        with self._database.transaction(read_only=True) as tx:
            is_judged = neighbours.kept(tx, sorted(others))
        for id, some in found.items():
            near = [
                (one, is_judged[one.experience_id])
                for one in some
                if one.place < asked[id].place and one.experience_id in is_judged
            ]
            yield id, near, len(some) < asked[id].limit or any(is_judged for _, is_judged in near)
