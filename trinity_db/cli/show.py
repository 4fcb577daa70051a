"""`trinity-db show`: one experience with all its data in the store."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trinity_db.cli import output
from trinity_db.insight.words import cell, moment, printable, scalar

if TYPE_CHECKING:
    from rich.console import Console

HISTORY = {
    "sequences": ("num_tokens", "paths", "state", "reward"),
    "rewards": ("latest", "weight", "created_by", "detail"),
    "parks": ("answered_by", "resumed_at", "answered_at"),
    "processing": ("processor_version", "attempt"),
    "drops": ("group_id",),
    "preferences": ("held_out", "use_count", "source"),
    "batches": (
        "created_at",
        "sampler",
        "probability",
        "ordinal",
        "weight",
        "committed_at",
        "id",
        "included_version",
    ),
}
"""Tables about an experience, each with the columns that a narrow terminal leaves out."""
TOKENS = 100  # rows; people scroll through this many
STRETCH = 40  # characters of masked tokens, whose text is shown above in full


def show(
    experience_id: Annotated[
        int, typer.Argument(min=0, max=2**63 - 1, metavar="ID", help="Id of an experience.")
    ],
    tokens: Annotated[int, typer.Option(min=0, help="Number of rows of tokens; 0: none.")] = TOKENS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with all tokens.")] = False,
) -> None:
    """Show one experience in full.

    Prints its text, rewards, processing, drops, preferences and batches. Then its tokens: each trained token
    with its text, log-probability and policy version, and one row for each stretch of masked tokens. The
    texts come from the tokenizer of the run's newest version that is below TRINITY_DB_HOME, or in a folder
    with a trainer's run.json. Without one only the ids are shown.

    Example:

        trinity-db show 1
    """
    from trinity_db.insight import show
    from trinity_db.postgres.opening import open_reader

    with closing(open_reader()) as database:
        experience = show.experience(database, experience_id)
        folder = experience.pop("tokenizer")
        read = show.tokens(database, experience_id) if experience["arrays_pruned_at"] is None else None
    if read is not None and (as_json or tokens > 0):
        read |= show.texts(read["token_ids"], folder)
    experience["tokens"] = read
    if as_json:
        output.print_json(experience)
    else:
        _print(output.console(sys.stdout), experience, tokens)


def _print(console: "Console", experience: dict[str, Any], num_tokens: int) -> None:
    from rich.text import Text

    apart = (*HISTORY, "tokens", "task_payload", "prompt", "response", "messages", "environment", "output")
    console.print(output.facts({key: _cell(value) for key, value in experience.items() if key not in apart}))
    for key in ("task_payload", "messages", "environment", "prompt", "response", "output"):
        if experience[key] is not None:
            console.print(f"\n{key}", style="bold")
            console.print(Text(printable(scalar(experience[key]))))
    for part, expendable in HISTORY.items():
        if rows := experience[part]:
            console.print(f"\n{part}", style="bold")
            cells = [[_cell(value) or "" for value in row.values()] for row in rows]
            console.print(output.fitted(list(rows[0]), cells, console.width, expendable))
    if experience["tokens"] and num_tokens:
        _print_tokens(console, experience["tokens"], num_tokens)


def _cell(value: Any) -> str | None:
    """Format a value for people; None if there is nothing to show."""
    if isinstance(value, datetime):
        return moment(value)
    return None if value is None else cell(value)


def _print_tokens(console: "Console", tokens: Mapping[str, Any], limit: int) -> None:
    columns = ("position", "text", "id", "logprob", "version")
    rows = list(_token_rows(tokens))
    console.print("\ntokens", style="bold")
    console.print(output.fitted(columns, rows[:limit], console.width, numbers=columns[3:]))
    if "no_texts" in tokens:
        console.print(printable(f"Texts are missing: {tokens['no_texts']}"))
    if len(rows) > limit:
        console.print(f"{len(rows) - limit} more rows of tokens: use --tokens {len(rows)}")


def _token_rows(tokens: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield a row for each trained token, and one for each stretch of masked tokens between them."""
    ids, mask, texts = tokens["token_ids"], tokens["action_mask"], tokens["texts"]
    columns = (tokens[key] or [None] * sum(mask) for key in ("logprobs", "versions"))
    numbers = zip(*columns, strict=True)
    start = 0
    for position, trained in enumerate([*mask, 1]):
        if not trained:
            continue
        if start < position:
            span = str(start) if position == start + 1 else f"{start}-{position - 1}"
            text, stretch = _quoted(texts, start, position), " ".join(map(str, ids[start:position]))
            yield [span, output.shorten(text, STRETCH), output.shorten(stretch, STRETCH // 2), "masked", ""]
        if position < len(ids):
            cells = ("" if value is None else str(value) for value in next(numbers))
            yield [str(position), _quoted(texts, position, position + 1), str(ids[position]), *cells]
        start = position + 1


def _quoted(texts: Sequence[str] | None, start: int, end: int) -> str:
    """Text of tokens in quotes, so that blanks and line ends are visible."""
    return "" if texts is None else json.dumps("".join(texts[start:end]), ensure_ascii=False)
