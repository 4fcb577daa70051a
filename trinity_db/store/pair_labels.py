"""Labels out of pairs: in a run that learns from labels the chosen row is good, the rejected one bad.

That holds where no reward event about the row counts, and no other pair says otherwise. The label is then the
reward of the row. A replay computes it again from the pairs that a draw could see.
"""

from collections.abc import Sequence

from trinity_db.database import Transaction
from trinity_db.schema.queries import query


def hold(tx: Transaction, experience_ids: Sequence[int]) -> None:
    """Lock rows before their pairs change; those of runs that learn from no labels are left alone."""
    tx.execute(query("lock_labelled"), {"ids": list(experience_ids)})


def follow(tx: Transaction, experience_ids: Sequence[int]) -> None:
    """Let the rewards of rows follow their pairs, which this transaction wrote or changed."""
    if not experience_ids:
        return
    hold(tx, experience_ids)
    tx.execute(query("follow_pairs"), {"ids": list(experience_ids)})
