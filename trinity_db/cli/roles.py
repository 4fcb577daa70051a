"""The commands of the roles: explore, process and train are one process each; run supervises all of them.

A role that SIGTERM, SIGHUP or Ctrl-C stops ends with exit code 0, from its first moment on. Only
process --drain ends with 130 then, because a script that waits for it would take the remaining rows for done.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from trinity_db.cli.again import Again, wait_for_upgrade
from trinity_db.endings import endings

STOPPED = 130  # the exit code that shells give a command that Ctrl-C ended

Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="The run's configuration, a YAML file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, as --set trainer.learning_rate=1e-5."),
]
FromStart = Annotated[
    bool,
    typer.Option(
        "--from-start",
        help="If none of the run's checkpoints is whole, train again from the starting model.",
    ),
]
FromVersion = Annotated[
    int | None,
    typer.Option(
        "--from-version",
        metavar="N",
        min=1,
        max=2**31 - 1,
        help="Go on from the checkpoint of a version that the server has lost; its folder is named *.later.",
    ),
]

Change = Annotated[
    bool,
    typer.Option(
        "--change",
        help="Let an existing run go on with this configuration, if the keys that differ allow it.",
    ),
]

Groups = Annotated[
    int | None,
    typer.Option(
        "--groups",
        metavar="N",
        min=1,
        max=2**31 - 1,
        help="Explore without a trainer, and end when the run has N rollout groups.",
    ),
]


def explore(
    config: Config,
    overrides: Overrides = None,
    groups: Groups = None,
    change: Change = False,
) -> None:
    """Sample rollouts for a run, with every policy version as it appears, until the run is finished.

    With --groups it needs no trainer: it publishes the starting model as version 0 if the run has none.
    Several explorers share the N groups, and a restart goes on where they were.

    Example:

        trinity-db explore configs/gsm8k/explore.yaml
    """
    from trinity_db.cli import launch

    with stoppable():
        wait_for_upgrade()
        launch.explore(launch.read(config, overrides), change, groups)


def process(
    config: Config,
    overrides: Overrides = None,
    drain: Annotated[bool, typer.Option("--drain", help="End when nothing is left to process.")] = False,
    change: Change = False,
) -> None:
    """Clean and score rollouts, settle groups, derive pairs and archive, until the run is finished.

    The configuration says which of these it does. With --drain it processes the rows that are there, and
    ends: use it before training, to derive pairs from imported rows, or after a run, to archive it.

    Example:

        trinity-db process configs/gsm8k/explore.yaml
    """
    from trinity_db.cli import launch

    with stoppable():
        wait_for_upgrade()
        if launch.process(launch.read(config, overrides), drain, change):
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
    """Train a run's policy, from its latest checkpoint, until its last step.

    On several GPUs it starts a process for each, which computes its share of every step (trainer.ranks). On
    several machines torchrun starts them, by its own options: torchrun ... -m trinity_db train CONFIG

    Example:

        trinity-db train configs/gsm8k/dpo.yaml --set trainer.epochs=2
    """
    from trinity_db.cli import launch

    if launch.is_follower():
        launch.follow()
        return
    with stoppable():
        wait_for_upgrade()
        launch.train(launch.read(config, overrides), from_start, from_version, change)


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
            help="Let Ray give the roles machines of the cluster at HOST:PORT; local: one on this machine.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print warnings and errors only.")] = False,
) -> None:
    """Run all roles of a run as processes, restart what dies, and end with the run or on Ctrl-C.

    Each line shows steps, the time left, rewards, response length, drops, staleness and who waits; every
    tenth one has a sample. The last lines name the model's folder.

    With --change an existing run goes on with another configuration: learning rate, schedule, steps,
    staleness limit, rewards, sampler, and other keys that its rows do not depend on. Stop its roles first.

    Example:

        trinity-db run configs/gsm8k/explore.yaml
    """
    from trinity_db.cli import launch, supervise

    with stoppable():
        wait_for_upgrade()
        once = ["--from-start"] if from_start else []
        once += ["--from-version", str(from_version)] if from_version is not None else []
        read, arguments = launch.read(config, overrides), launch.arguments(config, overrides)
        supervise.run(read, arguments, once, change, ray, quiet)


@contextmanager
def stoppable() -> Iterator[None]:
    """A signal before the work begins ends the command at once; roles at work end in their own way.

    If the store is upgraded meanwhile, the command starts again. What it does within then begins by
    `wait_for_upgrade`.
    """
    again = Again()
    for number in endings():
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        print("Stopped; the same command goes on where it stopped.", file=sys.stderr)
    except Exception as error:  # of any kind: it decides itself which of them an upgrade explains
        again.ask(error)
