"""Runs an explorer of a run in this process."""

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from trinity_db.errors import ConfigError
from trinity_db.run import joining
from trinity_db.run.checks import check_members, check_weights, is_decoded
from trinity_db.run.configuration import RunConfig
from trinity_db.store import groups, runs
from trinity_db.trainer.recipes.recipes import compares_with_greedy, has_own_parts
from trinity_db.worker.service import is_orphan

if TYPE_CHECKING:
    from trinity_db.explorer.http.listener import EndpointAddress


def run_explorer(
    config: RunConfig, change: bool = False, most: int | None = None, address: "EndpointAddress | None" = None
) -> None:
    """Run an explorer until the run finishes or a signal arrives.

    Args:
        address: offers attempts to programs that other people start, in place of the run's workflow.
        most: stop when the run has this many groups. Then no trainer is needed to publish version 0.
    """
    if not config.is_online:
        raise ConfigError(
            f"Run '{config.name}' is offline (algorithm {config.algorithm.name}): nothing to explore."
        )
    config = joining.pinned(config)
    _check_source(config, publishes=most is not None)  # before the imports: it names a missing extra
    from trinity_db.explorer import engines
    from trinity_db.explorer.attempt.workflow import of
    from trinity_db.explorer.loop import tasks
    from trinity_db.explorer.service import Explorer, ExplorerSetup

    # Before the run is created: these report errors in the user's code.
    offers = None if address is None or config.explorer.is_external else address.offers
    workflow = of(config.explorer) if offers is None else offers
    record_routing = config.explorer.record_routing
    engine = engines.create(config.explorer.engine, config.model, record_routing=record_routing)
    tasks.check(config.explorer.tasks)
    check_members(config)
    if has_own_parts(config.algorithm):
        from trinity_db.trainer.algorithms.compositions import create

        create(config.algorithm)
    pace = pace_of(config, most)
    database, run = joining.open_run(config, change)
    if most is not None:
        from trinity_db.trainer.checkpoints import publish_initial

        publish = partial(publish_initial.begin, database, run, config.model, config.seed, config.checkpoints)
        database.retry(partial(publish, config.trainer.weights), give_up=is_orphan)
    tasksets = joining.decide(
        database, lambda tx: {runs.find_taskset(tx, name): weight for name, weight in config.tasksets.items()}
    )
    setup = ExplorerSetup(
        config=config.explorer,
        workflow=workflow,
        engine=engine,
        pace=pace,
        selection=tasks.selection(config.explorer.tasks, tasksets, config.seed),
        prompts=config.model,
        places=joining.recorded_places(config),
        greedy=compares_with_greedy(config.algorithm),
        needs_reward=config.attempts_need_reward,
    )
    explorer = Explorer(database, run, setup, address=address)
    with closing(engine):
        explorer.serve()


def _check_source(config: RunConfig, publishes: bool) -> None:
    """Check the starting model, as far as it is on this machine, and the object store.

    Args:
        publishes: whether the explorer may publish version 0.

    Raises:
        TrinityError: if the model does not exist or does not fit; see also `check_weights`.
    """
    from trinity_db.models import check_libraries, check_source
    from trinity_db.weights.bucket import Bucket

    path, weights = config.model.path, config.trainer.weights
    if weights is None or publishes or path is None or path.expanduser().is_dir():
        check_source(config.model, is_decoded(config), config.explorer.record_routing)
    else:  # version 0 is fetched like every other version
        check_libraries("torch", "transformers")
    if publishes:
        check_weights(config)
    elif weights is not None:
        Bucket(weights)  # read access is enough


def pace_of(config: RunConfig, most: int | None = None) -> groups.Pace:
    """Return the limit on how far explorers may run ahead.

    Raises:
        ConfigError: if fewer groups than `most` can be explored before a trainer is needed.
    """
    per_version = config.trainer.batch_size * (config.trainer.publish_every or 1)
    if most is None:
        return groups.Pace(config.max_staleness, per_version, config.explorer.backlog)
    if config.max_staleness is not None and most > (room := (config.max_staleness + 1) * per_version):
        raise ConfigError(
            f"--groups {most}: with max_staleness {config.max_staleness} explorers start {room} groups ahead "
            "of a trainer, and more would expire; set max_staleness: null, or use fewer groups."
        )
    return groups.Pace(config.max_staleness, per_version, most=most)
