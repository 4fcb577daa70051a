"""The command line: one module a command, registered here.

A command parses, then imports what it needs, so that `--help` answers at once. Results go to stdout, logs to
stderr. A TrinityError is one line and exit code 1, a wrong option exit code 2, Ctrl-C 130; anything else is
a bug and keeps its traceback.
"""

import logging
import os
import sys
from typing import Annotated

import typer

from trinity_db import __version__
from trinity_db.errors import TrinityError

from . import (
    batches,
    config,
    db,
    delete,
    demo,
    doctor,
    engine,
    evaluate,
    metrics,
    prune,
    replay,
    reward,
    roles,
    serve,
    show,
    sql,
    status,
    transfer,
)

# Plain help: rich would take two thirds of the time in which --help has to answer.
app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)

app.command("demo")(demo.demo)
app.command("run")(roles.run)
app.command("explore")(roles.explore)
app.command("serve")(serve.serve)
app.command("process")(roles.process)
app.command("train")(roles.train)
app.command("import")(transfer.import_)
app.command("export")(transfer.export)
app.command("sql")(sql.sql)
app.command("evaluate")(evaluate.evaluate)
app.command("status")(status.status)
app.command("show")(show.show)
app.command("batches")(batches.batches)
app.command("replay")(replay.replay)
app.command("metrics")(metrics.metrics)
app.command("reward", context_settings=reward.CONTEXT)(reward.reward)
app.command("doctor")(doctor.doctor)
app.command("delete")(delete.delete)
app.command("prune")(prune.prune)
app.add_typer(config.app, name="config")
app.add_typer(db.app, name="db")
app.add_typer(engine.app, name="engine")


def main() -> None:
    """Run the command that was given, and end the process with its exit code."""
    try:
        try:
            app(prog_name="trinity-db")
        finally:
            sys.stdout.flush()
    except TrinityError as error:
        sys.exit(f"error: {' '.join(str(error).split())}")
    except BrokenPipeError:
        # The reader of our output is gone. Python would complain when it flushes stdout once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


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
    """Reinforcement fine-tuning with the experience database as the contract between all parts."""
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
        level=logging.INFO if verbose else logging.WARNING,
    )
    logging.getLogger("trinity_db").setLevel(logging.DEBUG if verbose else logging.INFO)
