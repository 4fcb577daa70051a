"""The run's own folder of checkpoints, the only place where the trainer renames or deletes files.

The file `run.json` in a folder names its owner: a store instance and a run. A folder with another owner, or
with versions or checkpoints and no owner, is read-only for the trainer; the run then gets its own folder next
to it. Paths from the database are not trusted: `delete` and `set_aside` only change folders of a version or
its checkpoint within this folder.
"""

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Container, Iterable
from dataclasses import asdict, dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import Any
from uuid import uuid4

from trinity_db.errors import ConfigError, TrinityError
from trinity_db.io import durable
from trinity_db.models.adapter_folder import BASE_FILE, Base
from trinity_db.models.folder_digest import verify, verify_checkpoint
from trinity_db.trainer.checkpoints import writing
from trinity_db.weights import packed

logger = logging.getLogger(__name__)

OWNER_FILE = "run.json"
PUBLISHED_FILE = "published.json"
_NAME = re.compile(r"(?:version|checkpoint)-(\d{6,})(-\d+)?")
_KEPT = re.compile(_NAME.pattern + r"(\.delta)?")
_LATER = re.compile(_KEPT.pattern + r"\.later(-\d+)?")
_ASIDE = re.compile(_NAME.pattern + r"\.\w+\.tmp")
_DAMAGED = re.compile(_NAME.pattern + r"\.damaged(-\d+)?")


@dataclass(frozen=True)
class Publication:
    """A policy version recorded by the store, according to `published.json`."""

    version: int
    step: int
    hash: str
    resume_hash: str | None = None
    """Hash of its checkpoint; None until the store has recorded one."""


@dataclass(frozen=True)
class Folder:
    """A folder of checkpoints whose `run.json` names one run of one store instance as its owner."""

    path: Path
    owner: str

    def version_folder(self, version: int) -> Path:
        """Return the folder for a version's weights. If the usual name is taken, the name ends in -2, -3, ...

        A replaced trainer may have left a folder of that name, or may still be writing one.

        Raises:
            TrinityError: if the folder has another owner now.
        """
        return self._free(f"version-{version:06d}")

    def checkpoint_folder(self, version: int) -> Path:
        """Return the folder for a version's checkpoint, chosen like `version_folder`."""
        return self._free(f"checkpoint-{version:06d}")

    def _free(self, name: str) -> Path:
        self._check_owner()
        folder = self.path / name
        others = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
        paths = chain([folder], others)
        return next(path for path in paths if not path.is_dir() and not packed.delta_folder(path).is_dir())

    def holds(self, version: int, path: Path) -> bool:
        """Whether a path is a folder of this version or its checkpoint in this folder, and not a link."""
        name = _KEPT.fullmatch(path.name)
        if name is None or f"{version:06d}" != name[1]:
            return False
        try:
            is_child = path.is_absolute() and path.parent.resolve() == self.path.resolve()
            return is_child and path.is_dir() and not path.is_symlink() and not _has_owner(path)
        except OSError:
            return False

    def names_among(self, paths: Iterable[Path]) -> set[str]:
        """Return the names of those paths that are folders of versions in this folder."""
        versions = [path for path in paths if _NAME.fullmatch(path.name)]
        own = os.path.realpath(self.path)
        parents = {parent for parent in {path.parent for path in versions} if os.path.realpath(parent) == own}
        return {path.name for path in versions if path.parent in parents}

    def delete(self, version: int, path: Path) -> None:
        """Delete a folder of a version or its checkpoint, full or a delta."""
        for folder in (path, packed.delta_folder(path)):
            if self._may_change(version, folder):
                shutil.rmtree(folder, ignore_errors=True)

    def set_aside(self, version: int, path: Path) -> None:
        """Rename a folder of a damaged version or checkpoint to *.damaged, which is neither loaded nor
        deleted.

        Raises:
            TrinityError: if renaming fails.
        """
        if self._may_change(version, path):
            _rename(path, "damaged")

    def acknowledge(self, publication: Publication) -> None:
        """Note in `published.json` that the store has recorded a version.

        With this note a later trainer detects that the server has lost the version.
        """
        files = {path.name.partition(".")[0] for path in self.path.glob("version-*")}
        numbers = {int(name[1]) for file in files if (name := _NAME.fullmatch(file))}
        others = [
            known
            for known in self.publications()
            if known.version != publication.version and known.version in numbers
        ]
        self._note([*others, publication])

    def acknowledge_checkpoint(self, version: int, resume_hash: str) -> None:
        """Note in `published.json` that the store has recorded a version's checkpoint."""
        self._note(
            [
                replace(known, resume_hash=resume_hash) if known.version == version else known
                for known in self.publications()
            ]
        )

    def _note(self, publications: list[Publication]) -> None:
        self._check_owner()
        content = json.dumps([asdict(known) for known in publications])
        _write_whole(self.path / PUBLISHED_FILE, content)

    def note_base(self, base: Base) -> None:
        """Note in `base.json` the location of the base model of the run's adapters.

        Explorers use it if the model moved after an adapter was written.
        """
        self._check_owner()
        _write_whole(self.path / BASE_FILE, base.content)

    def publications(self) -> list[Publication]:
        """Return the noted versions that still have files here, and the newest one, last."""
        try:
            notes = json.loads((self.path / PUBLISHED_FILE).read_bytes())
            return [Publication(**known) for known in notes]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError) as error:
            logger.warning("%s cannot be read: %s", self.path / PUBLISHED_FILE, error)
            return []

    def set_lost_aside(self, newest: int) -> list[int]:
        """Rename the folders of versions that the server has lost to *.later; return these versions' numbers.

        Args:
            newest: The highest version in the store, -1 before the first. A crash before recording leaves at
                most the folders of version newest + 1, which count as lost only if the version was noted.
        """
        self._check_owner()
        paths = [(path, _KEPT.fullmatch(path.name)) for path in _version_paths(self.path)]
        numbers = {path: int(name[1]) for path, name in paths if name}
        aside = [int(later[1]) for path, _ in paths if (later := _LATER.fullmatch(path.name))]
        acknowledged = [known.version for known in self.publications()]
        # Only of versions: other trainers name their checkpoints by the step, such as checkpoint-120000.
        beyond = [
            number
            for path, number in numbers.items()
            if path.name.startswith("version-") and number > newest + 1
        ]
        last = max([newest, *acknowledged, *beyond, *aside])
        for path, number in numbers.items():
            if newest < number <= last:
                _rename(path, "later")
        return list(range(newest + 1, last + 1))

    def lost_checkpoint(self, version: int) -> tuple[Publication, Path, Path] | None:
        """Return the note of a lost version, its *.later weights, and its *.later checkpoint.

        None if one of them is incomplete or was never recorded.
        """
        known = next((note for note in self.publications() if note.version == version), None)
        if known is None or known.resume_hash is None:
            return None
        weights = next((path for path in self._later("version", version) if verify(path, known.hash)), None)
        if weights is None:
            return None
        places = self._later("checkpoint", version)
        resumed = next((path for path in places if verify_checkpoint(path, known.resume_hash)), None)
        return None if resumed is None else (known, weights, resumed)

    def _later(self, kind: str, version: int) -> list[Path]:
        paths = sorted(self.path.glob(f"{kind}-{version:06d}*"))
        return [path for path in paths if _LATER.fullmatch(path.name)]

    def clear_leftovers(self, published: Container[str]) -> None:
        """Delete unfinished folders, full folders without a version, and deltas of versions that are full.

        Crashes leave all of these. Call it after `set_lost_aside`, which saves the folders of lost versions.

        Args:
            published: Folder names of the recorded versions and their checkpoints, of this run and of runs
                started from it.
        """
        self._check_owner()
        for path in _version_paths(self.path):
            name = _KEPT.fullmatch(path.name)
            whole = path.with_name(path.name.removesuffix(packed.SUFFIX))
            is_left = name is not None and (whole.name not in published or (whole != path and whole.is_dir()))
            if is_left or _ASIDE.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)
        for file in (PUBLISHED_FILE, BASE_FILE):
            for path in self.path.glob(f"{file}.*.tmp"):
                path.unlink(missing_ok=True)

    def _may_change(self, version: int, path: Path) -> bool:
        """Whether the trainer may rename or delete a version's folder. Warns if it may not."""
        if self.holds(version, path) and is_owned_by(self.path, self.owner):
            return True
        if os.path.exists(path):  # Path.exists raises without permission to read the path
            logger.warning(
                "version %d: %s is not a folder of version %d in %s, and is left unchanged",
                *(version, path, version, self.path),
            )
        return False

    def _check_owner(self) -> None:
        if not is_owned_by(self.path, self.owner):
            raise TrinityError(
                f"{self.path} no longer names this run in its {OWNER_FILE}: nothing is written there; "
                "start the trainer again."
            )


def claim(default: Path, identity: dict[str, Any]) -> Folder:
    """Return the run's own folder: the default one, or, if that has another owner, the one next to it.

    Raises:
        ConfigError: if both have other owners.
        TrinityError: if the folder is not writable.
    """
    owner = json.dumps(identity)
    default, own = places(default, identity)
    for path in (default, own):
        if _claim(path, owner):
            if path == own:
                logger.warning(
                    "%s has checkpoints of another store's run, or names no owner, and is left unchanged: "
                    "checkpoints of this run go to %s",
                    *(default, own),
                )
            return Folder(path, owner)
    raise ConfigError(f"{default} and {own} have other owners; name another folder with trainer.checkpoints.")


def places(default: Path, identity: dict[str, Any]) -> tuple[Path, Path]:
    """Return the two possible locations of a run's own folder: the default one, and the one next to it."""
    own = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:8]
    return default, default.with_name(f"{default.name}-{own}")


def clear(path: Path, identity: dict[str, Any]) -> bool:
    """Delete all checkpoints in a run's folder, and the folder too if it is then empty.

    Returns:
        Whether the folder belongs to the run. A folder with another owner is left unchanged.
    """
    if not path.is_absolute() or not is_owned_by(path, json.dumps(identity)) or path.is_symlink():
        return False
    for child in _version_paths(path):
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child, ignore_errors=True)
    # Otherwise a later run of the same name would take these versions for its own.
    for file in [*path.glob(f"{PUBLISHED_FILE}*"), *path.glob(f"{BASE_FILE}*")]:
        file.unlink()
    (path / OWNER_FILE).unlink()
    if not any(path.iterdir()):
        path.rmdir()
    return True


def is_owned_by(folder: Path, owner: str) -> bool:
    """Whether the folder's `run.json` names this owner."""
    file = folder / OWNER_FILE
    try:
        return file.is_file() and file.read_bytes() == owner.encode()
    except OSError:
        return False


def _version_paths(folder: Path) -> list[Path]:
    """Return the paths in a folder with names from this module, complete or not, except folders of runs.

    Other trainers' folders, such as checkpoint-500 and checkpoint-best, are not included.
    """
    paths = (path for kind in ("version", "checkpoint") for path in sorted(folder.glob(f"{kind}-*")))
    forms = (_KEPT, _LATER, _ASIDE, _DAMAGED)
    return [
        path for path in paths if any(form.fullmatch(path.name) for form in forms) and not _has_owner(path)
    ]


def _has_owner(path: Path) -> bool:
    """Whether a folder is a run's folder of checkpoints instead of a version."""
    return (path / OWNER_FILE).exists()


def _claim(folder: Path, owner: str) -> bool:
    """Write `run.json` into a folder without an owner. Return whether the folder names this owner."""
    file = folder / OWNER_FILE
    try:
        # Versions without an owner's file belong to a run whose file was lost. Its store may have a copy, and
        # both would claim them. Checkpoints alone belong to another trainer, such as transformers.
        kinds = ("version", "checkpoint")
        if not file.exists() and not any(path for kind in kinds for path in folder.glob(f"{kind}-*")):
            _write_once(file, owner)
        is_owners = file.is_file() and file.read_bytes() == owner.encode()
        if is_owners:
            durable.flush(folder)  # each time: the writer of the file may have crashed before its flush
        return is_owners
    except OSError as error:
        raise writing.unwritable(str(folder), error) from error


def _write_whole(file: Path, content: str) -> None:
    """Replace a file atomically, and flush it.

    Raises:
        TrinityError: if the file is not writable.
    """
    aside = file.with_name(f"{file.name}.{uuid4().hex[:8]}.tmp")
    try:
        aside.write_text(content)
        durable.flush(aside)
        aside.replace(file)
        durable.flush(file.parent)
    except OSError as error:
        raise writing.unwritable(str(file), error) from error
    finally:
        aside.unlink(missing_ok=True)


def _write_once(file: Path, content: str) -> None:
    """Create a file atomically. An existing file is left unchanged. The caller flushes the folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f"{file.name}.{uuid4().hex[:8]}.tmp")
    try:
        aside.write_text(content)
        durable.flush(aside)
        _link(aside, file)
    except FileExistsError:  # another trainer was faster
        pass
    finally:
        aside.unlink(missing_ok=True)


def _link(aside: Path, file: Path) -> None:
    """Move a file to its name. Unlike a rename, this fails if the name is taken."""
    try:
        os.link(aside, file)
    except FileExistsError:
        raise
    except OSError:  # the file system has no hard links
        with file.open("xb") as output:
            output.write(aside.read_bytes())
        durable.flush(file)


def _rename(path: Path, word: str) -> None:
    """Append a word to a folder's name, and a number if that name is taken."""
    names = chain([f"{path.name}.{word}"], (f"{path.name}.{word}-{number}" for number in count(2)))
    target = next(path.with_name(name) for name in names if not path.with_name(name).exists())
    try:
        path.rename(target)
    except OSError as error:
        raise TrinityError(f"{path} cannot be set aside as {word}: {error.strerror}.") from error
