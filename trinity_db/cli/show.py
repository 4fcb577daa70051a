"""`trinity-db show`: one experience with everything that the store knows of it."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trinity_db.cli import output
from trinity_db.errors import NotFound

if TYPE_CHECKING:
    from rich.console import Console

    from trinity_db.arrays import Payload
    from trinity_db.database import Database

HISTORY = ("rewards", "processing", "drops", "preferences", "batches")


def show(
    experience_id: Annotated[int, typer.Argument(metavar="ID", help="Id of an experience.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show one experience in full.

    Its text, rewards, processing, drops, preferences, batches, and its tokens with log-probabilities.

    Example:

        trinity-db show 1
    """
    from trinity_db.database import open_reader

    with closing(open_reader()) as database:
        found = _read(database, experience_id)
    if as_json:
        output.print_json(found)
    else:
        _print(output.console(sys.stdout), found)


def _read(database: "Database", experience_id: int) -> dict[str, Any]:
    from trinity_db.schema.queries import query
    from trinity_db.store import payloads

    about = {"id": experience_id}
    with database.transaction(read_only=True) as tx:
        found = tx.execute(query("show_experience"), about).fetchone()
        if found is None:
            raise NotFound(f"There is no experience {experience_id}.")
        for part in HISTORY:
            found[part] = tx.execute(query(f"show_{part}"), about).fetchall()
    payload = payloads.read(database, [experience_id]).get(experience_id)
    return {**found, "tokens": _tokens(payload) if payload else None}


def _tokens(payload: "Payload") -> dict[str, list[Any] | None]:
    logprobs, versions = payload.logprobs, payload.versions
    return {
        "token_ids": payload.token_ids.tolist(),
        "action_mask": payload.action_mask.astype(int).tolist(),
        # The shortest decimals that are these float32.
        "logprobs": None if logprobs is None else [float(str(value)) for value in logprobs],
        "versions": None if versions is None else versions.tolist(),
    }


def _print(console: "Console", found: dict[str, Any]) -> None:
    from rich.text import Text

    apart = (*HISTORY, "tokens", "task_payload", "prompt", "response", "messages", "environment")
    console.print(output.facts({key: value for key, value in found.items() if key not in apart}))
    for key in ("task_payload", "messages", "environment", "prompt", "response"):
        if found[key] is not None:
            console.print(f"\n{key}", style="bold")
            console.print(Text(output.printable(output.scalar(found[key]))))
    for part in HISTORY:
        if found[part]:
            console.print(f"\n{part}", style="bold")
            _print_rows(console, [tuple(row.values()) for row in found[part]], list(found[part][0]))
    if found["tokens"]:
        console.print("\ntokens", style="bold")
        _print_rows(console, list(_spans(found["tokens"])), ["position", "token", "logprob", "version"])


def _print_rows(console: "Console", rows: Sequence[Sequence[Any]], columns: Sequence[str]) -> None:
    table = output.table(*columns)
    for row in rows:
        table.add_row(*("" if value is None else output.cell(value) for value in row))
    console.print(table)


def _spans(tokens: Mapping[str, Any]) -> Iterator[tuple[str, str, float | None, int | None]]:
    """A row for each trained token, and one for each stretch of tokens between them."""
    ids, mask = tokens["token_ids"], tokens["action_mask"]
    numbers = zip(
        tokens["logprobs"] or [None] * sum(mask), tokens["versions"] or [None] * sum(mask), strict=True
    )
    start = 0
    for position, trained in enumerate([*mask, 1]):
        if not trained:
            continue
        if start < position:
            given = " ".join(map(str, ids[start:position]))
            yield f"{start}-{position - 1}", given, None, None
        if position < len(ids):
            yield str(position), str(ids[position]), *next(numbers)
        start = position + 1
