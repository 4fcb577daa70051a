"""Commits of a run's Hub models: resolved once, and recorded in the run's configuration.

A file names a branch or no revision; the stored configuration has `main@COMMIT` instead. Each role, at each
start, uses the recorded commits for the models in its own file, and resolves only others.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from trinity_db.config.base import STORED
from trinity_db.models import hub
from trinity_db.processors.config import StepConfig
from trinity_db.run.configuration import RunConfig

_STEPS = ("teacher", "reward_model", "embed")
"""Built-in steps that load a model, with the options `path` and `revision`."""
_LISTS = ("clean", "score")
_Step = TypeVar("_Step", bound=StepConfig)

Model = tuple[Path, str | None]
"""Path and revision of a model."""
_Find = Callable[[Path, str | None], str | None]


def are_named(config: RunConfig) -> bool:
    """Return whether a configuration names a model of the Hub."""
    return any(hub.is_name(path) for path, _ in _models(config))


def recorded(config: RunConfig, stored: Mapping[str, Any]) -> RunConfig:
    """Return a configuration with the commits that a stored one has for the same models, without the network.

    Models without a recorded commit stay unchanged.
    """
    known = _recorded(stored)
    return _with_revisions(config, lambda path, revision: known.get((path, revision), revision))


def pinned(config: RunConfig, stored: Mapping[str, Any] | None = None) -> RunConfig:
    """Return a configuration with a commit for each model of the Hub: the recorded one, or the newest.

    Args:
        stored: the run's stored configuration; None if the run does not exist.

    Raises:
        ConfigError: if the model or revision does not exist.
        TrinityError: if the hub is unreachable and the cache does not have the model.
    """
    known = _recorded(stored or {})

    def find(path: Path, revision: str | None) -> str | None:
        return known[path, revision] if (path, revision) in known else hub.pin(str(path), revision)

    return _with_revisions(config, find)


def pinned_step(step: _Step) -> _Step:
    """Return a step with the newest commit of its model, if that is on the Hub.

    Raises: as `pinned`.
    """
    return _with_revision(step, lambda path, revision: hub.pin(str(path), revision))


def _recorded(stored: Mapping[str, Any]) -> dict[Model, str | None]:
    """Map the revisions that files may name to those of a stored configuration.

    None: the path was a folder.
    """
    try:
        models = [*_models(RunConfig.model_validate(stored, context=STORED))] if stored else []
    except ValidationError:  # written by another version of this program; open_run reports it
        models = []
    known: dict[Model, str | None] = {}
    for path, revision in models:
        known[path, revision] = revision
        if revision is not None:
            branch = hub.requested(revision)
            if hub.names_commit(branch):  # a commit in the file overrides the stored one
                continue
            known[path, branch] = revision
            if branch == hub.requested(None):
                known[path, None] = revision
    return known


def _models(config: RunConfig) -> Iterator[Model]:
    if config.model.path is not None:
        yield config.model.path, config.model.revision
    for name in _LISTS:
        for step in getattr(config.processors, name):
            if (path := _path_of(step)) is not None:
                yield path, step.options.get("revision")


def _path_of(step: StepConfig) -> Path | None:
    path = step.options.get("path") if step.name in _STEPS else None
    return Path(path) if isinstance(path, str) else None


def _with_revisions(config: RunConfig, find: _Find) -> RunConfig:
    """Return the configuration with other revisions of its Hub models."""
    if not are_named(config):
        return config
    model = config.model
    if model.path is not None and hub.is_name(model.path):
        model = model.model_copy(update={"revision": find(model.path, model.revision)})
    lists = {
        name: [_with_revision(step, find) for step in getattr(config.processors, name)] for name in _LISTS
    }
    processors = config.processors.model_copy(update=lists)
    return config.model_copy(update={"model": model, "processors": processors})


def _with_revision(step: _Step, find: _Find) -> _Step:
    path = _path_of(step)
    revision = find(path, step.options.get("revision")) if path is not None and hub.is_name(path) else None
    return step if revision is None else step.model_copy(update={"revision": revision})
