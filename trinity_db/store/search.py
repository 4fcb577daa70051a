"""Rows that are found by what their texts say."""

from collections.abc import Callable, Iterator, Mapping
from heapq import nlargest

from psycopg.errors import ProgramLimitExceeded
from psycopg.rows import DictRow

from trinity_db.database import Database, Transaction
from trinity_db.errors import NotFound, TrinityError
from trinity_db.schema.queries import query

CHUNK = 1000  # texts read at a time
CHARACTERS = (200_000, 60_000)  # that are read of long texts; the fewer, if the words of more do not fit


def by_words(database: Database, words: str, run_id: int | None, limit: int) -> list[DictRow]:
    """Rows whose prompt or response has these words, the best first.

    Args:
        words: as people write them for a search on the web: `or`, -without, "a phrase".
        run_id: the run whose rows are looked at; None: all runs.

    Raises:
        TrinityError: there is no word in it.
    """
    with database.transaction(read_only=True) as tx:
        row = tx.execute(query("count_words"), {"words": words}).fetchone()
    if row is None or not row["words"]:
        raise TrinityError(f"There is no word in '{words}': give words that a prompt or a response has.")
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
    """Other rows whose response is like that of a row, the most alike first.

    Args:
        likeness: of a response: how much alike another one is, from 0 to 1. Rows with 0 are left out.

    Raises:
        NotFound: there is no such row.
    """
    with database.transaction(read_only=True) as tx:
        asked = tx.execute(query("response_of"), {"id": id}).fetchone()
    if asked is None:
        raise NotFound(f"There is no experience {id}.")
    score = likeness(asked["response"])
    scores = ((score(row["response"]), -row["id"]) for row in _responses(database, run_id) if row["id"] != id)
    best = {-negative: value for value, negative in nlargest(limit, scores) if value > 0}
    with database.transaction(read_only=True) as tx:
        return with_texts(tx, best)


def with_texts(tx: Transaction, scores: Mapping[int, float]) -> list[DictRow]:
    """These rows with their scores, in their order."""
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
