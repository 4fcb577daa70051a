"""The run's own folder of checkpoints: the only place where the trainer renames or deletes anything.

A file in the folder names its owner: the store instance and the run. A folder that names another owner, or
holds versions and names none, is read and never changed; the run gets a folder of its own beside it.
Every path that comes from the database is input: `delete` and `set_aside` touch a version's own folder
here, and leave anything else alone.
"""

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Container
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any
from uuid import uuid4

from trinity_db.errors import ConfigError, TrinityError
from trinity_db.trainer import checkpoint

logger = logging.getLogger(__name__)

OWNER_FILE = "run.json"
_NAME = re.compile(r"version-(\d{6,})(-\d+)?")
_ASIDE = re.compile(_NAME.pattern + r"\.\w+\.tmp")


@dataclass(frozen=True)
class Folder:
    """A folder that its owner's file gives to one run of one store instance."""

    path: Path
    owner: str

    def version_folder(self, version: int) -> Path:
        """Where the checkpoint of a version shall lie; another name when there is a folder of that name.

        A trainer that was replaced may have left it, or may not know yet and still put it there.

        Raises:
            TrinityError: the folder names another owner by now.
        """
        self._check_owner()
        folder = self.path / f"version-{version:06d}"
        others = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
        return next(path for path in chain([folder], others) if not path.is_dir())

    def holds(self, version: int, path: Path) -> bool:
        """Whether a path is the version's own folder in this one, and no link to anywhere else."""
        name = _NAME.fullmatch(path.name)
        if name is None or f"version-{version:06d}" != f"version-{name[1]}":
            return False
        try:
            is_child = path.is_absolute() and path.parent.resolve() == self.path.resolve()
            return is_child and path.is_dir() and not path.is_symlink()
        except OSError:
            return False

    def delete(self, version: int, path: Path) -> None:
        """Delete the checkpoint of a version that is not needed any more."""
        if self._may_change(version, path):
            shutil.rmtree(path, ignore_errors=True)

    def set_aside(self, version: int, path: Path) -> None:
        """Keep the damaged checkpoint of a version where nothing loads or deletes it.

        Raises:
            TrinityError: the disk cannot be written.
        """
        if self._may_change(version, path):
            _rename(path, "damaged")

    def clear_leftovers(self, published: Container[str], newest: int) -> None:
        """Delete what crashes left: unfinished checkpoints, and whole ones that no version names.

        Args:
            published: the names of the folders of versions.
            newest: the highest version that there ever was, -1 before the first. A crash leaves at most the
                next.

        Raises:
            ConfigError: there are later checkpoints: the database is an older copy. Nothing is deleted then.
        """
        self._check_owner()
        leftovers = []
        for path in sorted(self.path.glob("version-*")):
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

    def _may_change(self, version: int, path: Path) -> bool:
        """Whether a version's folder may be renamed or deleted; says so where one that is there may not."""
        if self.holds(version, path) and names(self.path, self.owner):
            return True
        if path.exists():
            logger.warning(
                "version %d: %s is no folder of version %d in %s, and is left as it is",
                *(version, path, version, self.path),
            )
        return False

    def _check_owner(self) -> None:
        if not names(self.path, self.owner):
            raise TrinityError(
                f"{self.path} does not name this run in its {OWNER_FILE} any more: nothing is written there; "
                "start the trainer again."
            )


def claim(default: Path, identity: dict[str, Any]) -> Folder:
    """The run's own folder: the default one, or where that has another owner, one beside it.

    Raises:
        ConfigError: both have another owner.
        TrinityError: the folder cannot be written.
    """
    owner = json.dumps(identity)
    own = default.with_name(f"{default.name}-{hashlib.sha256(owner.encode()).hexdigest()[:8]}")
    for path in (default, own):
        if _take(path, owner):
            if path == own:
                logger.warning(
                    "%s has checkpoints of another store's run, or names no owner, and is left as it is: "
                    "checkpoints of this run go to %s",
                    *(default, own),
                )
            return Folder(path, owner)
    raise ConfigError(f"{default} and {own} have other owners; name another folder with trainer.checkpoints.")


def names(folder: Path, owner: str) -> bool:
    """Whether the file in a folder names this owner."""
    try:
        return (folder / OWNER_FILE).read_bytes() == owner.encode()
    except OSError:
        return False


def _take(folder: Path, owner: str) -> bool:
    """Make a folder the owner's where it is nobody's; whether it is the owner's."""
    file = folder / OWNER_FILE
    try:
        # Versions that nobody owns are of a run whose file was lost: a copy of its store knows them too.
        if not file.exists() and not any(folder.glob("version-*")):
            _write_once(file, owner)
        return file.is_file() and file.read_bytes() == owner.encode()
    except OSError as error:
        raise checkpoint.unwritable(str(folder), error) from error


def _write_once(file: Path, content: str) -> None:
    """Write a file whole and on disk; one that is there by now stays as it is."""
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f"{file.name}.{uuid4().hex[:8]}.tmp")
    try:
        aside.write_text(content)
        checkpoint.flush(aside)
        _link(aside, file)
    except FileExistsError:  # another store was faster
        pass
    finally:
        aside.unlink(missing_ok=True)
    checkpoint.flush(file.parent)


def _link(aside: Path, file: Path) -> None:
    """Give a file its name, which unlike a rename fails where the name is taken."""
    try:
        os.link(aside, file)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        with file.open("xb") as output:
            output.write(aside.read_bytes())
        checkpoint.flush(file)


def _rename(path: Path, word: str) -> None:
    """Give a folder a name that says what became of it, and that is free."""
    names = chain([f"{path.name}.{word}"], (f"{path.name}.{word}-{number}" for number in count(2)))
    target = next(path.with_name(name) for name in names if not path.with_name(name).exists())
    try:
        path.rename(target)
    except OSError as error:
        raise TrinityError(f"{path} is {word}, and cannot be renamed: {error.strerror}.") from error
