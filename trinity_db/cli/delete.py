"""`trinity-db delete`: deletes a run or a data set with its rows, its archive and its own checkpoints."""

import os
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trinity_db.cli import output
from trinity_db.cli.removal import RemovalLog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trinity_db.store.instances import Instance
    from trinity_db.store.policies import PolicyVersion
    from trinity_db.store.runs import Run


def delete(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name of a run or of a data set.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was deleted as a JSON object.")] = False,
) -> None:
    """Delete a run or a data set with all that it has written.

    Deletes its rows in short transactions, so that other runs work on, then its archive, and its checkpoints
    in its own folder. Stop its roles first. A data set cannot be deleted while a run trains on it, nor a run
    while another run starts from its checkpoint. If the command was killed, repeat it: it goes on.

    Example:

        trinity-db delete my-run --yes
    """
    from trinity_db.database import open_database
    from trinity_db.service import LEASE_SECONDS
    from trinity_db.store import deletion, instances, payloads, runs

    with closing(open_database()) as database:
        with database.transaction() as tx:
            found = runs.find(tx, run)
        if not yes:
            typer.confirm(
                f"Delete {found.kind} run '{run}' with all its rows and checkpoints?", abort=True, err=True
            )
        with database.transaction() as tx:
            instance = instances.identify(tx)
            checkpoints = deletion.begin(tx, found, LEASE_SECONDS)
            tables = payloads.archives(tx, found.id, instance.id)
        # Before the rows, which alone say where they are: a deletion that was killed finds them again.
        folders, kept = _delete_folders(found, instance, checkpoints)
        rows = deletion.delete_rows(database, found, RemovalLog("deleting", run))
        kept += _drop_archives(tables)
        with database.transaction() as tx:
            deletion.finish(tx, found)
    if as_json:
        output.print_json({"run": run, "deleted": rows, "folders": folders, "kept": kept})
        return
    counts = ", ".join(f"{count} {name}" for name, count in rows.items() if count) or "no rows"
    print(f"Deleted '{run}': {counts}.")
    for folder in folders:
        print(f"Deleted its checkpoints in {folder}.")
    for line in kept:
        print(f"Kept: {line}")


def _delete_folders(
    run: "Run", instance: "Instance", checkpoints: "Sequence[PolicyVersion]"
) -> tuple[list[str], list[str]]:
    """Delete the folders of checkpoints that name this very run; returns them, and what is kept."""
    from trinity_db.settings import home
    from trinity_db.trainer.checkpoints import folder

    default = home() / "checkpoints" / run.name
    identity: dict[str, Any] = {"store": str(instance.id)} | run.identity
    places = dict.fromkeys(
        [*(found.checkpoint.parent for found in checkpoints), *folder.places(default, identity)]
    )
    own = [place for place in places if folder.clear(place, identity)]
    kept = [
        f"{found.checkpoint}, which is not in a folder that names this run as its owner"
        for found in checkpoints
        if found.checkpoint.parent not in own
        # Version 0 may be a model of the user's, which no one expects to go; an import's files are the run's.
        and (found.version > 0 or found.checkpoint.is_relative_to(home() / "copies"))
        and os.path.exists(found.checkpoint)  # Path.exists raises where it may not be looked at
    ]
    logs = home() / "logs" / run.name
    if logs.is_dir():
        kept.append(f"{logs}, the logs of runs of this name")
    return [str(place) for place in own], kept


def _drop_archives(tables: "Sequence[tuple[str, bool]]") -> list[str]:
    """Drop the run's Lance tables that this very store writes; returns what is kept of the others."""
    from trinity_db import archive

    for table, is_own in tables:
        if is_own:
            archive.drop(table)
    return [
        f"table {table} of the archive, which the store that this one was copied from may need"
        for table, is_own in tables
        if not is_own and archive.exists(table)
    ]
