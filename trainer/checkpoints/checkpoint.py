"""Checkpoints on disk: a Hugging Face model folder plus the trainer's own state.

A checkpoint appears whole or not at all: it is written aside, flushed, and renamed into place.
Nothing is ever written over: a folder of that name is left as it is, and the new one refused.
Its digest goes into the database with the policy version, so that a damaged one is noticed.
"""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from safetensors import SafetensorError

from trinity_db.errors import ConfigError, TrinityError
from trinity_db.models.folder_digest import digest
from trinity_db.trainer.learner import value_head
from trinity_db.trainer.learner.learner import Learner

STATE_FILE = "trainer_state.pt"


def save(folder: Path, learner: Learner, tokenizer: Any) -> str:
    """Write a checkpoint and return its digest; as `place` does it."""
    with learner.whole() as state:

        def write(aside: Path) -> None:
            learner.policy.save(aside)
            tokenizer.save_pretrained(aside)
            # Through a file of ours: torch's own says nothing about a full disk but "unexpected pos".
            with (aside / STATE_FILE).open("wb") as file:
                torch.save(state, file)

        return place(folder, write)


def place(folder: Path, write: Callable[[Path], None]) -> str:
    """Make a folder of what `write` writes into it; returns its digest.

    When this returns, the files survive a power cut.

    Raises:
        TrinityError: the disk is full, cannot be written, or something is in the way. Nothing is left.
    """
    # A name of its own: a trainer that was replaced, and does not know, must not write into ours.
    aside = folder.with_name(f"{folder.name}.{uuid4().hex[:8]}.tmp")
    try:
        aside.mkdir(parents=True)
        write(aside)
        for path in [*aside.rglob("*"), aside]:  # folders too, for the names in them
            flush(path)
        written = digest(aside)
        aside.rename(folder)
        flush(folder.parent)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise unwritable(f"Checkpoint {folder}", error) from error
    except TrinityError:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return written


def copy(found: Path, expected: str, folder: Path) -> None:
    """Copy a checkpoint; as `place` does it.

    Raises:
        TrinityError: the copy is not what the digest was made of: its owner deletes it right now.
    """

    def write(aside: Path) -> None:
        try:
            shutil.copytree(found, aside, dirs_exist_ok=True)
        except shutil.Error as error:
            raise TrinityError(f"{found} cannot be copied: {error.args[0][0][2]}; start again.") from error
        if digest(aside) != expected:
            raise TrinityError(f"{found} changed while it was copied; start again.")

    place(folder, write)


def load_state(folder: Path, learner: Learner) -> None:
    """Restore optimizer, random numbers and step counter of a learner built on this folder's model.

    Raises:
        ConfigError: the folder is a model and no checkpoint, or one without the values that are learned.
    """
    path = folder / STATE_FILE
    if not path.is_file():
        raise ConfigError(f"{folder}: is no checkpoint to go on from, it has no {STATE_FILE}.")
    if learner.policy.value_head and not (folder / value_head.FILE).is_file():
        raise ConfigError(
            f"{folder}: was trained without values, it has no {value_head.FILE}; "
            "start a run of its own from it, as model: {run: NAME} does."
        )
    learner.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))


def unwritable(what: str, error: OSError | SafetensorError) -> TrinityError:
    """The error that says so, with what to do."""
    cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    # By their words: safetensors has no error numbers.
    is_full = any(os.strerror(number) in cause for number in (errno.ENOSPC, errno.EDQUOT))
    remedy = "Free space there, or name" if is_full else "Name"
    return TrinityError(
        f"{what} cannot be written: {cause}. "
        f"{remedy} another folder with trainer.checkpoints, and start again."
    )


def flush(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
