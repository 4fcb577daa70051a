"""Checkpoints on disk: a Hugging Face model folder plus the trainer's own state.

A checkpoint appears whole or not at all: it is written aside, flushed, and renamed into place.
Its digest goes into the database with the policy version, so that a damaged one is noticed.
"""

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from trinity_db.errors import ConfigError
from trinity_db.trainer.step import Learner

STATE_FILE = "trainer_state.pt"


def save(folder: Path, learner: Learner, tokenizer: Any) -> str:
    """Write a checkpoint and return its digest. When this returns, the files survive a power cut.

    A folder of that name, left over by a crash before its version was published, is replaced.
    """
    aside = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    learner.model.save_pretrained(aside)
    tokenizer.save_pretrained(aside)
    torch.save(learner.state_dict(), aside / STATE_FILE)
    for path in [*_files(aside), aside]:
        _flush(path)
    shutil.rmtree(folder, ignore_errors=True)
    aside.rename(folder)
    _flush(folder.parent)
    return digest(folder)


def digest(folder: Path) -> str:
    """SHA-256 over the names, sizes and contents of the folder's files."""
    sha = hashlib.sha256()
    for path in _files(folder):
        content = path.read_bytes()
        sha.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode())
        sha.update(content)
    return sha.hexdigest()


def verify(folder: Path, expected: str) -> bool:
    """Whether the folder is there and its files are exactly those that `save` wrote."""
    return folder.is_dir() and digest(folder) == expected


def load_state(folder: Path, learner: Learner) -> None:
    """Restore optimizer, random numbers and step counter of a learner built on this folder's model.

    Raises:
        ConfigError: the folder is a model, not a checkpoint of a trainer.
    """
    path = folder / STATE_FILE
    if not path.is_file():
        raise ConfigError(f"{folder}: is no checkpoint to go on from, it has no {STATE_FILE}.")
    learner.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
