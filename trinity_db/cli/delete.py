"""`trinity-db delete`: deletes a run or a data set with its rows, its archive and its checkpoints."""

import os
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trinity_db.cli import output
from trinity_db.cli.removal import RemovalLog

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trinity_db.postgres.connection import Database
    from trinity_db.store.instances import Instance
    from trinity_db.store.policies import PolicyVersion
    from trinity_db.store.runs import Run


def delete(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name of a run or of a data set.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was deleted as a JSON object.")] = False,
) -> None:
    """Delete a run or a data set, with everything it has written.

    Deletes its rows in short transactions, so that other runs keep working, then its archive, and the
    checkpoints in its folder. Stop its roles first. A data set cannot be deleted while a run trains on it,
    nor a run while another run starts from its checkpoint. If its object store is unreachable, nothing is
    deleted. If the command is interrupted, repeat it: it continues.

    Tasks and responses that were made from its rows stay, but lose the record of their origin. The command
    prints their number before it asks.

    Example:

        trinity-db delete my-run --yes
    """
    from trinity_db.postgres.opening import open_database
    from trinity_db.store import deletion, policies, runs

    with closing(open_database()) as database:
        with database.transaction() as tx:
            run_row = runs.find(tx, run)
            made = deletion.made_from(tx, run_row)
            objects = _object_places(policies.with_checkpoint(tx, run_row.id))
        if any(made.values()):
            print(_orphans(run, made), file=sys.stderr)
        if not yes:
            typer.confirm(
                f"Delete {run_row.kind} run '{run}' with all its rows and checkpoints?", abort=True, err=True
            )
        _reach_objects(run, objects)
        rows, folders, kept = remove(database, run_row)
    if as_json:
        lost = {"lost_origins": made}
        output.print_json({"run": run, "deleted": rows, **lost, "folders": folders, "kept": kept})
        return
    counts = ", ".join(f"{count} {name}" for name, count in rows.items() if count) or "no rows"
    print(f"Deleted '{run}': {counts}.")
    for folder in folders:
        print(f"Deleted the checkpoints in {folder}.")
    for line in kept:
        print(f"Kept: {line}")


def remove(database: "Database", run: "Run") -> tuple[dict[str, int], list[str], list[str]]:
    """Delete a run. Return the number of deleted rows by kind, the deleted folders, and what is kept.

    Raises:
        ConfigError: if its workers are alive, or other runs have its rows or started from it.
    """
    from trinity_db.arrays import archive, vectors
    from trinity_db.store import deletion, instances, payloads
    from trinity_db.worker.service import LEASE_SECONDS

    with database.transaction() as tx:
        instance = instances.identify(tx)
        checkpoints = deletion.begin(tx, run, LEASE_SECONDS)
        tables = payloads.archives(tx, run.id, instance.id)
    # Before the rows, which are the only record of the addresses: an interrupted deletion can still find
    # them.
    kept = _delete_objects(run, instance, _object_places(checkpoints))
    folders, kept_files = _delete_folders(run, instance, checkpoints)
    kept += kept_files
    rows = deletion.delete_rows(database, run, RemovalLog("deleting", run.name))
    kept += _drop_archives(tables)
    for table in vectors.names(run.id, instance.id):
        archive.drop(table)
    with database.transaction() as tx:
        deletion.finish(tx, run)
    return rows, folders, kept


def _orphans(run: str, made: "Mapping[str, int]") -> str:
    """Warn about tasks and responses that lose the record of their origin."""
    counts = " and ".join(
        f"{count} {name if count > 1 else name[:-1]}" for name, count in made.items() if count
    )
    return f"Made from rows of '{run}': {counts}. They stay, but origin_view no longer shows their origin."


def _delete_folders(
    run: "Run", instance: "Instance", checkpoints: "Sequence[PolicyVersion]"
) -> tuple[list[str], list[str]]:
    """Delete the checkpoint folders that name this very run; return them, and what is kept."""
    from trinity_db.config.base import home
    from trinity_db.trainer.checkpoints import folder

    default = home() / "checkpoints" / run.name
    identity: dict[str, Any] = {"store": str(instance.id)} | run.identity
    places = dict.fromkeys(
        [
            *(path.parent for checkpoint in checkpoints for path in checkpoint.folders),
            *folder.places(default, identity),
        ]
    )
    own = [path for path in places if folder.clear(path, identity)]
    kept = [
        f"{path}, which is not in a folder that names this run as owner"
        for checkpoint in checkpoints
        for path in checkpoint.folders
        if path.parent not in own
        # Version 0 may be a model of the user, which must not be deleted; files of an import belong to the
        # run.
        and (checkpoint.version > 0 or path.is_relative_to(home() / "copies"))
        and os.path.exists(path)  # Path.exists raises without permission
    ]
    logs = home() / "logs" / run.name
    if logs.is_dir():
        kept.append(f"{logs}, the logs of runs of this name")
    return [str(path) for path in own], kept


def _object_places(checkpoints: "Sequence[PolicyVersion]") -> list[str]:
    """Addresses below which a run has objects."""
    return list(
        dict.fromkeys(
            checkpoint.weights.rpartition("/")[0] for checkpoint in checkpoints if checkpoint.weights
        )
    )


def _reach_objects(run: str, addresses: "Sequence[str]") -> None:
    """Refuse to delete a run whose objects would be left behind: only its rows record their addresses.

    Raises:
        TrinityError: if an object store is unreachable, or denies access.
    """
    from trinity_db.errors import TrinityError
    from trinity_db.trainer.checkpoints import uploads

    for address in addresses:
        try:
            uploads.reach(address)
        except TrinityError as error:
            reason = str(error).rstrip(".")
            raise TrinityError(
                f"'{run}' is kept, because its objects would remain: {reason}. Retry when the store answers."
            ) from error


def _delete_objects(run: "Run", instance: "Instance", addresses: "Sequence[str]") -> list[str]:
    """Delete the versions of this very run in object stores; return what is kept.

    Raises:
        TrinityError: see `uploads.clear`. The rows are still there, so the command can be repeated.
    """
    from trinity_db.trainer.checkpoints import uploads

    identity: dict[str, Any] = {"store": str(instance.id)} | run.identity
    return [
        f"{address}, which does not name this run as owner"
        for address in addresses
        if not uploads.clear(address, identity)
    ]


def _drop_archives(tables: "Sequence[tuple[str, bool]]") -> list[str]:
    """Drop the run's Lance tables that this very store wrote; return which tables are kept."""
    from trinity_db.arrays import archive

    for table, is_own in tables:
        if is_own:
            archive.drop(table)
    return [
        f"table {table} of the archive, which the store that this one was copied from may need"
        for table, is_own in tables
        if not is_own and archive.exists(table)
    ]
