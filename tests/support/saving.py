"""A learner's version and its checkpoint, written at once, and gone on from."""

from pathlib import Path
from typing import Any, NamedTuple

from trinity_db.trainer.checkpoints import checkpoint, version, writing
from trinity_db.trainer.learner.learner import Learner


class Saved(NamedTuple):
    """The digests of both."""

    version: str
    checkpoint: str


def save(folder: Path, learner: Learner, tokenizer: Any) -> Saved:
    """Write both and wait for them."""
    digest = version.begin(folder, learner, tokenizer).digest()
    return Saved(digest, save_checkpoint(checkpoint_of(folder), learner))


def save_together(folder: Path, learner: Learner, tokenizer: Any) -> None:
    """Write both, and wait for them on all ranks."""
    if learner.ranks.rank == 0:
        version.begin(folder, learner, tokenizer).digest()
    else:
        with learner.ready_to_save():
            pass
    save_checkpoint(checkpoint_of(folder), learner)


def save_checkpoint(folder: Path, learner: Learner) -> str:
    """Write a checkpoint of all ranks. Returns its hash on the first one."""
    aside = learner.ranks.broadcast(writing.aside_of(folder))
    part = checkpoint.begin_part(folder, aside, learner)
    outcomes = learner.ranks.gather(checkpoint.outcome(part))
    saved = checkpoint.finish(folder, aside, outcomes) if learner.ranks.rank == 0 else ""
    learner.ranks.gather(saved)  # so that all find it
    return saved


def resume(folder: Path, learner: Learner) -> None:
    """Go on from what was saved with this version."""
    checkpoint.load_state(checkpoint_of(folder), learner)


def checkpoint_of(folder: Path) -> Path:
    """The folder of the checkpoint that was saved with a version."""
    return folder.with_name(f"checkpoint-of-{folder.name}")
