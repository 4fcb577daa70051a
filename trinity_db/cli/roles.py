"""The commands of the roles: explore, process, train, one process each, and run, all of them supervised."""

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="The run's configuration, a YAML file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, for example --set trainer.steps=100."),
]


def explore(config: Config, overrides: Overrides = None) -> None:
    """Sample rollouts for a run, with every policy version as it appears, until the run is finished.

    Example:

        trinity-db explore configs/gsm8k/explore.yaml
    """
    from trinity_db.cli import launch

    launch.explore(launch.read(config, overrides))


def process(
    config: Config,
    overrides: Overrides = None,
    drain: Annotated[bool, typer.Option("--drain", help="End when nothing is left to process.")] = False,
) -> None:
    """Clean, score and group a run's rollouts until the run is finished.

    Example:

        trinity-db process configs/gsm8k/explore.yaml
    """
    from trinity_db.cli import launch

    launch.process(launch.read(config, overrides), drain)


def train(config: Config, overrides: Overrides = None) -> None:
    """Train a run's policy, from its latest checkpoint, until its last step.

    Example:

        trinity-db train configs/gsm8k/dpo.yaml --set trainer.epochs=2
    """
    from trinity_db.cli import launch

    launch.train(launch.read(config, overrides))


def run(config: Config, overrides: Overrides = None) -> None:
    """Run all roles of a run as processes, restart what dies, and end with the run or on Ctrl-C.

    Example:

        trinity-db run configs/gsm8k/explore.yaml
    """
    from trinity_db.cli import launch, supervise

    configuration = launch.read(config, overrides)
    supervise.run(configuration, launch.arguments(config, overrides))
