"""`trinity-db search`: rows that have some words, or that are like another row."""

import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trinity_db.cli import output
from trinity_db.inspection.words import printable

if TYPE_CHECKING:
    from psycopg.rows import DictRow

    from trinity_db.database import Database
    from trinity_db.processors.meaning import Models

COLUMNS = ("experience", "run", "state", "version", "reward", "score", "response")
NUMBERS = ("experience", "version", "reward", "score")
EXPENDABLE = ("version", "state", "run")
TEXT = 120  # characters of a response in the table; --json has all of it
LONGEST_RUN = 3  # words


def search(
    wanted: Annotated[
        str, typer.Argument(metavar="WORDS|ID", help="Words, or the id of a row that others are to be like.")
    ],
    run: Annotated[
        str | None, typer.Option("--run", metavar="NAME", help="Of this run or data set only.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000_000, help="How many to list.")] = 10,
    by_words: Annotated[
        bool, typer.Option("--by-words", help="Compare texts, although the run has vectors.")
    ] = False,
    config: Annotated[
        list[Path] | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="Configuration of the run, whose step embed names the model for WORDS; may be repeated.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with whole texts.")] = False,
) -> None:
    """Find rows by meaning or by words, or rows whose response is like that of a row.

    If the clean step `embed` has written vectors, rows are found by the meaning of their responses, and the
    score is a cosine. Words then need --config: only a model that your configuration names gets them. Without
    vectors all words have to be in the prompt or the response. As on the web, `or`
    stands between alternatives, -word leaves rows out, and "a phrase" in quotation marks stands together.

    A whole number is the id of a row; for a number as a word, put it in quotation marks. Without vectors rows
    are alike by the share of runs of three words that both responses have.

    Example:

        trinity-db search "apples -pears" --run demo-1
        trinity-db search "the model gives up" --config my-run.yaml
    """
    from trinity_db.opening import open_reader
    from trinity_db.store import runs

    if any("\ud800" <= letter <= "\udfff" for letter in wanted):
        raise typer.BadParameter("give words in UTF-8", param_hint="WORDS|ID")
    by_id = wanted.isascii() and wanted.isdigit() and len(wanted) < 19
    with closing(open_reader()) as database:
        with database.transaction(read_only=True) as tx:
            run_id = runs.find(tx, run, "run or data set").id if run is not None else None
        found = None if by_words else _by_meaning(database, wanted, by_id, run_id, limit, config or ())
        if found is None:
            found = _by_text(database, wanted, by_id, run_id, limit)
    if as_json:
        output.print_json(found)
    elif found:
        console = output.console(sys.stdout)
        cells = [[_cell(one[column]) for column in COLUMNS] for one in found]
        console.print(output.fitted(COLUMNS, cells, console.width, EXPENDABLE, NUMBERS))
    else:
        print(f"No row {f'is like {wanted}' if by_id else f'has {wanted!r}'}.")


def _by_meaning(
    database: "Database",
    wanted: str,
    by_id: bool,
    run_id: int | None,
    limit: int,
    configs: Sequence[Path],
) -> "list[DictRow] | None":
    """Rows by their vectors; None where there are none."""
    from trinity_db.processors import meaning
    from trinity_db.store import search as rows

    if by_id:
        best = meaning.like(database, int(wanted), run_id, limit)
    else:
        best = meaning.by_words(database, wanted, run_id, limit, embedding_models(configs))
    if best is None:
        return None
    with database.transaction(read_only=True) as tx:
        return rows.with_texts(tx, best)


def embedding_models(configs: Sequence[Path]) -> "Models":
    """The models that the steps `embed` of these configuration files name.

    Raises:
        ConfigError: a file cannot be read, or a model's folder is missing.
    """
    from trinity_db.cli import launch
    from trinity_db.opening import open_reader
    from trinity_db.processors.meaning import Models

    return Models(launch.pinned(launch.read(path, ()), open_reader).processors for path in configs)


def _by_text(
    database: "Database", wanted: str, by_id: bool, run_id: int | None, limit: int
) -> "list[DictRow]":
    from trinity_db.store import search as rows

    if by_id:
        return rows.like(database, int(wanted), run_id, limit, _likeness)
    return rows.by_words(database, wanted, run_id, limit)


def _likeness(asked: str) -> Callable[[str], float]:
    """How much alike another response is: the share of runs of words that are in both, of those in either."""
    from trinity_db.processors.words import runs, words
    from trinity_db.store.neighbours import jaccard

    split = words(asked)
    length = min(LONGEST_RUN, max(len(split), 1))
    own = frozenset(runs(split, length))

    def score(other: str) -> float:
        found = frozenset(runs(words(other), length))
        return jaccard(own, found) if own and found else 0.0

    return score


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, str):
        return output.shorten(printable(" ".join(value.split())), TEXT)
    return "" if value is None else str(value)
