"""Checkpoints on disk: a Hugging Face model folder with the trainer's state.

A checkpoint appears whole or not at all: `write_folder` writes it into a temporary folder, flushes it, and
renames it. No checkpoint is overwritten: if a folder of that name exists, `write_folder` leaves it as it is
and raises an error. The trainer records the digest of the files with the policy version, so that damage is
noticed.
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

from trinity_db import durable
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.models.folder_digest import digest
from trinity_db.trainer.learner import value_head
from trinity_db.trainer.learner.learner import Learner

STATE_FILE = "trainer_state.pt"


def save(folder: Path, learner: Learner, tokenizer: Any) -> str:
    """Write a checkpoint by `write_folder`, and return its digest."""
    with learner.ready_to_save() as (state, canary):

        def write(aside: Path) -> None:
            learner.policy.save(aside)
            tokenizer.save_pretrained(aside)
            if canary is not None:
                canary.save(aside)
            # torch gets an open file. If torch opens it, a full disk is reported as "unexpected pos" only.
            with (aside / STATE_FILE).open("wb") as file:
                torch.save(state, file)

        return write_folder(folder, write)


def write_folder(folder: Path, write: Callable[[Path], None]) -> str:
    """Let `write` fill a temporary folder, then rename it to `folder`. Returns its digest.

    When this returns, the files survive a power cut.

    Raises:
        TrinityError: the disk is full or cannot be written, or `folder` exists. The temporary folder is gone.
    """
    # The random name keeps out a replaced trainer that still runs and writes the same version.
    aside = folder.with_name(f"{folder.name}.{uuid4().hex[:8]}.tmp")
    try:
        aside.mkdir(parents=True)
        write(aside)
        durable.flush_all(aside)
        written = digest(aside)
        aside.rename(folder)
        durable.flush(folder.parent)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise unwritable(f"Checkpoint {folder}", error) from error
    except TrinityError:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return written


def copy(found: Path, expected: str, folder: Path) -> None:
    """Copy a checkpoint by `write_folder`.

    Raises:
        TrinityError: the files do not have the expected digest. Probably their owner is deleting them.
    """

    def write(aside: Path) -> None:
        try:
            shutil.copytree(found, aside, dirs_exist_ok=True)
        except shutil.Error as error:
            raise TrinityError(f"{found} cannot be copied: {error.args[0][0][2]}; start again.") from error
        if digest(aside) != expected:
            raise TrinityError(f"{found} changed while it was copied; start again.")

    write_folder(folder, write)


def load_state(folder: Path, learner: Learner) -> None:
    """Load optimizer, random state and counters into a learner that was built from this folder's model.

    Raises:
        ConfigError: the folder is a model without the trainer's state, or lacks the value head that the
            learner trains.
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
    """The error that names the cause and a remedy."""
    cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    # Errors of safetensors have no error number, so the text is compared.
    is_full = any(os.strerror(number) in cause for number in (errno.ENOSPC, errno.EDQUOT))
    remedy = "Free space there, or name" if is_full else "Name"
    return TrinityError(
        f"{what} cannot be written: {cause}. "
        f"{remedy} another folder with trainer.checkpoints, and start again."
    )
