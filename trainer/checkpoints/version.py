"""Versions on disk: folders with weights that explorers load.

The trainer records the digest of the files with the policy version, so that damage is detected.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from trinity_db.trainer.checkpoints import writing
from trinity_db.trainer.learner.learner import Learner


def begin(
    folder: Path, learner: Learner, tokenizer: Any, then: Callable[[str], None] | None = None
) -> writing.Writing:
    """Copy the weights, and start a thread that writes them as a version. The learner may continue.

    Args:
        then: Called by the thread when the files are durable, with their digest.

    Raises:
        TrinityError: if the disk is full or not writable. Then no files are left.
    """
    aside = writing.aside_of(folder)
    with learner.ready_to_save() as canary, writing.or_nothing(folder, aside):
        aside.mkdir(parents=True)
        unwritten = learner.policy.save(aside)
        try:
            if not learner.policy.publishes_adapter:  # an adapter's tokenizer is with its base
                tokenizer.save_pretrained(aside)
        except Exception as error:  # the library has no exception class for disk errors
            raise writing.unwritable(f"Checkpoint {folder}", error) from error
        if canary is not None:
            canary.save(aside)

    def write() -> str:
        digest = writing.finish(folder, aside, unwritten)
        if then is not None:
            then(digest)
        return digest

    return writing.Writing("publish", write)
