"""Labels from pairs: in a run that learns from labels, a chosen row is good and a rejected row bad.

This applies if no reward event about the row counts and no other pair contradicts it. The label becomes the
reward of the row. A replay recomputes it from the pairs that a draw could see.
"""

from collections.abc import Sequence

from trinity_db.postgres.connection import Transaction
from trinity_db.schema.queries import query


def hold(tx: Transaction, experience_ids: Sequence[int]) -> None:
    """Lock rows before their pairs change; rows of runs that do not learn from labels are skipped."""
    tx.execute(query("lock_labelled"), {"ids": list(experience_ids)})


def follow(tx: Transaction, experience_ids: Sequence[int]) -> None:
    """Update the rewards of rows from the pairs that this transaction wrote or changed."""
    if not experience_ids:
        return
    hold(tx, experience_ids)
    tx.execute(query("follow_pairs"), {"ids": list(experience_ids)})
