"""`trinity-db stop`: asks the workers of a run on all machines to stop, and waits for them."""

import sys
import time
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from trinity_db.cli import output

if TYPE_CHECKING:
    from trinity_db.postgres.connection import Database
    from trinity_db.store.runs import Run
    from trinity_db.store.stopping import StopRequest
    from trinity_db.store.workers import Worker

LOOK_SECONDS = 0.5  # between two checks of the workers that are alive
LINE_SECONDS = 10.0  # between two lines about the same workers; a step of a large model takes longer


def stop(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name of a run.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print what was stopped as a JSON object.")] = False,
) -> None:
    """Stop a run on all its machines, and wait for its workers.

    The workers see the request in the store within 5 seconds, and stop as on Ctrl-C: each finishes its
    current work and gives back its leases, and the trainer saves its checkpoint. That includes run, serve,
    evaluate and rescore. To continue, start the run again; nothing has to be cleared. Ctrl-C ends only the
    waiting.

    Example:

        trinity-db stop my-run
    """
    from trinity_db.postgres.opening import open_database
    from trinity_db.store import runs, stopping
    from trinity_db.worker.service import LEASE_SECONDS

    with closing(open_database()) as database:
        with database.transaction() as tx:
            run_row = runs.find(tx, run)
            request = stopping.ask(tx, run_row, LEASE_SECONDS)
        _wait(database, run_row, request)
    if as_json:
        stopped = [
            {"role": worker.role, "host": worker.host, "pid": worker.pid, "started_at": worker.started_at}
            for worker in request.workers
        ]
        output.print_json({"run": run, "asked_at": request.at, "stopped": stopped})
        return
    print(f"Stopped run '{run}': {_named(request.workers)}.")


def _wait(database: "Database", run: "Run", request: "StopRequest") -> None:
    """Say which workers were asked, wait until none is alive, and report at intervals which still are."""
    from trinity_db.store import stopping
    from trinity_db.worker.service import LEASE_SECONDS

    def look() -> "list[Worker]":
        with database.transaction() as tx:
            return stopping.at_work(tx, run, request.at, LEASE_SECONDS)

    alive = request.workers
    reported: list[Worker] = []
    reported_at = 0.0
    while alive:
        now = time.monotonic()
        if alive != reported or now - reported_at > LINE_SECONDS:
            print(f"Waiting for {_named(alive)}", file=sys.stderr, flush=True)
            reported, reported_at = alive, now
        time.sleep(LOOK_SECONDS)
        alive = database.retry(look)


def _named(workers: "Sequence[Worker]") -> str:
    return "; ".join(map(str, workers))
