"""Checks the files of a copy's versions, and copies them to the store's home."""

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from trinity_db.config import base
from trinity_db.data.copies import folder as folders
from trinity_db.data.copies.folder import Manifest
from trinity_db.errors import DatabaseUnavailable, ImportFileError, TrinityError
from trinity_db.io import durable
from trinity_db.models import folder_digest
from trinity_db.store import policies

logger = logging.getLogger(__name__)

Progress = Callable[[str, int], None]
"""Called with the table, or the version whose files are copied, and the number of rows written so far."""


def check(folder: Path, manifest: Manifest) -> None:
    """Check the files of all versions before anything is written.

    Raises:
        ImportFileError: if some are missing, or differ from the exported ones.
    """
    for entry in manifest.checkpoints:
        weights, checkpoint = (
            folders.checkpoint_path(folder, entry.version),
            folders.resume_path(folder, entry),
        )
        _check_files(weights, folder_digest.verify, entry.sha256)
        if checkpoint is not None and entry.resume_sha256 is not None:
            _check_files(checkpoint, folder_digest.verify_checkpoint, entry.resume_sha256)


def _check_files(path: Path, verify: Callable[[Path, str], bool], expected: str) -> None:
    if path.is_symlink() or not path.is_dir():
        raise ImportFileError(f"{path}: is missing, or is not a folder.")
    for file in path.rglob("*"):
        if file.is_symlink() or not (file.is_file() or file.is_dir()):
            raise ImportFileError(f"{file}: is not a regular file.")
    if not verify(path, expected):
        raise ImportFileError(f"{path}: its files were modified after the export: their digest differs.")


@contextmanager
def placed(
    folder: Path, manifest: Manifest, name: str, progress: Progress
) -> Iterator[list[policies.PolicyVersion]]:
    """Copy the checkpoints' files to a new folder in the store's home, removed if the import fails."""
    if not manifest.checkpoints:
        yield []
        return
    target = base.home() / "copies" / f"{name}-{uuid4().hex[:8]}"
    places = []
    try:
        with folders.writable(target):
            for entry in manifest.checkpoints:
                progress(f"checkpoint {entry.version}", 0)
                places.append(_copy_version(folder, target, entry))
            durable.flush_all(target)
        yield places
    except DatabaseUnavailable:
        logger.warning(
            "the server went away: if the run was imported, its checkpoints are in %s; otherwise remove "
            "that folder",
            target,
        )
        raise
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _copy_version(folder: Path, target: Path, entry: folders.CheckpointEntry) -> policies.PolicyVersion:
    """Copy the weights of a version, and its checkpoint."""
    weights, source = folders.checkpoint_path(folder, entry.version), folders.resume_path(folder, entry)
    copied_weights = target / weights.name
    _copy_folder(weights, copied_weights, folder_digest.verify, entry.sha256)
    resumed = None
    if source is not None and entry.resume_sha256 is not None:
        resumed = policies.Checkpoint(target / source.name, entry.resume_sha256)
        if source != weights:
            _copy_folder(source, resumed.folder, folder_digest.verify_checkpoint, resumed.hash)
    return policies.PolicyVersion(entry.version, 0, copied_weights, entry.sha256, resumed)


def _copy_folder(source: Path, copy: Path, verify: Callable[[Path, str], bool], expected: str) -> None:
    shutil.copytree(source, copy)
    durable.flush_all(copy)
    if not verify(copy, expected):
        raise TrinityError(f"{copy}: the written files differ from their source.")
