"""From a configuration file to a role at work in this process."""

import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from trinity_db import model_revisions, settings
from trinity_db.cli import changing, disk
from trinity_db.configuration import RunConfig
from trinity_db.database import Database, Transaction, retry
from trinity_db.diagnosis.finding import size
from trinity_db.endings import endings
from trinity_db.errors import ConfigError
from trinity_db.explorer.config import TransformersConfig
from trinity_db.opening import open_database
from trinity_db.service import LEASE_SECONDS, is_orphan, is_supervised
from trinity_db.sinks.follow import mirrored, sinks_of
from trinity_db.store import adoption, evaluations, groups, runs
from trinity_db.trainer.config import AlgorithmConfig
from trinity_db.trainer.parts.kinds import part
from trinity_db.trainer.recipes import PolicyGradientConfig
from trinity_db.weights.recorded_places import RecordedPlaces

if TYPE_CHECKING:
    from trinity_db.explorer.recording.listener import Place
    from trinity_db.trainer.checkpoints.disk_need import Shapes
    from trinity_db.trainer.checkpoints.recovery import Allowed
    from trinity_db.trainer.setup import TrainerSetup

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

ORPHAN_SECONDS = 0.5  # between two looks of a rank at whether the trainer lives


def read(path: Path, overrides: Sequence[str] | None) -> RunConfig:
    """The configuration in a file, with overrides.

    Raises:
        ConfigError: naming the file, the key and the nearest right one.
    """
    return settings.load(RunConfig, path, overrides or ())


def arguments(path: Path, overrides: Sequence[str] | None) -> list[str]:
    """The same configuration as arguments for another command."""
    return [str(path), *(argument for override in overrides or () for argument in ("--set", override))]


def pinned(config: RunConfig, open_store: Callable[[], Database] | None = None) -> RunConfig:
    """The configuration with a commit for each model of the Hub, as its run has recorded if there is one.

    Raises: as `model_revisions.pinned`.
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
    # A command by hand may name the wrong server; a supervisor has seen that it is the right one.
    return retry(lambda: open_database(LEASE_SECONDS), give_up=lambda: not is_supervised() or is_orphan())


def open_run(config: RunConfig, change: bool = False) -> tuple[Database, runs.Run]:
    """The store and the run, created if this is the first role that comes.

    With `change` a run that has another configuration goes on with this one, where its keys allow that.

    Raises:
        ConfigError: the run has another configuration, and may not have this one.
        TrinityError: a data set, taskset or run that the configuration names does not exist. Nothing is
            created then, so that the run's name stays free for the corrected configuration.
    """
    database = _opened()

    def join(tx: Transaction) -> runs.Run:
        stored = config.stored()
        run = runs.open_run(
            tx,
            config.name,
            stored,
            config.algorithm.draws,
            config.data,
            config.holdout,
            RunConfig.completed,
            lambda tx, run, differences: changing.change(tx, run, config, differences, asked_for=change),
            config.adopts_groups,
        )
        for taskset in config.tasksets:
            runs.find_taskset(tx, taskset)
        if config.model.run is not None:
            runs.find(tx, config.model.run)
        if config.evaluation is not None:
            _check_evaluated(tx, config.evaluation.taskset, config.tasksets)
        return run

    run = decide(database, join)
    hold = partial(runs.hold_adopter, run=run)
    adoption.adopt_runs(database, run.id, hold, config.data, config.holdout, config.adopts_groups)
    return database, run


def _check_evaluated(tx: Transaction, evaluated: Sequence[str], trained: Iterable[str]) -> None:
    """Warn of tasks that are trained on and evaluated.

    Raises:
        NotFound: a taskset does not exist, or is empty.
    """
    for name in evaluated:
        taskset_id = runs.find_taskset(tx, name)
        for other in trained:
            if shared := evaluations.shared_tasks(tx, taskset_id, runs.find_taskset(tx, other)):
                logger.warning("%d tasks of '%s' are in '%s' too, which is trained on", shared, name, other)


def decide(database: Database, verb: Callable[[Transaction], Result]) -> Result:
    """One transaction of a role that does not work yet. If the database is away, wait for it."""

    def attempt() -> Result:
        with database.transaction() as tx:
            return verb(tx)

    return database.retry(attempt, give_up=is_orphan)


def check_fits(config: RunConfig) -> None:
    """Find what would stop the roles of a run right after their start, as far as it needs no store.

    Raises:
        TrinityError: the model, the workflow, a step of the processors or a part of the algorithm does not
            exist or does not fit, or an extra is missing.
    """
    from trinity_db.explorer import engines, tasks
    from trinity_db.explorer.workflow import of
    from trinity_db.models import check_source
    from trinity_db.processors import lists
    from trinity_db.trainer.sampling import sampler_of

    check_source(config.model, _is_decoded(config), config.explorer.record_routing)
    _check_weights(config)
    of(config.explorer)
    engines.check(config.explorer.engine)
    tasks.check(config.explorer.tasks)
    sampler_of(config.sampler)
    _check_spare(config)
    lists.check(config.processors, config.model)
    if _may_not_fit(config):
        _trainer_setup(config)


def check_disk(config: RunConfig) -> None:
    """Say how much disk the versions and checkpoints of a run need. Files that the run has count as free.

    A model of the Hub is downloaded first. Nothing is logged if the starting model has no safetensors files
    on this machine.

    Raises:
        ConfigError: it is more than the disk has.
        NotFound: there is no run that `model.run` names.
    """
    from trinity_db.models import hub
    from trinity_db.trainer.checkpoints import disk_need

    trainer, folder = config.trainer.model_copy(update={"publish": config.publishes}), config.checkpoints
    shapes = _starting_shapes(config)
    if not shapes:
        return
    publish_every = trainer.publish_every or (1 if config.is_online else 100)
    copies_start = config.model.path is None or hub.is_name(config.model.path)
    need = disk_need.estimate(shapes, trainer, publish_every, copies_start)
    free = shutil.disk_usage(next(parent for parent in (folder, *folder.parents) if parent.exists())).free
    of_each = (
        f"up to {need.num_versions} versions of {size(need.version)} and "
        f"{need.num_checkpoints} checkpoints of {size(need.checkpoint)}"
    )
    if need.total > free + disk.bytes_in(folder):
        raise ConfigError(
            f"{folder}: the run needs {size(need.total)} ({of_each}), and {size(free)} are free. Free space "
            "there, lower trainer.keep_checkpoints, or name another folder with trainer.checkpoints."
        )
    logger.info("needs up to %s in %s: %s; %s are free", size(need.total), folder, of_each, size(free))
    if deltas := min(need.deltas, int(trainer.keep_deltas * free)):
        logger.info(
            "older versions in 16 bits take about %s more as deltas (trainer.keep_deltas)", size(deltas)
        )


def _starting_shapes(config: RunConfig) -> "Shapes":
    """The shapes of the starting model's tensors. Empty if they are not known on this machine."""
    from trinity_db.models import hub
    from trinity_db.models.adapter_folder import whole_model
    from trinity_db.store import policies
    from trinity_db.trainer.checkpoints import disk_need

    model = config.model
    if model.scratch is not None:
        return {"all": (model.scratch.num_parameters,)}
    path = None if model.path is None else hub.folder(model.path, model.revision)
    if model.run is not None:
        with closing(open_database(LEASE_SECONDS)) as database, database.transaction() as tx:
            versions = policies.with_checkpoint(tx, runs.find(tx, model.run).id)
        path = next((version.checkpoint for version in versions if version.is_start), None)
    return disk_need.shapes_of(whole_model(path)) if path is not None and path.is_dir() else {}


def _is_decoded(config: RunConfig) -> bool:
    """Whether the engine `transformers` samples from the model."""
    return config.is_online and isinstance(config.explorer.engine, TransformersConfig)


def _check_spare(config: RunConfig) -> None:
    """Refuse spare members where one member must not be left out.

    Raises:
        ConfigError: the algorithm reads the greedy one.
    """
    if config.explorer.spare and compares_with_greedy(config.algorithm):
        raise ConfigError(
            f"explorer.spare: algorithm {config.algorithm.name} compares with the greedy rollout of each "
            "group, which may not be among the first; leave out spare."
        )


def _may_not_fit(config: RunConfig) -> bool:
    """Whether only the composed algorithm can tell. To compose it takes seconds, because torch is loaded."""
    return config.trainer.reference.name != "start" or _has_own_parts(config)


def _has_own_parts(config: RunConfig) -> bool:
    """Whether a part of the algorithm is a function in a file of the user's."""
    return ".py:" in config.algorithm.model_dump_json()


def _trainer_setup(config: RunConfig, allowed: "Allowed | None" = None) -> "TrainerSetup":
    """What the trainer needs of a configuration. Called before the run is created.

    Raises:
        ConfigError: a part of the algorithm is not there or cannot be called so, or the reference does not
            fit.
    """
    from trinity_db.trainer.checkpoints.recovery import Allowed
    from trinity_db.trainer.setup import TrainerSetup

    setup = TrainerSetup(
        config.trainer.model_copy(update={"publish": config.publishes}),
        config.algorithm,
        config.model,
        config.seed,
        config.max_staleness,
        config.explorer.temperature,
        config.checkpoints,
        config.sampler,
        config.max_uses,
        config.processors.group.min_size,
        config.is_online,
        allowed or Allowed(),
    )
    setup.check()
    return setup


def explore(
    config: RunConfig, change: bool = False, most: int | None = None, place: "Place | None" = None
) -> None:
    """Be an explorer until the run is finished or a signal comes.

    Args:
        place: where programs that other people start are given attempts, in place of the run's workflow.
        most: end when the run has so many groups. No trainer is needed then to publish version 0.
    """
    if not config.is_online:
        raise ConfigError(
            f"Run '{config.name}' is offline (algorithm {config.algorithm.name}): nothing to explore."
        )
    config = pinned(config)
    _check_explored(config, publishes=most is not None)  # before the imports: it says which extra is missing
    from trinity_db.explorer import engines, tasks
    from trinity_db.explorer.service import Explorer
    from trinity_db.explorer.workflow import of

    # Before the run is created: these find what is the user's own and does not fit.
    workflow = of(config.explorer) if place is None or place.offers is None else place.offers
    record_routing = config.explorer.record_routing
    engine = engines.create(config.explorer.engine, config.model, record_routing=record_routing)
    tasks.check(config.explorer.tasks)
    _check_spare(config)
    if _has_own_parts(config):
        from trinity_db.trainer.algorithms.compositions import create

        create(config.algorithm)
    greedy = compares_with_greedy(config.algorithm)
    pace = _pace(config, most)
    database, run = open_run(config, change)
    if most is not None:
        from trinity_db.trainer.checkpoints import beginning

        weights = config.trainer.weights
        beginning.begin(database, run, config.model, config.seed, config.checkpoints, weights)
    tasksets = decide(
        database, lambda tx: {runs.find_taskset(tx, name): weight for name, weight in config.tasksets.items()}
    )
    explorer = Explorer(
        database,
        run,
        config.explorer,
        workflow,
        engine,
        pace,
        tasks.selection(config.explorer.tasks, tasksets, config.seed),
        config.model,
        recorded_places(config),
        greedy,
        place=place,
    )
    with closing(engine):
        explorer.serve()


def recorded_places(config: RunConfig) -> RecordedPlaces:
    """The folders and addresses of versions that this configuration, which is a file of the user, names."""
    trainer = config.trainer
    return RecordedPlaces(trainer.checkpoints, config.model.path, trainer.weights, trainer.broadcast)


def _check_explored(config: RunConfig, publishes: bool) -> None:
    """Check the starting model, as far as it is on this machine, and the object store.

    Args:
        publishes: whether the explorer may publish version 0.

    Raises:
        TrinityError: there is no such model, or it does not fit; or as `_check_weights`.
    """
    from trinity_db.models import check_libraries, check_source
    from trinity_db.weights.bucket import Bucket

    path, weights = config.model.path, config.trainer.weights
    if weights is None or publishes or path is None or path.expanduser().is_dir():
        check_source(config.model, _is_decoded(config), config.explorer.record_routing)
    else:  # version 0 is fetched as every other one
        check_libraries("torch", "transformers")
    if publishes:
        _check_weights(config)
    elif weights is not None:
        Bucket(weights)  # it may read alone


def _check_weights(config: RunConfig) -> None:
    """Refuse an object store that this machine cannot write to.

    Raises:
        TrinityError: naming the cause.
    """
    if config.trainer.weights is not None:
        from trinity_db.trainer.checkpoints import uploads

        uploads.check(config.trainer.weights)


def _pace(config: RunConfig, most: int | None) -> groups.Pace:
    """How far explorers may run ahead.

    Raises:
        ConfigError: fewer groups than `most` can be explored before a trainer is needed.
    """
    per_version = config.trainer.batch_size * (config.trainer.publish_every or 1)
    if most is None:
        return groups.Pace(config.max_staleness, per_version, config.explorer.backlog)
    if config.max_staleness is not None and most > (room := (config.max_staleness + 1) * per_version):
        raise ConfigError(
            f"--groups {most}: with max_staleness {config.max_staleness} explorers start {room} groups ahead "
            "of a trainer, and more would expire; set max_staleness: null, or take fewer groups."
        )
    return groups.Pace(config.max_staleness, per_version, most=most)


def compares_with_greedy(algorithm: AlgorithmConfig) -> bool:
    """Whether advantages read which attempt of each group was sampled at temperature 0.

    The signature of the function says it; no algorithm is made for it.
    """
    if not isinstance(algorithm, PolicyGradientConfig):
        return False
    return "greedy" in part("advantage", algorithm.advantage).columns


def process(config: RunConfig, drain: bool, change: bool = False) -> bool:
    """Be the processors until the run is finished or nothing is left (drain); False if a signal came."""
    from trinity_db.processors import lists
    from trinity_db.processors.service import Processors
    from trinity_db.processors.step import Context

    config = pinned(config)
    lists.check(config.processors, config.model)  # before the run is created
    database, run = open_run(config, change)
    context = Context(database, config.model, config.explorer.temperature)
    steps = lists.prepare(lists.load(config.processors), context)
    waits = (config.requires_reward, config.people.wait_seconds)
    processors = Processors(database, run, config.processors, steps, drain, *waits)
    processors.serve()
    return not processors.stopping


def train(
    config: RunConfig, from_start: bool = False, from_version: int | None = None, change: bool = False
) -> None:
    """Be the trainer until the last step or a signal. `Allowed` explains the first two options."""
    from trinity_db.models import check_source

    config = pinned(config)
    check_source(config.model)  # before the imports: it says which extra is missing
    from trinity_db.trainer import lead_follow
    from trinity_db.trainer.checkpoints.recovery import Allowed
    from trinity_db.trainer.distribution.ranks import end_process, join_ranks
    from trinity_db.trainer.service import Trainer
    from trinity_db.weights import broadcast

    # A supervisor outlives all roles, so it copies their metrics itself, the last ones too.
    sinks = [] if is_supervised() else sinks_of(config.metrics)
    _check_weights(config)
    if config.trainer.broadcast is not None:
        broadcast.check(config.trainer.broadcast)
    setup = _trainer_setup(config, Allowed(from_start, from_version))
    database, run = open_run(config, change)
    with join_ranks(config.trainer.ranks) as ranks, mirrored(database, run, sinks):
        Trainer(database, run, setup, ranks).serve()
        lead_follow.dismiss(ranks)
    end_process(ranks)


def is_follower() -> bool:
    """Whether torchrun or the trainer started this process, to take a share of the trainer's work."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and int(os.environ.get("RANK", "0")) > 0


def follow() -> None:
    """Carry out the calls of the first rank until it ends. It sends all that this rank needs to know.

    torchrun sends signals to every rank. Only the first rank handles them, and only it logs.
    """
    for number in endings():
        signal.signal(number, signal.SIG_DFL)  # until the first rank is there, which may never happen
    if is_supervised():  # by the trainer
        threading.Thread(target=_end_if_orphaned, daemon=True).start()
    logging.getLogger("trinity_db").setLevel(logging.ERROR)
    from trinity_db.trainer import lead_follow
    from trinity_db.trainer.distribution.ranks import end_process, join_ranks

    with join_ranks() as ranks:
        for number in endings():
            signal.signal(number, signal.SIG_IGN)
        lead_follow.follow(ranks)
    end_process(ranks)


def _end_if_orphaned() -> None:
    """End this process when the trainer that started it is gone, also within a call that waits for it."""
    while not is_orphan():
        time.sleep(ORPHAN_SECONDS)
    os._exit(1)
