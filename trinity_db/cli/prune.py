"""`trinity-db prune`: deletes payloads, metrics and processing records that runs need no more."""

from contextlib import closing
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from trinity_db import ages
from trinity_db.cli import disk, output
from trinity_db.cli.removal import RemovalLog
from trinity_db.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trinity_db.database import Database
    from trinity_db.store.pruning import Family, Pruned
    from trinity_db.store.runs import Run


def prune(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Name of a run; without it, all runs.")
    ] = None,
    payloads: Annotated[
        bool, typer.Option("--payloads", help="Arrays of rows and of agents' calls that are done with.")
    ] = False,
    metrics: Annotated[bool, typer.Option("--metrics", help="What the roles measured.")] = False,
    processing: Annotated[
        bool, typer.Option("--processing", help="Processing records of rows that are done with.")
    ] = False,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Only what is older: 30d, 12h or 90m.")
    ] = None,
    keep_versions: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, max=2**31 - 1, help="Keep what is of the newest N policy versions."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what went as a JSON list.")] = False,
) -> None:
    """Delete payloads, metrics and processing records that runs need no more.

    Say an age, a number of versions, or both; then what both allow goes. Without a family, all go. A
    payload goes where no kept checkpoint can give its row back to be drawn; rows, texts, rewards and batches
    stay. Runs work on meanwhile. If it was killed, repeat it: it goes on.

    Example:

        trinity-db prune my-run --payloads --older-than 30d --dry-run
    """
    from trinity_db.opening import open_database
    from trinity_db.store.pruning import CALLS, METRICS, PAYLOADS, PROCESSING

    if older_than is None and keep_versions is None:
        raise typer.BadParameter("say --older-than AGE, --keep-versions N, or both")
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
        found = _runs(database, run)
        if not dry_run and not yes:
            what = ", ".join(family.name for family in families)
            whose = f"run '{run}'" if run is not None else f"all {len(found)} runs"
            typer.confirm(f"Remove {what} of {whose} for good?", abort=True, err=True)
        pruned = {one.name: _prune(database, one, families, age, keep_versions, dry_run) for one in found}
    if as_json:
        said = [
            {"run": name, "dry_run": dry_run, **{family: asdict(count) for family, count in of.items()}}
            for name, of in pruned.items()
        ]
        output.print_json(said)
        return
    for name, of in pruned.items():
        print(f"{'Would prune' if dry_run else 'Pruned'} '{name}': {_described(of)}.")
    if not pruned:
        print("There are no runs to prune.")


def _age(text: str) -> timedelta:
    try:
        return ages.parse(text)
    except ValueError as error:
        raise typer.BadParameter(f"--older-than: {error}") from None


def _runs(database: "Database", name: str | None) -> "list[Run]":
    """The run of this name, or all that train.

    Raises:
        ConfigError: it is a data set.
    """
    from trinity_db.schema.queries import query
    from trinity_db.schema.states import RunKind
    from trinity_db.store import runs

    with database.transaction() as tx:
        if name is None:
            names = [row["name"] for row in tx.execute(query("prunable_runs"))]
            return [runs.find(tx, each) for each in names]
        found = runs.find(tx, name)
    if found.kind != RunKind.TRAIN:
        raise ConfigError(f"'{name}' is a data set, which runs read again; only runs are pruned.")
    return [found]


def _prune(
    database: "Database",
    run: "Run",
    families: "Sequence[Family]",
    age: timedelta | None,
    keep_versions: int | None,
    dry_run: bool,
) -> "dict[str, Pruned]":
    from trinity_db.store import pruning

    with database.transaction() as tx:
        limits = pruning.limits(tx, run, age, keep_versions)
    progress = RemovalLog("pruning", run.name)
    return {
        family.name: pruning.prune(database, run, family, limits, dry_run, progress) for family in families
    }


def _described(pruned: "dict[str, Pruned]") -> str:
    parts = []
    for name, count in pruned.items():
        archived = (
            f", {count.archived} more in the archive, whose bytes its archiver frees"
            if count.archived
            else ""
        )
        parts.append(f"{count.rows - count.archived} {name} ({disk.megabytes(count.bytes)}){archived}")
    return "; ".join(parts)
