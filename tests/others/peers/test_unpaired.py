"""Pairs that `kto` takes apart, against TRL's own function over the same pairs."""

import random
from contextlib import closing

from datasets import Dataset
from trl.data_utils import unpair_preference_dataset

from tests.support.rows import Scene, import_records, task
from trinity_db.data.records.records import Preference
from trinity_db.postgres.connection import Database

DRAWN = """
SELECT x.prompt, x.response, i.reward > 0
FROM trinity.batch_item i
JOIN trinity.experience e ON e.id = i.experience_id
JOIN trinity.experience_text x ON x.experience_id = e.source_id
WHERE i.batch_id = %s
"""
NUM_PAIRS = 200


def test_kto_learns_from_the_rows_that_trl_makes_of_pairs(database_url: str) -> None:
    chance = random.Random(0)
    pairs = []
    for _ in range(NUM_PAIRS):
        chosen, rejected = chance.sample("abcdefgh", 2)
        pairs.append(Preference(task(chance.randrange(30)), chosen, rejected, None, {}))
    columns = {
        "prompt": [pair.task.payload["prompt"] for pair in pairs],
        "chosen": [pair.chosen for pair in pairs],
        "rejected": [pair.rejected for pair in pairs],
    }
    unpaired = unpair_preference_dataset(Dataset.from_dict(columns))
    by_trl = {(row["prompt"], row["completion"], row["label"]) for row in unpaired}
    # TRL learns from a response that is chosen and rejected as good and as bad; kto leaves it out.
    expected = {(*row, label) for *row, label in by_trl if (*row, not label) not in by_trl}
    assert 0 < len(expected) < len(by_trl)

    with closing(Database(database_url)) as database:
        Scene.open(database)
        import_records(database, "pairs", pairs)
        run = Scene.open(database, "unpaired", data=["pairs"], algorithm="kto")
        run.encode()
        batch = run.draw_rows(step=1, size=2 * NUM_PAIRS)
        assert batch is not None
        drawn = run.rows(DRAWN, batch.id)
    assert len(drawn) == len(set(drawn))
    assert set(drawn) == expected
