"""`trinity-db metrics`: copies a run's metrics to TensorBoard, Weights & Biases or MLflow."""

import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trinity_db.cli import output
from trinity_db.errors import ConfigError

if TYPE_CHECKING:
    from trinity_db.insight.sinks.sink import Sink
    from trinity_db.postgres.connection import Database
    from trinity_db.store.runs import Run


def metrics(
    name: Annotated[str, typer.Argument(metavar="RUN", help="Name of a run, finished or not.")],
    tensorboard: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder for event files; each run gets a folder of its name."),
    ] = None,
    wandb: Annotated[
        str | None, typer.Option(metavar="PROJECT", help="Copy to a run of this Weights & Biases project.")
    ] = None,
    mlflow: Annotated[
        str | None, typer.Option(metavar="URI", help="MLflow tracking server, database or folder.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Keep copying until the run finishes.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the number of metrics as a JSON object.")
    ] = False,
) -> None:
    """Copy the metrics of a run to another place.

    Metrics that the place already has are skipped. The store's metric table always has all metrics. A run
    copies them itself if its configuration has metrics: {tensorboard: FOLDER}.

    Example:

        trinity-db metrics my-run --tensorboard runs
    """
    from trinity_db.insight.sinks.config import MetricsConfig, MlflowConfig, WandbConfig
    from trinity_db.insight.sinks.follow import sinks_of
    from trinity_db.postgres.opening import open_reader
    from trinity_db.schema.states import RunKind
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
        raise typer.BadParameter("--json reports a single copy: leave out --follow")
    with closing(open_reader()) as database:
        with database.transaction(read_only=True) as tx:
            run = runs.find(tx, name)
        if run.kind != RunKind.TRAIN:
            raise ConfigError(f"'{name}' is an imported data set, which has no metrics.")
        if follow:
            _follow(database, run, sinks)
        else:
            _catch_up(database, run, sinks, as_json)


def _catch_up(database: "Database", run: "Run", sinks: "list[Sink]", as_json: bool) -> None:
    from trinity_db.insight.sinks.follow import SETTLE_SECONDS, Follower

    counts = {}
    for sink in sinks:
        with closing(Follower(database, run, sink)) as follower:
            counts[str(sink)] = follower.catch_up(SETTLE_SECONDS)
    if as_json:
        output.print_json(counts)
        return
    for name, count in counts.items():
        print(f"{name}: {count} numbers of run '{run.name}'")


def _follow(database: "Database", run: "Run", sinks: "list[Sink]") -> None:
    """Copy until the run is finished. Failures are logged, and retried.

    Raises:
        TrinityError: if a sink is incomplete at the end.
    """
    from trinity_db.insight.sinks.follow import LOOK_SECONDS, mirrored
    from trinity_db.postgres.connection import retry
    from trinity_db.store import runs

    def is_finished() -> bool:
        with database.transaction(read_only=True) as tx:
            return runs.is_finished(tx, run.id)

    with mirrored(database, run, sinks) as mirrors:
        while not retry(is_finished):
            time.sleep(LOOK_SECONDS)
        time.sleep(LOOK_SECONDS)  # meanwhile explorers and processors notice and end
    for mirror in mirrors:
        if mirror.failure is not None:
            raise mirror.failure
