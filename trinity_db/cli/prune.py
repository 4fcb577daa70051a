"""`trinity-db prune`: deletes payloads, metrics and processing records that runs no longer need."""

from contextlib import closing
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from trinity_db.cli import output
from trinity_db.cli.removal import RemovalLog
from trinity_db.config import durations
from trinity_db.errors import ConfigError
from trinity_db.run import disk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trinity_db.postgres.connection import Database
    from trinity_db.store.pruning import Family, PrunedRows
    from trinity_db.store.runs import Run


def prune(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Name of a run; without it, all runs.")
    ] = None,
    payloads: Annotated[
        bool, typer.Option("--payloads", help="Arrays of finished rows and agents' calls.")
    ] = False,
    metrics: Annotated[bool, typer.Option("--metrics", help="Metrics of the roles.")] = False,
    processing: Annotated[
        bool, typer.Option("--processing", help="Processing records of finished rows.")
    ] = False,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Only data that is older: 30d, 12h or 90m.")
    ] = None,
    keep_versions: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, max=2**31 - 1, help="Keep data of the newest N policy versions."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report what would be deleted.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was deleted as a JSON list.")] = False,
) -> None:
    """Delete data that runs no longer need.

    Deletes payloads, metrics and processing records. Give an age, a number of versions, or both; with
    both, data must meet both. Without a kind of data, all kinds are deleted. A payload is deleted if no
    kept checkpoint can return its row to the draw; rows, texts, rewards and batches stay. Runs keep
    working. If the command is interrupted, repeat it: it continues.

    Example:

        trinity-db prune my-run --payloads --older-than 30d --dry-run
    """
    from trinity_db.postgres.opening import open_database
    from trinity_db.store.pruning import CALLS, METRICS, PAYLOADS, PROCESSING

    if older_than is None and keep_versions is None:
        raise typer.BadParameter("give --older-than AGE, --keep-versions N, or both")
    age = None if older_than is None else _age(older_than)
    named = [
        family
        for family, is_named in (
            (PAYLOADS, payloads),
            (CALLS, payloads),
            (METRICS, metrics),
            (PROCESSING, processing),
        )
        if is_named
    ]
    families = named or [PAYLOADS, CALLS, METRICS, PROCESSING]
    with closing(open_database()) as database:
        runs = _runs(database, run)
        if not dry_run and not yes:
            kinds = ", ".join(family.name for family in families)
            whose = f"run '{run}'" if run is not None else f"all {len(runs)} runs"
            typer.confirm(f"Permanently delete {kinds} of {whose}?", abort=True, err=True)
        pruned = {
            run_row.name: _prune(database, run_row, families, age, keep_versions, dry_run) for run_row in runs
        }
    if as_json:
        records = [
            {"run": name, "dry_run": dry_run, **{family: asdict(count) for family, count in counts.items()}}
            for name, counts in pruned.items()
        ]
        output.print_json(records)
        return
    for name, counts in pruned.items():
        print(f"{'Would prune' if dry_run else 'Pruned'} '{name}': {_described(counts)}.")
    if not pruned:
        print("There are no runs to prune.")


def _age(text: str) -> timedelta:
    try:
        return durations.parse(text)
    except ValueError as error:
        raise typer.BadParameter(f"--older-than: {error}") from None


def _runs(database: "Database", name: str | None) -> "list[Run]":
    """Return the run of this name, or all training runs.

    Raises:
        ConfigError: if it is a data set.
    """
    from trinity_db.schema.queries import query
    from trinity_db.schema.states import RunKind
    from trinity_db.store import runs

    with database.transaction() as tx:
        if name is None:
            names = [row["name"] for row in tx.execute(query("prunable_runs"))]
            return [runs.find(tx, run_name) for run_name in names]
        run_row = runs.find(tx, name)
    if run_row.kind != RunKind.TRAIN:
        raise ConfigError(f"'{name}' is a data set, which runs may read again; only runs can be pruned.")
    return [run_row]


def _prune(
    database: "Database",
    run: "Run",
    families: "Sequence[Family]",
    age: timedelta | None,
    keep_versions: int | None,
    dry_run: bool,
) -> "dict[str, PrunedRows]":
    from trinity_db.store import pruning

    with database.transaction() as tx:
        limits = pruning.limits(tx, run, age, keep_versions)
    progress = RemovalLog("pruning", run.name)
    return {
        family.name: pruning.prune(database, run, family, limits, dry_run, progress) for family in families
    }


def _described(pruned: "dict[str, PrunedRows]") -> str:
    parts = []
    for name, count in pruned.items():
        archived = (
            f", {count.archived} more in the archive, where the archiver frees the space"
            if count.archived
            else ""
        )
        parts.append(f"{count.rows - count.archived} {name} ({disk.megabytes(count.bytes)}){archived}")
    return "; ".join(parts)
