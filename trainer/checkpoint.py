"""Checkpoints on disk: a Hugging Face model folder plus the trainer's own state.

A checkpoint appears whole or not at all: it is written aside, flushed, and renamed into place.
Nothing is ever written over: a folder of that name is left as it is, and the new one refused.
Its digest goes into the database with the policy version, so that a damaged one is noticed.
A folder of checkpoints has one owner, which a file in it names.
"""

import errno
import os
import re
import shutil
from collections.abc import Callable, Container
from itertools import chain, count
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from safetensors import SafetensorError

from trinity_db.errors import ConfigError, TrinityError
from trinity_db.models.folder_digest import digest
from trinity_db.trainer import value_head
from trinity_db.trainer.step import Learner

STATE_FILE = "trainer_state.pt"
OWNER_FILE = "run.json"
_NAME = re.compile(r"version-(\d{6,})(-\d+)?")
_ASIDE = re.compile(_NAME.pattern + r"\.\w+\.tmp")


def own(checkpoints: Path, owner: str, published: Container[Path]) -> None:
    """Make the folder this owner's, unless it is already.

    Args:
        owner: what the file in it shall say.
        published: folders of the owner's versions; one of them in it is proof where the file is missing.

    Raises:
        ConfigError: it is another's. Nothing is changed then.
        TrinityError: it cannot be written.
    """
    file = checkpoints / OWNER_FILE
    try:
        if file.exists():
            is_ours = file.read_bytes() == owner.encode()
        else:
            versions = list(checkpoints.glob("version-*"))
            is_ours = not versions or any(folder in published for folder in versions)
            if is_ours:
                _write_whole(file, owner)
    except OSError as error:
        raise _unwritable(str(checkpoints), error) from error
    if not is_ours:
        raise ConfigError(
            f"{checkpoints} has checkpoints of another store's run; "
            "move the folder away, or name another one with trainer.checkpoints."
        )


def version_folder(checkpoints: Path, version: int) -> Path:
    """Where the checkpoint of a version shall lie; another name when there is a folder of that name.

    A trainer that was replaced may have left it, or may not know yet and still put it there.
    """
    folder = checkpoints / f"version-{version:06d}"
    others = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return next(path for path in chain([folder], others) if not path.is_dir())


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
            _flush(path)
        written = digest(aside)
        aside.rename(folder)
        _flush(folder.parent)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise _unwritable(f"Checkpoint {folder}", error) from error
    return written


def verify(folder: Path, expected: str) -> bool:
    """Whether the folder is there and its files are exactly those that `save` wrote."""
    try:
        return folder.is_dir() and digest(folder) == expected
    except OSError:  # a disk that cannot be read any more
        return False


def set_aside(folder: Path) -> None:
    """Keep a damaged checkpoint, for whoever wants to look at it, where nothing loads or removes it.

    Raises:
        TrinityError: the disk cannot be written.
    """
    try:
        if folder.is_dir():
            folder.rename(folder.with_name(folder.name + ".damaged"))
    except OSError as error:
        raise TrinityError(f"{folder} is damaged, and cannot be renamed: {error.strerror}.") from error


def clear_leftovers(checkpoints: Path, published: Container[str], newest: int) -> None:
    """Remove what crashes left: unfinished checkpoints, and whole ones that no version names.

    Args:
        published: the names of the folders of versions.
        newest: the highest version that there ever was, -1 before the first. A crash leaves at most the next.

    Raises:
        ConfigError: there are later checkpoints: the database is an older copy. Nothing is removed then.
    """
    leftovers = []
    for path in sorted(checkpoints.glob("version-*")):
        name = _NAME.fullmatch(path.name)
        if name and int(name[1]) > newest + 1:
            raise ConfigError(
                f"{path} is later than all that the store knows of: it was set back; "
                "move the folder away, or name another one with trainer.checkpoints."
            )
        if (name and path.name not in published) or _ASIDE.fullmatch(path.name):
            leftovers.append(path)
    for path in leftovers:
        shutil.rmtree(path, ignore_errors=True)


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


def _write_whole(file: Path, content: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f"{file.name}.tmp")
    aside.write_text(content)
    _flush(aside)
    aside.replace(file)
    _flush(file.parent)


def _unwritable(what: str, error: OSError | SafetensorError) -> TrinityError:
    cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    # By their words: safetensors has no error numbers.
    is_full = any(os.strerror(number) in cause for number in (errno.ENOSPC, errno.EDQUOT))
    remedy = "Free space there, or name" if is_full else "Name"
    return TrinityError(
        f"{what} cannot be written: {cause}. "
        f"{remedy} another folder with trainer.checkpoints, and start again."
    )


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
