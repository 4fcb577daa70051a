"""Semantic search for rows, in the vectors written by the step `embed`."""

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from trinity_db.arrays import vectors
from trinity_db.arrays.vectors import Vectors
from trinity_db.errors import ConfigError
from trinity_db.models import hub
from trinity_db.models.folder_digest import digest
from trinity_db.models.loading import check_folder
from trinity_db.postgres.connection import Database
from trinity_db.processors.config import ProcessorsConfig
from trinity_db.processors.jobs.embedding import Embedder, EmbeddingEndpoint, Local, digest_of
from trinity_db.store import instances

WIDEST = 2.0  # maximum cosine distance; no cosine is below 1 - WIDEST


class Models:
    """The embedding models that the caller's configurations name. No other model embeds words of a search.

    A table of vectors is data (see `trinity_db.run.trust`): its name contains the digest of its model,
    and words are sent to a model only if a configuration names one with that digest. Models are loaded at
    first use.
    """

    def __init__(self, configs: Iterable[ProcessorsConfig]) -> None:
        """Compute the digests of the models that the steps `embed` of these configurations name.

        Raises:
            ConfigError: a model's folder is missing.
        """
        self._loading = threading.Lock()
        self._loaded: dict[str, Embedder] = {}
        self._loaders: dict[str, Callable[[], Embedder]] = {}
        for config in configs:
            for step in config.clean:
                if step.name == "embed":
                    self._add(step.options.get("path"), step.options)

    def _add(self, path: str | None, options: dict[str, str]) -> None:
        if path is not None:
            folder = hub.folder(Path(path), options.get("revision"))
            check_folder(folder)
            self._loaders[vectors.short_digest(digest_of({"digest": digest(folder)}))] = partial(
                Local, folder
            )
            return
        named = {"url": options["url"], "model": options["model"]}
        loader = partial(EmbeddingEndpoint, named["url"], named["model"], options.get("key_env"))
        self._loaders[vectors.short_digest(digest_of(named))] = loader

    def get(self, digest: str) -> Embedder | None:
        """Return the model with this digest, as names of tables contain it; None if none is configured.

        Raises:
            ConfigError: the model cannot be loaded, or the variable with its key is not set.
        """
        with self._loading:
            if digest in self._loaders and digest not in self._loaded:
                self._loaded[digest] = self._loaders[digest]()
            return self._loaded.get(digest)


def by_words(
    database: Database, words: str, run_id: int | None, limit: int, models: Models
) -> dict[int, float] | None:
    """Return the cosine of the rows whose responses are nearest in meaning, the nearest first. None: no
    vectors.

    Tables whose model is not configured are skipped.

    Args:
        run_id: Run to search; None: all runs with vectors.

    Raises:
        ConfigError: if no table's model is configured.
        TrinityError: if the model's endpoint does not answer.
    """
    cosines: dict[int, float] = {}
    tables = list(_tables(database, run_id))
    named = [(table, model) for name, table in tables if (model := models.get(vectors.digest_in(name)))]
    if tables and not named:
        raise ConfigError(
            "No configuration names the model that made these vectors, and a table of vectors is not trusted "
            "to name one: pass the run's configuration to trinity-db search or trinity-db page with --config "
            "FILE, or search texts with trinity-db search --by-words."
        )
    for table, model in named:
        [vector] = model.embed([words])
        cosines |= {near.experience_id: near.cosine for near in table.near(vector, 1 - WIDEST, limit, {})}
    return _best(cosines, limit) if tables else None


def like(database: Database, id: int, run_id: int | None, limit: int) -> dict[int, float] | None:
    """Return the cosine of the rows nearest in meaning to a row; None if the row has no vector."""
    cosines: dict[int, float] = {}
    tables = list(_tables(database, None))
    vectors_by_model = {
        vectors.digest_in(name): vector for name, table in tables if (vector := table.vector(id)) is not None
    }
    for name, table in _tables(database, run_id) if vectors_by_model else ():
        if (vector := vectors_by_model.get(vectors.digest_in(name))) is not None:
            near = table.near(vector, 1 - WIDEST, limit + 1, {})
            cosines |= {row.experience_id: row.cosine for row in near if row.experience_id != id}
    return _best(cosines, limit) if vectors_by_model else None


def _tables(database: Database, run_id: int | None) -> Iterator[tuple[str, Vectors]]:
    with database.transaction(read_only=True) as tx:
        store = instances.known(tx)
    for name in vectors.names(run_id, store) if store is not None else ():
        if (table := vectors.opened(name)) is not None:
            yield name, table


def _best(cosines: dict[int, float], limit: int) -> dict[int, float]:
    order = sorted(cosines, key=lambda id: (-cosines[id], id))
    return {id: cosines[id] for id in order[:limit]}
