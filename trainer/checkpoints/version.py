"""Versions on disk: a folder each with weights that explorers load.

The trainer records the digest of the files with the policy version, so that damage is noticed.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from trinity_db.trainer.checkpoints import writing
from trinity_db.trainer.learner.learner import Learner


def begin(
    folder: Path, learner: Learner, tokenizer: Any, then: Callable[[str], None] | None = None
) -> writing.Writing:
    """Copy the weights, and have a thread write them as a version. The learner may go on.

    Args:
        then: what the thread does when the files are safe, with their digest.

    Raises:
        TrinityError: the disk is full or cannot be written. Nothing of it is left.
    """
    aside = writing.aside_of(folder)
    with learner.ready_to_save() as canary, writing.or_nothing(folder, aside):
        aside.mkdir(parents=True)
        unwritten = learner.policy.save(aside)
        try:
            if not learner.policy.publishes_adapter:  # else it lies with the base
                tokenizer.save_pretrained(aside)
        except Exception as error:  # its library has no class for an error of the disk
            raise writing.unwritable(f"Checkpoint {folder}", error) from error
        if canary is not None:
            canary.save(aside)

    def write() -> str:
        digest = writing.finish(folder, aside, unwritten)
        if then is not None:
            then(digest)
        return digest

    return writing.Writing("publish", write)
