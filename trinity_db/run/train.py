"""Runs the trainer of a run in this process, or one of its other ranks."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from trinity_db.errors import ConfigError
from trinity_db.postgres.connection import Database
from trinity_db.run import joining
from trinity_db.run.checks import check_weights
from trinity_db.run.configuration import RunConfig
from trinity_db.store.runs import Run
from trinity_db.worker.service import is_orphan, is_supervised
from trinity_db.worker.signals import endings

ORPHAN_SECONDS = 0.5  # between a rank's checks that the trainer is alive


def run_trainer(
    config: RunConfig, from_start: bool = False, from_version: int | None = None, change: bool = False
) -> None:
    """Run the trainer until the last step or a signal. See `Allowed` for the first two options."""
    from trinity_db.models import check_source

    if config.is_external:
        raise ConfigError(
            f"Run '{config.name}' (algorithm external) is trained by a program of yours: "
            "trinity_db.connect(read_only=False).trainer(...), see docs/guides/python.md."
        )
    config = joining.pinned(config)
    check_source(config.model)  # before the imports: it names a missing extra
    from trinity_db.run.trainer_setup import trainer_setup
    from trinity_db.trainer.checkpoints.recovery import Allowed
    from trinity_db.trainer.distribution.ranks import end_process, join_ranks
    from trinity_db.trainer.loop import lead_follow
    from trinity_db.trainer.service import Trainer
    from trinity_db.weights import broadcast

    mirrored = _mirrored(config)
    check_weights(config)
    if config.trainer.broadcast is not None:
        broadcast.check(config.trainer.broadcast)
    setup = trainer_setup(config, Allowed(from_start, from_version))
    database, run = joining.open_run(config, change)
    with join_ranks(config.trainer.ranks) as ranks, mirrored(database, run):
        Trainer(database, run, setup, ranks).serve()
        lead_follow.dismiss(ranks)
    end_process(ranks)


def _mirrored(config: RunConfig) -> Callable[[Database, Run], AbstractContextManager[object]]:
    """Return a context that keeps the configured sinks up to date.

    A supervisor outlives all roles, so it copies their metrics itself, including the last ones.

    Raises:
        MissingExtra: if a sink's package is not installed.
    """
    if is_supervised():
        return lambda database, run: nullcontext()
    from trinity_db.insight.sinks.follow import mirrored, sinks_of

    return partial(mirrored, sinks=sinks_of(config.metrics))


def is_follower() -> bool:
    """Whether this process was started by torchrun or the trainer as a rank other than the first."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and int(os.environ.get("RANK", "0")) > 0


def follow() -> None:
    """Execute the calls of the first rank until it ends; they contain all that this rank needs.

    torchrun sends signals to every rank. Only the first rank handles them, and only it logs.
    """
    for number in endings():
        signal.signal(number, signal.SIG_DFL)  # until the first rank has joined, which may never happen
    if is_supervised():  # by the trainer
        threading.Thread(target=_end_if_orphaned, daemon=True).start()
    logging.getLogger("trinity_db").setLevel(logging.ERROR)
    from trinity_db.trainer.distribution.ranks import end_process, join_ranks
    from trinity_db.trainer.loop import lead_follow

    with join_ranks() as ranks:
        for number in endings():
            signal.signal(number, signal.SIG_IGN)
        lead_follow.follow(ranks)
    end_process(ranks)


def _end_if_orphaned() -> None:
    """End this process when the trainer that started it is gone, even during a blocking call."""
    while not is_orphan():
        time.sleep(ORPHAN_SECONDS)
    os._exit(1)
