"""`trinity-db metrics`: what a run measured, in TensorBoard, Weights & Biases or MLflow."""

import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trinity_db.cli import output
from trinity_db.errors import ConfigError

if TYPE_CHECKING:
    from trinity_db.database import Database
    from trinity_db.sinks.sink import Sink
    from trinity_db.store.runs import Run


def metrics(
    name: Annotated[str, typer.Argument(metavar="RUN", help="A run's name, finished or not.")],
    tensorboard: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Folder of event files; the run gets a folder of its name there."
        ),
    ] = None,
    wandb: Annotated[
        str | None, typer.Option(metavar="PROJECT", help="A run of this project at Weights & Biases.")
    ] = None,
    mlflow: Annotated[
        str | None, typer.Option(metavar="URI", help="A tracking server, database or folder of MLflow.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the run is finished.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the number of metrics as a JSON object.")
    ] = False,
) -> None:
    """Copy the metrics of a run to another place: only those that the place does not have yet.

    The store's metric table always has all metrics. A run copies them by itself if its configuration says
    metrics: {tensorboard: FOLDER}.

    Example:

        trinity-db metrics my-run --tensorboard runs
    """
    from trinity_db.opening import open_reader
    from trinity_db.schema.states import RunKind
    from trinity_db.sinks.config import MetricsConfig, MlflowConfig, WandbConfig
    from trinity_db.sinks.follow import sinks_of
    from trinity_db.store import runs

    sinks = sinks_of(
        MetricsConfig(
            tensorboard=tensorboard,
            wandb=WandbConfig(project=wandb) if wandb else None,
            mlflow=MlflowConfig(tracking_uri=mlflow) if mlflow else None,
        )
    )
    if not sinks:
        raise typer.BadParameter("name a place: --tensorboard, --wandb or --mlflow")
    if follow and as_json:
        raise typer.BadParameter("--json tells what one look has added: leave out --follow")
    with closing(open_reader()) as database:
        with database.transaction(read_only=True) as tx:
            run = runs.find(tx, name)
        if run.kind != RunKind.TRAIN:
            raise ConfigError(f"'{name}' is an imported data set, and has no metrics.")
        if follow:
            _follow(database, run, sinks)
        else:
            _catch_up(database, run, sinks, as_json)


def _catch_up(database: "Database", run: "Run", sinks: "list[Sink]", as_json: bool) -> None:
    from trinity_db.sinks.follow import SETTLE_SECONDS, Follower

    counts = {}
    for sink in sinks:
        with closing(Follower(database, run, sink)) as follower:
            counts[str(sink)] = follower.catch_up(SETTLE_SECONDS)
    if as_json:
        output.print_json(counts)
        return
    for place, count in counts.items():
        print(f"{place}: {count} numbers of run '{run.name}'")


def _follow(database: "Database", run: "Run", sinks: "list[Sink]") -> None:
    """Copy until the run is finished. A failure is logged, and tried again.

    Raises:
        TrinityError: a sink does not have everything in the end.
    """
    from trinity_db.database import retry
    from trinity_db.sinks.follow import LOOK_SECONDS, mirrored
    from trinity_db.store import runs

    def is_finished() -> bool:
        with database.transaction(read_only=True) as tx:
            return runs.is_finished(tx, run.id)

    with mirrored(database, run, sinks) as mirrors:
        while not retry(is_finished):
            time.sleep(LOOK_SECONDS)
        time.sleep(LOOK_SECONDS)  # explorers and processors hear of it and end meanwhile
    for mirror in mirrors:
        if mirror.failure is not None:
            raise mirror.failure
