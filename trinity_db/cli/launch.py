"""From a configuration file to a role at work in this process."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from trinity_db import settings
from trinity_db.cli.configuration import RunConfig
from trinity_db.database import Database, Transaction, open_database, retry
from trinity_db.errors import ConfigError
from trinity_db.service import LEASE_SECONDS, is_orphan, is_supervised
from trinity_db.store import groups, runs

Result = TypeVar("Result")


def read(path: Path, overrides: Sequence[str] | None) -> RunConfig:
    """The configuration in a file, with overrides.

    Raises:
        ConfigError: naming the file, the key and the nearest right one.
    """
    return settings.load(RunConfig, path, overrides or ())


def arguments(path: Path, overrides: Sequence[str] | None) -> list[str]:
    """The same configuration as arguments for another command."""
    return [str(path), *(argument for override in overrides or () for argument in ("--set", override))]


def open_run(config: RunConfig) -> tuple[Database, runs.Run]:
    """The store and the run, created if this is the first role that comes.

    Raises:
        TrinityError: a data set, taskset or run that the configuration names does not exist. Nothing is
            created then, so that the run's name stays free for the corrected configuration.
    """
    # A command by hand may name the wrong server; a supervisor has seen that it is the right one.
    database = retry(lambda: open_database(LEASE_SECONDS), give_up=lambda: not is_supervised() or is_orphan())

    def join(tx: Transaction) -> runs.Run:
        stored = config.stored()
        run = runs.open_run(tx, config.name, stored, config.data, config.holdout, RunConfig.completed)
        if config.taskset is not None:
            runs.find_taskset(tx, config.taskset)
        if config.model.run is not None:
            runs.find(tx, config.model.run)
        return run

    return database, decide(database, join)


def decide(database: Database, verb: Callable[[Transaction], Result]) -> Result:
    """One transaction of a role that does not work yet; a database that is away is waited for."""

    def attempt() -> Result:
        with database.transaction() as tx:
            return verb(tx)

    return database.retry(attempt, give_up=is_orphan)


def check(config: RunConfig) -> tuple[Database, runs.Run]:
    """Open the run, and find what would stop its roles right after their start.

    Raises:
        TrinityError: the taskset, the model, the workflow or a reward function does not exist, or an extra
            is missing.
    """
    from trinity_db.explorer.workflow import load
    from trinity_db.models import check_source
    from trinity_db.processors.score import Scorer

    check_source(config.model)
    load(config.explorer.workflow)
    Scorer(config.processors.score)
    return open_run(config)


def explore(config: RunConfig) -> None:
    """Be an explorer until the run is finished or a signal comes."""
    if not config.is_online:
        raise ConfigError(
            f"Run '{config.name}' is offline (algorithm {config.algorithm.name}): nothing to explore."
        )
    from trinity_db.models import check_source

    check_source(config.model)  # before the imports: it says which extra is missing
    from trinity_db.explorer.service import Explorer
    from trinity_db.explorer.transformers_engine import TransformersEngine
    from trinity_db.explorer.workflow import load

    workflow = load(config.explorer.workflow)  # before the run is created
    database, run = open_run(config)
    taskset = config.taskset
    assert taskset is not None
    taskset_id = decide(database, lambda tx: runs.find_taskset(tx, taskset))
    Explorer(
        database,
        run,
        config.explorer,
        workflow,
        TransformersEngine(),
        groups.Pace(config.max_staleness, config.trainer.batch_size * (config.trainer.publish_every or 1)),
        groups.Selection(taskset_id, config.explorer.order == "shuffle", config.seed),
        config.model.prompt_template,
    ).serve()


def process(config: RunConfig, drain: bool) -> bool:
    """Be the processors until the run is finished or nothing is left (drain); False if a signal came."""
    from trinity_db.processors.score import Scorer
    from trinity_db.processors.service import Processors

    Scorer(config.processors.score)  # before the run is created
    database, run = open_run(config)
    processors = Processors(database, run, config.processors, drain, config.requires_reward)
    processors.serve()
    return not processors.stopping


def train(config: RunConfig) -> None:
    """Be the trainer until the last step is done or a signal comes."""
    from trinity_db.models import check_source

    check_source(config.model)  # before the imports: it says which extra is missing
    from trinity_db.trainer.service import Trainer, TrainerSetup

    database, run = open_run(config)
    setup = TrainerSetup(
        config.trainer,
        config.algorithm,
        config.model,
        config.seed,
        config.max_staleness,
        config.explorer.temperature,
        config.checkpoints,
        config.sampler,
        config.max_uses,
    )
    Trainer(database, run, setup).serve()
