"""What an explorer decides between training and an evaluation."""

from pathlib import Path

import pytest

from trinity_db.explorer.loop.evaluating import Look
from trinity_db.store.evaluations import DueEvaluation
from trinity_db.store.policies import Checkpoint, PolicyVersion

WEIGHTS = Path("version-3")
NEWEST = PolicyVersion(3, 6, WEIGHTS, "hash", Checkpoint(Path("checkpoint-3"), "another"))


@pytest.mark.parametrize(
    ("version", "checkpoint_hash", "is_shared"),
    [(3, "hash", True), (2, "older", False), (3, "of a server that was set back", False)],
)
def test_evaluation_and_training_share_an_engine_that_has_the_weights_of_both(
    version: int, checkpoint_hash: str, is_shared: bool
) -> None:
    due = DueEvaluation(
        1, version, 6, WEIGHTS, checkpoint_hash, samples=1, temperature=0.0, max_new_tokens=4, seed=0
    )
    assert Look(is_finished=False, newest=NEWEST, due=due).is_shared == is_shared
