"""Reads the configuration of a run, and opens the run in the store."""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TypeVar

from trinity_db.config import base
from trinity_db.postgres.connection import Database, Transaction, retry
from trinity_db.postgres.opening import open_database
from trinity_db.run import changes, model_revisions
from trinity_db.run.configuration import RunConfig
from trinity_db.store import adoption, evaluations, runs
from trinity_db.weights.recorded_places import RecordedPlaces
from trinity_db.worker.service import LEASE_SECONDS, is_orphan, is_supervised

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


def read(path: Path, overrides: Sequence[str] | None, joins: bool = False) -> RunConfig:
    """Read a configuration file, with overrides.

    Args:
        joins: leave the check of processing steps, which imports all of them, to `open_run`. It checks them
            unless the run has this configuration already.

    Raises:
        ConfigError: names the file, the key and the nearest valid key.
    """
    return base.load(RunConfig, path, overrides or (), base.JOINS if joins else None)


def arguments(path: Path, overrides: Sequence[str] | None) -> list[str]:
    """Return the same configuration as arguments for another command."""
    return [str(path), *(argument for override in overrides or () for argument in ("--set", override))]


def pinned(config: RunConfig, open_store: Callable[[], Database] | None = None) -> RunConfig:
    """Pin each Hub model in a configuration to a commit: the commit that its run has recorded, if any.

    Raises: see `model_revisions.pinned`.
    """
    if not model_revisions.are_named(config):
        return config
    with closing((open_store or _opened)()) as database:
        stored = decide(
            database,
            lambda tx: runs.find(tx, config.name).config if config.name in runs.names(tx) else None,
        )
    return model_revisions.pinned(config, stored)


def _opened() -> Database:
    # A command may name the wrong server, so it must not retry; a supervisor has checked that it is the right
    # one.
    return retry(lambda: open_database(LEASE_SECONDS), give_up=lambda: not is_supervised() or is_orphan())


def open_run(config: RunConfig, change: bool = False) -> tuple[Database, runs.Run]:
    """Open the store, and the run, which the first role creates.

    With `change`, an existing run continues with this configuration, if the changed keys allow it.

    Raises:
        ConfigError: if the run has another configuration that may not be changed to this one, or a processing
            step does not exist or does not take its options.
        TrinityError: if a data set, taskset or run in the configuration does not exist. Then nothing is
            created, so that the run's name stays free for the corrected configuration.
    """
    with ExitStack() as on_error:
        database = on_error.enter_context(closing(_opened()))
        if not decide(database, partial(_is_stored, config=config)):
            config.processors.check_built_in_steps()
        sources = adoption.Sources(config.data, config.holdout, config.adopts_groups)
        run = decide(database, partial(_join, config=config, sources=sources, change=change))
        hold = partial(runs.hold_adopter, run=run)
        adoption.adopt_runs(database, run.id, hold, sources, give_up=is_orphan)
        on_error.pop_all()
    return database, run


def _is_stored(tx: Transaction, config: RunConfig) -> bool:
    """Whether the run exists with this configuration."""
    if config.name not in runs.names(tx):
        return False
    return RunConfig.completed(runs.find(tx, config.name).config) == config.stored()


def _join(tx: Transaction, config: RunConfig, sources: adoption.Sources, change: bool) -> runs.Run:
    run = runs.open_run(
        tx,
        config.name,
        config.stored(),
        config.algorithm.draws,
        sources,
        RunConfig.completed,
        lambda tx, run, differences: changes.change(tx, run, config, differences, asked_for=change),
    )
    for taskset in config.tasksets:
        runs.find_taskset(tx, taskset)
    if config.model.run is not None:
        runs.find(tx, config.model.run)
    if config.evaluation is not None:
        _check_evaluated(tx, config.evaluation.taskset, config.tasksets)
    return run


def _check_evaluated(tx: Transaction, evaluated: Sequence[str], trained: Iterable[str]) -> None:
    """Warn about tasks that are both trained on and evaluated.

    Raises:
        NotFound: if a taskset does not exist or is empty.
    """
    for name in evaluated:
        taskset_id = runs.find_taskset(tx, name)
        for training_set in trained:
            if shared := evaluations.shared_tasks(tx, taskset_id, runs.find_taskset(tx, training_set)):
                logger.warning(
                    "%d tasks of '%s' are in '%s' too, which is trained on", shared, name, training_set
                )


def decide(database: Database, verb: Callable[[Transaction], Result]) -> Result:
    """Run one transaction of a role that has not started work, waiting for an unreachable database."""

    def attempt() -> Result:
        with database.transaction() as tx:
            return verb(tx)

    return database.retry(attempt, give_up=is_orphan)


def recorded_places(config: RunConfig) -> RecordedPlaces:
    """Folders and addresses of versions that a user's configuration file names."""
    trainer = config.trainer
    return RecordedPlaces(trainer.checkpoints, config.model.path, trainer.weights, trainer.broadcast)
