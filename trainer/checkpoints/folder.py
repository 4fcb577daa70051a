"""The run's own folder of checkpoints: the only place where the trainer renames or deletes files.

The file `run.json` in a folder names its owner: a store instance and a run. The trainer only reads a folder
that names another owner, or that holds versions or checkpoints and names no owner. The run then gets a folder
of its own beside it. Paths from the database are not trusted: `delete` and `set_aside` change a version's
folder or that of its checkpoint in this folder, and nothing else.
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

from trinity_db import durable
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.models.adapter_folder import BASE_FILE, Base
from trinity_db.models.folder_digest import verify, verify_checkpoint
from trinity_db.trainer.checkpoints import checkpoint, writing
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
    """A policy version that the store has recorded, as `published.json` remembers it."""

    version: int
    step: int
    hash: str
    resume_hash: str | None = None
    """Of its checkpoint; None before the store has recorded one."""


@dataclass(frozen=True)
class Folder:
    """A folder of checkpoints whose `run.json` names one run of one store instance as its owner."""

    path: Path
    owner: str

    def version_folder(self, version: int) -> Path:
        """The folder for a version's weights. If the usual name is taken, the name ends in -2, -3, ...

        A replaced trainer may have left a folder of that name, or may still be writing one.

        Raises:
            TrinityError: the folder names another owner now.
        """
        return self._free(f"version-{version:06d}")

    def checkpoint_folder(self, version: int) -> Path:
        """The folder for a version's checkpoint, chosen as `version_folder` does."""
        return self._free(f"checkpoint-{version:06d}")

    def _free(self, name: str) -> Path:
        self._check_owner()
        folder = self.path / name
        others = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
        paths = chain([folder], others)
        return next(path for path in paths if not path.is_dir() and not packed.place_of(path).is_dir())

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
        """The names of those paths that are folders of versions in this folder."""
        versions = [path for path in paths if _NAME.fullmatch(path.name)]
        own = os.path.realpath(self.path)
        parents = {parent for parent in {path.parent for path in versions} if os.path.realpath(parent) == own}
        return {path.name for path in versions if path.parent in parents}

    def delete(self, version: int, path: Path) -> None:
        """Delete a folder of a version or its checkpoint that is no longer needed, whole or a delta."""
        for place in (path, packed.place_of(path)):
            if self._may_change(version, place):
                shutil.rmtree(place, ignore_errors=True)

    def set_aside(self, version: int, path: Path) -> None:
        """Rename a folder of a damaged version or checkpoint to *.damaged, which nothing loads or deletes.

        Raises:
            TrinityError: the folder cannot be renamed.
        """
        if self._may_change(version, path):
            _rename(path, "damaged")

    def acknowledge(self, publication: Publication) -> None:
        """Note in `published.json` that the store has recorded a version.

        With this note a later trainer finds out if the server has lost the version.
        """
        files = {path.name.partition(".")[0] for path in self.path.glob("version-*")}
        numbers = {int(name[1]) for file in files if (name := _NAME.fullmatch(file))}
        kept = [
            known
            for known in self.publications()
            if known.version != publication.version and known.version in numbers
        ]
        self._note([*kept, publication])

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
        """Note in `base.json` where the model lies that the run's adapters are on.

        Explorers look there if it moved after an adapter was written.
        """
        self._check_owner()
        _write_whole(self.path / BASE_FILE, base.content)

    def publications(self) -> list[Publication]:
        """The noted versions: those that still have files here, and the newest one at the end."""
        try:
            found = json.loads((self.path / PUBLISHED_FILE).read_bytes())
            return [Publication(**known) for known in found]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError) as error:
            logger.warning("%s cannot be read: %s", self.path / PUBLISHED_FILE, error)
            return []

    def set_lost_aside(self, newest: int) -> list[int]:
        """Rename the folders of versions that the server has lost to *.later; return these versions' numbers.

        Args:
            newest: the highest version that the store knows, -1 before the first. A crash before the record
                leaves at most the folders of version newest + 1. They count as lost only if it was noted.
        """
        self._check_owner()
        paths = [(path, _KEPT.fullmatch(path.name)) for path in _version_paths(self.path)]
        numbers = {path: int(name[1]) for path, name in paths if name}
        aside = [int(later[1]) for path, _ in paths if (later := _LATER.fullmatch(path.name))]
        acknowledged = [known.version for known in self.publications()]
        # Of versions alone: other trainers name their checkpoints by the step, such as checkpoint-120000.
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
        """What was noted of a lost version, its *.later weights, and its *.later checkpoint.

        None if one of them is not there whole, or was never recorded.
        """
        known = next((one for one in self.publications() if one.version == version), None)
        if known is None:
            return None
        weights = next((path for path in self._later("version", version) if verify(path, known.hash)), None)
        if weights is None:
            return None
        if known.resume_hash is None:  # of before checkpoints had folders, or without one
            is_both = (weights / checkpoint.STATE_FILE).is_file()
            return (known, weights, weights) if is_both else None
        places = self._later("checkpoint", version)
        place = next((path for path in places if verify_checkpoint(path, known.resume_hash)), None)
        return None if place is None else (known, weights, place)

    def _later(self, kind: str, version: int) -> list[Path]:
        paths = sorted(self.path.glob(f"{kind}-{version:06d}*"))
        return [path for path in paths if _LATER.fullmatch(path.name)]

    def clear_leftovers(self, published: Container[str]) -> None:
        """Delete unfinished folders, whole ones that no version names, and deltas of versions that are whole.

        Crashes leave all of these.

        Call it after `set_lost_aside`, which saves the folders of lost versions.

        Args:
            published: the folder names of the recorded versions and their checkpoints, of this run and of
                others that start from one.
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
        """Whether the trainer may rename or delete a version's folder. Warns about one that it may not."""
        if self.holds(version, path) and is_owned_by(self.path, self.owner):
            return True
        if os.path.exists(path):  # Path.exists raises where the path may not be looked at
            logger.warning(
                "version %d: %s is no folder of version %d in %s, and is left as it is",
                *(version, path, version, self.path),
            )
        return False

    def _check_owner(self) -> None:
        if not is_owned_by(self.path, self.owner):
            raise TrinityError(
                f"{self.path} does not name this run in its {OWNER_FILE} any more: nothing is written there; "
                "start the trainer again."
            )


def claim(default: Path, identity: dict[str, Any]) -> Folder:
    """Return the run's own folder: the default one, or if that has another owner, the one beside it.

    Raises:
        ConfigError: both have other owners.
        TrinityError: the folder cannot be written.
    """
    owner = json.dumps(identity)
    default, own = places(default, identity)
    for path in (default, own):
        if _claim(path, owner):
            if path == own:
                logger.warning(
                    "%s has checkpoints of another store's run, or names no owner, and is left as it is: "
                    "checkpoints of this run go to %s",
                    *(default, own),
                )
            return Folder(path, owner)
    raise ConfigError(f"{default} and {own} have other owners; name another folder with trainer.checkpoints.")


def places(default: Path, identity: dict[str, Any]) -> tuple[Path, Path]:
    """The two places where a run's own folder may be: the default one, and the one beside it."""
    own = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:8]
    return default, default.with_name(f"{default.name}-{own}")


def clear(path: Path, identity: dict[str, Any]) -> bool:
    """Delete all checkpoints in a run's folder, and the folder too if it is empty then.

    Returns:
        whether the folder belongs to the run. A folder of another owner is left as it is.
    """
    if not path.is_absolute() or not is_owned_by(path, json.dumps(identity)) or path.is_symlink():
        return False
    for child in _version_paths(path):
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child, ignore_errors=True)
    # Else a later run of the same name would take these versions for its own.
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
    """The paths in a folder that this module names so, whole or not, without folders of runs so named.

    Other trainers' folders, such as checkpoint-500 and checkpoint-best, are not among them.
    """
    paths = (path for kind in ("version", "checkpoint") for path in sorted(folder.glob(f"{kind}-*")))
    forms = (_KEPT, _LATER, _ASIDE, _DAMAGED)
    return [
        path for path in paths if any(form.fullmatch(path.name) for form in forms) and not _has_owner(path)
    ]


def _has_owner(path: Path) -> bool:
    """Whether a folder is a run's folder of checkpoints, and not a version."""
    return (path / OWNER_FILE).exists()


def _claim(folder: Path, owner: str) -> bool:
    """Write `run.json` into a folder that has no owner. Return whether the folder names this owner."""
    file = folder / OWNER_FILE
    try:
        # Versions without an owner's file belong to a run whose file was lost. Its store may have a copy, and
        # both would claim them. Checkpoints alone are another trainer's, such as transformers'.
        kinds = ("version", "checkpoint")
        if not file.exists() and not any(path for kind in kinds for path in folder.glob(f"{kind}-*")):
            _write_once(file, owner)
        is_owners = file.is_file() and file.read_bytes() == owner.encode()
        if is_owners:
            durable.flush(folder)  # each time: the trainer that wrote the file may have crashed before it
        return is_owners
    except OSError as error:
        raise writing.unwritable(str(folder), error) from error


def _write_whole(file: Path, content: str) -> None:
    """Replace a file in one step, and flush it.

    Raises:
        TrinityError: the file cannot be written.
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
    """Create a file in one step. If it exists by then, leave it as it is. The caller flushes the folder."""
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
    """Give a file its name. Unlike a rename, this fails if the name is taken."""
    try:
        os.link(aside, file)
    except FileExistsError:
        raise
    except OSError:  # the file system has no hard links
        with file.open("xb") as output:
            output.write(aside.read_bytes())
        durable.flush(file)


def _rename(path: Path, word: str) -> None:
    """Add a word to a folder's name, and a number if that name is taken."""
    names = chain([f"{path.name}.{word}"], (f"{path.name}.{word}-{number}" for number in count(2)))
    target = next(path.with_name(name) for name in names if not path.with_name(name).exists())
    try:
        path.rename(target)
    except OSError as error:
        raise TrinityError(f"{path} cannot be set aside as {word}: {error.strerror}.") from error
