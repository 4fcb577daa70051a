"""`trinity-db search`: finds rows that contain words, or that are similar to another row."""

import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trinity_db.cli import output
from trinity_db.insight.words import printable

if TYPE_CHECKING:
    from psycopg.rows import DictRow

    from trinity_db.postgres.connection import Database
    from trinity_db.processors.jobs.semantic_search import Models

COLUMNS = ("experience", "run", "state", "version", "reward", "score", "response")
NUMBERS = ("experience", "version", "reward", "score")
EXPENDABLE = ("version", "state", "run")
TEXT = 120  # characters of a response in the table; --json prints it whole
LONGEST_RUN = 3  # words


def search(
    wanted: Annotated[
        str, typer.Argument(metavar="WORDS|ID", help="Words, or the id of a row to find similar rows of.")
    ],
    run: Annotated[
        str | None, typer.Option("--run", metavar="NAME", help="Only rows of this run or data set.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000_000, help="Number of rows to list.")] = 10,
    by_words: Annotated[
        bool, typer.Option("--by-words", help="Compare texts even if the run has vectors.")
    ] = False,
    config: Annotated[
        list[Path] | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="Configuration of the run whose step embed names the model for WORDS; may be repeated.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with whole texts.")] = False,
) -> None:
    """Find rows by meaning or words, or rows similar to a row.

    If the clean step `embed` has written vectors, rows are found by the meaning of their responses, and the
    score is a cosine. Searching by words then needs --config, because only a model that your configuration
    names receives them. Without vectors all words must be in the prompt or the response. As in web search,
    `or` separates alternatives, -word excludes rows, and "a phrase" in quotation marks must occur as written.

    A whole number is the id of a row; put a number in quotation marks to search for it as a word. Without
    vectors, similarity is the share of three-word sequences that both responses contain.

    Example:

    \b
        trinity-db search "apples -pears" --run demo-1
        trinity-db search "the model gives up" --config my-run.yaml
    """
    from trinity_db.postgres.opening import open_reader
    from trinity_db.store import runs

    if any("\ud800" <= letter <= "\udfff" for letter in wanted):
        raise typer.BadParameter("give words in UTF-8", param_hint="WORDS|ID")
    by_id = wanted.isascii() and wanted.isdigit() and len(wanted) < 19
    with closing(open_reader()) as database:
        with database.transaction(read_only=True) as tx:
            run_id = runs.find(tx, run, "run or data set").id if run is not None else None
        rows = None if by_words else _by_meaning(database, wanted, by_id, run_id, limit, config or ())
        if rows is None:
            rows = _by_text(database, wanted, by_id, run_id, limit)
    if as_json:
        output.print_json(rows)
    elif rows:
        console = output.console(sys.stdout)
        cells = [[_cell(row[column]) for column in COLUMNS] for row in rows]
        console.print(output.fitted(COLUMNS, cells, console.width, EXPENDABLE, NUMBERS))
    else:
        print(f"No row {f'is similar to {wanted}' if by_id else f'contains {wanted!r}'}.")


def _by_meaning(
    database: "Database",
    wanted: str,
    by_id: bool,
    run_id: int | None,
    limit: int,
    configs: Sequence[Path],
) -> "list[DictRow] | None":
    """Find rows by their vectors; None without vectors."""
    from trinity_db.processors.jobs import semantic_search
    from trinity_db.store import search as rows

    if by_id:
        best = semantic_search.like(database, int(wanted), run_id, limit)
    else:
        best = semantic_search.by_words(database, wanted, run_id, limit, embedding_models(configs))
    if best is None:
        return None
    with database.transaction(read_only=True) as tx:
        return rows.with_texts(tx, best)


def embedding_models(configs: Sequence[Path]) -> "Models":
    """Return the models that the steps `embed` in these configuration files name.

    Raises:
        ConfigError: if a file cannot be read, or a model's folder is missing.
    """
    from trinity_db.postgres.opening import open_reader
    from trinity_db.processors.jobs.semantic_search import Models
    from trinity_db.run import joining

    return Models(joining.pinned(joining.read(path, ()), open_reader).processors for path in configs)


def _by_text(
    database: "Database", wanted: str, by_id: bool, run_id: int | None, limit: int
) -> "list[DictRow]":
    from trinity_db.store import search as rows

    if by_id:
        return rows.like(database, int(wanted), run_id, limit, _likeness)
    return rows.by_words(database, wanted, run_id, limit)


def _likeness(text: str) -> Callable[[str], float]:
    """Return a similarity measure: the share of word sequences in both responses among those in either."""
    from trinity_db.processors.jobs.words import runs, words
    from trinity_db.store.neighbours import jaccard

    split = words(text)
    length = min(LONGEST_RUN, max(len(split), 1))
    own = frozenset(runs(split, length))

    def score(other: str) -> float:
        sequences = frozenset(runs(words(other), length))
        return jaccard(own, sequences) if own and sequences else 0.0

    return score


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, str):
        return output.shorten(printable(" ".join(value.split())), TEXT)
    return "" if value is None else str(value)
