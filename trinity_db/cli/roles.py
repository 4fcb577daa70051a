"""The commands of the roles: explore, process and train run one role each; run supervises all of them.

A role stopped by SIGTERM, SIGHUP or Ctrl-C exits with code 0, even during its start. Only process --drain
then exits with 130, because a script that waits for it would otherwise believe that all rows are processed.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from trinity_db.run.restart_command import Again, wait_for_upgrade
from trinity_db.worker.signals import endings

STOPPED = 130  # exit code that shells report for a command ended by Ctrl-C

Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="Configuration of the run, a YAML file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key: --set trainer.learning_rate=1e-5."),
]
FromStart = Annotated[
    bool,
    typer.Option(
        "--from-start",
        help="If all checkpoints of the run are damaged, train again from the starting model.",
    ),
]
FromVersion = Annotated[
    int | None,
    typer.Option(
        "--from-version",
        metavar="N",
        min=1,
        max=2**31 - 1,
        help="Resume from the checkpoint of a version that the server lost; its folder is named *.later.",
    ),
]

Change = Annotated[
    bool,
    typer.Option(
        "--change",
        help="Change an existing run to this configuration, if the keys that differ allow it.",
    ),
]

Groups = Annotated[
    int | None,
    typer.Option(
        "--groups",
        metavar="N",
        min=1,
        max=2**31 - 1,
        help="Explore without a trainer, and stop when the run has N rollout groups.",
    ),
]


def explore(
    config: Config,
    overrides: Overrides = None,
    groups: Groups = None,
    change: Change = False,
) -> None:
    """Sample rollouts for a run until it finishes.

    Uses each policy version as soon as it is published. With --groups no trainer is needed: the command
    publishes the starting model as version 0 if the run has no version. Several explorers share the N
    groups, and a restarted one continues.

    Example:

        trinity-db explore configs/gsm8k/explore.yaml
    """
    from trinity_db.run import joining
    from trinity_db.run.explore import run_explorer

    with stoppable():
        wait_for_upgrade()
        run_explorer(joining.read(config, overrides, joins=True), change, groups)


def process(
    config: Config,
    overrides: Overrides = None,
    drain: Annotated[bool, typer.Option("--drain", help="Stop when nothing is left to process.")] = False,
    change: Change = False,
) -> None:
    """Process the rollouts of a run until it finishes.

    Cleans and scores rollouts, settles groups, derives pairs and archives. The configuration selects
    which of these it does. With --drain it processes the existing rows, and stops: use it before
    training, to derive pairs from imported rows, or after a run, to archive it.

    Example:

        trinity-db process configs/gsm8k/explore.yaml
    """
    from trinity_db.run import joining
    from trinity_db.run.process import run_processors

    with stoppable():
        wait_for_upgrade()
        if run_processors(joining.read(config, overrides), drain, change):
            return
    if drain:
        raise typer.Exit(STOPPED)


def train(
    config: Config,
    overrides: Overrides = None,
    from_start: FromStart = False,
    from_version: FromVersion = None,
    change: Change = False,
) -> None:
    """Train a run's policy from its latest checkpoint.

    On several GPUs it starts a process for each, which computes its share of every step (trainer.ranks). On
    several machines start the processes with torchrun: torchrun ... -m trinity_db train CONFIG

    Example:

        trinity-db train configs/gsm8k/dpo.yaml --set trainer.epochs=2
    """
    from trinity_db.run import joining, train

    if train.is_follower():
        train.follow()
        return
    with stoppable():
        wait_for_upgrade()
        train.run_trainer(joining.read(config, overrides, joins=True), from_start, from_version, change)


def run(
    config: Config,
    overrides: Overrides = None,
    from_start: FromStart = False,
    from_version: FromVersion = None,
    change: Change = False,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="ADDRESS",
            help="Run the roles on the Ray cluster at HOST:PORT; local: a cluster on this machine.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print warnings and errors only.")] = False,
) -> None:
    """Run all roles of a run, and restart those that die.

    Each role is a process. The command ends with the run, or on Ctrl-C. Each line shows steps, the time
    left, rewards, response length, drops, staleness and who waits; every tenth line has a sample. The
    last lines name the model's folder.

    With --change an existing run continues with a changed configuration: learning rate, schedule, steps,
    staleness limit, rewards, sampler, and other keys that its rows do not depend on. Stop its roles first.

    Example:

        trinity-db run configs/gsm8k/explore.yaml
    """
    from trinity_db.cli import supervise
    from trinity_db.run import joining

    with stoppable():
        wait_for_upgrade()
        once = ["--from-start"] if from_start else []
        once += ["--from-version", str(from_version)] if from_version is not None else []
        read, arguments = joining.read(config, overrides), joining.arguments(config, overrides)
        supervise.run(read, arguments, once, change, ray, quiet)


@contextmanager
def stoppable() -> Iterator[None]:
    """Context in which a signal ends the command before its work begins; active roles handle signals.

    If the store is upgraded meanwhile, the command restarts. Code in this context should begin with
    `wait_for_upgrade`.
    """
    again = Again()
    for number in endings():
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        print("Stopped; repeat the command to continue.", file=sys.stderr)
    except Exception as error:  # any kind: it decides whether an upgrade explains the error
        again.ask(error)
