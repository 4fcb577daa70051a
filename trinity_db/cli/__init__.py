"""The command line: one module per command, registered here.

A command parses its arguments before it imports what it needs, so that `--help` is fast. Results go to
stdout, logs to stderr. A TrinityError is printed in one line, with exit code 1; a wrong option exits with 2,
Ctrl-C with 130. Any other exception is a bug and shows its traceback. A role that would fail again exits with
another code, so that its supervisor does not restart it.
"""

import logging
import os
import sys
from typing import Annotated

import typer

from trinity_db import __version__
from trinity_db.errors import DiskFull, MissingExtra, TrinityError, WrongSelect
from trinity_db.worker import cores

from . import (
    batches,
    config,
    db,
    delete,
    demo,
    doctor,
    download,
    engine,
    evaluate,
    failed,
    label,
    metrics,
    overlap,
    page,
    parked,
    prune,
    replay,
    rescore,
    reward,
    roles,
    search,
    serve,
    show,
    sql,
    status,
    stop,
    transfer,
    trying,
)

# Plain help: importing rich would take two thirds of the time that --help may take.
app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)

app.command("demo")(demo.demo)
app.command("run")(roles.run)
app.command("explore")(roles.explore)
app.command("try")(trying.try_)
app.command("serve")(serve.serve)
app.command("process")(roles.process)
app.command("train")(roles.train)
app.command("stop")(stop.stop)
app.command("import")(transfer.import_)
app.command("download")(download.download)
app.command("export")(transfer.export)
app.command("sql")(sql.sql)
app.command("evaluate")(evaluate.evaluate)
app.command("status")(status.status)
app.command("show")(show.show)
app.command("search")(search.search)
app.command("batches")(batches.batches)
app.command("replay")(replay.replay)
app.command("metrics")(metrics.metrics)
app.command("reward", context_settings=reward.CONTEXT)(reward.reward)
app.command("label")(label.label)
app.command("page")(page.page)
app.command("failed")(failed.failed)
app.command("overlap")(overlap.overlap)
app.command("rescore")(rescore.rescore)
app.command("parked")(parked.parked)
app.command("wake", context_settings=parked.CONTEXT)(parked.wake)
app.command("doctor")(doctor.doctor)
app.command("delete")(delete.delete)
app.command("prune")(prune.prune)
app.add_typer(config.app, name="config")
app.add_typer(db.app, name="db")
app.add_typer(engine.app, name="engine")


EXTRA_OF = {"lancedb": "lance", "pyarrow": "lance"}
"""The extra that installs a package, for packages that modules of several commands import."""


def main() -> None:
    """Run the given command, and end the process with its exit code."""
    cores.wait_passively()
    try:
        try:
            app(prog_name="trinity-db")
        except ModuleNotFoundError as error:
            package = (error.name or "").split(".")[0]
            if package not in EXTRA_OF:
                raise
            raise MissingExtra(EXTRA_OF[package], package) from error
        finally:
            sys.stdout.flush()
    except TrinityError as error:
        line = f"error: {' '.join(str(error).split())}"
        if isinstance(error, WrongSelect | DiskFull):
            _give_up(line)
        sys.exit(line)
    except BrokenPipeError:
        # The reader of the output is gone. Python would complain when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _give_up(line: str) -> None:
    """End a supervised role with the exit code that prevents a restart."""
    from trinity_db.worker.service import GIVES_UP, is_supervised

    if is_supervised():
        print(line, file=sys.stderr)
        sys.exit(GIVES_UP)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"trinity-db {__version__}")
        raise typer.Exit


@app.callback()
def options(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Reinforcement fine-tuning with an experience database as the contract between all parts."""
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
        level=logging.INFO if verbose else logging.WARNING,
    )
    logging.getLogger("trinity_db").setLevel(logging.DEBUG if verbose else logging.INFO)
