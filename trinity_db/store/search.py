"""Search rows by their texts."""

from collections.abc import Callable, Iterator, Mapping
from heapq import nlargest

from psycopg.errors import ProgramLimitExceeded
from psycopg.rows import DictRow

from trinity_db.errors import NotFound, TrinityError
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.schema.queries import query

CHUNK = 1000  # texts read at a time
CHARACTERS = (200_000, 60_000)  # read of long texts; the smaller number if the words of the larger do not fit


def by_words(database: Database, words: str, run_id: int | None, limit: int) -> list[DictRow]:
    """Find rows whose prompt or response contains these words, best match first.

    Args:
        words: in web search syntax: `or`, -without, "a phrase".
        run_id: the run to search; None: all runs.

    Raises:
        TrinityError: if it contains no word.
    """
    with database.transaction(read_only=True) as tx:
        row = tx.execute(query("count_words"), {"words": words}).fetchone()
    if row is None or not row["words"]:
        raise TrinityError(f"There is no word in '{words}': give words from a prompt or a response.")
    most, fewer = (
        {"words": words, "run_id": run_id, "limit": limit, "characters": count} for count in CHARACTERS
    )
    try:
        with database.transaction(read_only=True) as tx:
            return tx.execute(query("search_words"), most).fetchall()
    except ProgramLimitExceeded:
        with database.transaction(read_only=True) as tx:
            return tx.execute(query("search_words"), fewer).fetchall()


def like(
    database: Database,
    id: int,
    run_id: int | None,
    limit: int,
    likeness: Callable[[str], Callable[[str], float]],
) -> list[DictRow]:
    """Find other rows with responses similar to a row's, most similar first.

    Args:
        likeness: returns the similarity of a response, from 0 to 1. Rows with 0 are left out.

    Raises:
        NotFound: if the row does not exist.
    """
    with database.transaction(read_only=True) as tx:
        example = tx.execute(query("response_of"), {"id": id}).fetchone()
    if example is None:
        raise NotFound(f"There is no experience {id}.")
    score = likeness(example["response"])
    scores = ((score(row["response"]), -row["id"]) for row in _responses(database, run_id) if row["id"] != id)
    best = {-negative: value for value, negative in nlargest(limit, scores) if value > 0}
    with database.transaction(read_only=True) as tx:
        return with_texts(tx, best)


def with_texts(tx: Transaction, scores: Mapping[int, float]) -> list[DictRow]:
    """Read these rows with their scores, in order."""
    rows = {row["experience"]: row for row in tx.execute(query("read_found"), {"ids": list(scores)})}
    return [{**rows[id], "score": score} for id, score in scores.items() if id in rows]


def _responses(database: Database, run_id: int | None) -> Iterator[DictRow]:
    after = 0
    while True:
        values = {"run_id": run_id, "after": after, "limit": CHUNK}
        with database.transaction(read_only=True) as tx:
            rows = tx.execute(query("searched_after"), values).fetchall()
        if not rows:
            return
        yield from rows
        after = rows[-1]["id"]
