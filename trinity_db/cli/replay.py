"""`trinity-db replay`: writes a batch as the trainer saw it to a file, or repeats its draw."""

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trinity_db.cli import output
from trinity_db.cli.formats import Format, write
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.insight.columns import Column
from trinity_db.insight.words import jsonable

if TYPE_CHECKING:
    from trinity_db.store.batches import Row
    from trinity_db.store.replay import Recorded

COLUMNS = [
    Column("ordinal", "int4"),
    Column("experience_id", "int8"),
    Column("preference_id", "int8"),
    Column("group_id", "int8"),
    Column("token_ids", "int4", is_array=True),
    Column("action_mask", "int2", is_array=True),
    Column("logprobs", "float4", is_array=True),
    Column("versions", "int4", is_array=True),
    Column("temperatures", "float4", is_array=True),
    Column("advantage", "float8"),
    Column("weight", "float8"),
    Column("probability", "float8"),
    Column("reward", "float8"),
    Column("staleness", "int4"),
    Column("margin", "float8"),
]
"""Columns of each row; logprobs, versions and temperatures have one entry per 1 in the mask. A row has no
temperatures if all its tokens were sampled at the run's temperature."""

FILE_TYPES = (".jsonl", ".parquet")


def replay(
    batch_id: Annotated[
        int,
        typer.Argument(min=0, max=2**63 - 1, metavar="BATCH", help="Id of a batch, from trinity-db batches."),
    ],
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FILE", help="Write its rows to this .jsonl or .parquet.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Repeat its draw on the data of that time; fail if it differs."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as a JSON object.")] = False,
) -> None:
    """Write a batch as the trainer saw it, or repeat its draw.

    The rows are what the trainer read, in its order: tokens, mask, log-probabilities, versions, and the
    numbers used. The summary names the newest checkpoint at the time, and the last step that it includes. If
    the sampler draws with SQL (mix, stratified, sql, or where), --check runs the recorded SELECT, and needs a
    read-only login.

    Example:

        trinity-db replay 17 --to batch-17.jsonl --check
    """
    if to is None and not check:
        raise typer.BadParameter("give --to FILE, --check, or both")
    if to is not None and to.suffix not in FILE_TYPES:
        raise ConfigError(f"{to}: unknown file type; use one of {', '.join(FILE_TYPES)}.")
    from trinity_db.postgres.logins import refuse_writer
    from trinity_db.postgres.opening import open_reader
    from trinity_db.store.batches import read
    from trinity_db.store.replay import find, first_difference

    with closing(open_reader()) as database:
        with database.transaction(read_only=True) as tx:
            recorded = find(tx, batch_id)
            if check and recorded.runs_select:  # untrusted: a trainer's login may store any SELECT
                refuse_writer(tx, "the recorded SELECT of the batch")
            difference = first_difference(tx, recorded) if check else None
        rows = read(database, batch_id) if to is not None else []
    if to is not None:
        _write(to, rows)
    if as_json:
        checked = {"same": difference is None if check else None, "difference": difference}
        output.print_json({**asdict(recorded), "file": to, **checked})
    else:
        _print(recorded, to, check and difference is None)
    if difference is not None:
        raise TrinityError(f"Batch {batch_id} does not draw the same rows again: {difference}.")


def _write(to: Path, rows: "Sequence[Row]") -> None:
    with output.opened(to) as out:
        if to.suffix == ".parquet":
            write(Format.PARQUET, COLUMNS, (tuple(_shown(row).values()) for row in rows), out)
            return
        for row in rows:
            out.write(json.dumps(jsonable(_shown(row))) + "\n")


def _shown(row: "Row") -> dict[str, Any]:
    """Values of COLUMNS, by name."""
    payload = row.payload
    logprobs, versions, temperatures = payload.logprobs, payload.versions, payload.temperatures
    arrays = {
        "token_ids": payload.token_ids.tolist(),
        "action_mask": payload.action_mask.astype(int).tolist(),
        # The shortest decimals that round to these float32 values.
        "logprobs": None if logprobs is None else [float(str(value)) for value in logprobs],
        "versions": None if versions is None else versions.tolist(),
        "temperatures": None if temperatures is None else [float(str(value)) for value in temperatures],
    }
    return {c.name: arrays[c.name] if c.name in arrays else getattr(row, c.name) for c in COLUMNS}


def _where(recorded: "Recorded") -> str:
    """Location of the weights at which a batch was drawn."""
    from trinity_db.weights import packed

    folder = recorded.checkpoint
    if folder is None:
        return "its checkpoint is gone"
    return f"{packed.delta_folder(folder)}, a delta" if packed.is_packed(folder) else str(folder)


def _print(recorded: "Recorded", to: Path | None, is_same: bool) -> None:
    name = f"Batch {recorded.batch} of '{recorded.run}'"
    if to is not None:
        print(f"{name}, step {recorded.step}: {recorded.rows} rows in {to}")
        weights = (
            f"version {recorded.policy_version}, which includes the steps up to {recorded.checkpoint_step}"
        )
        print(f"It was drawn at {weights}: {_where(recorded)}")
    if is_same:
        print(f"{name} draws the same {recorded.rows} rows.")
