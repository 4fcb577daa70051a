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
from dataclasses import asdict, dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any
from uuid import uuid4

from trinity_db.errors import ConfigError, TrinityError
from trinity_db.models.folder_digest import verify
from trinity_db.trainer.checkpoints import checkpoint

logger = logging.getLogger(__name__)

OWNER_FILE = "run.json"
PUBLISHED_FILE = "published.json"
_NAME = re.compile(r"version-(\d{6,})(-\d+)?")
_LATER = re.compile(_NAME.pattern + r"\.later(-\d+)?")
_ASIDE = re.compile(_NAME.pattern + r"\.\w+\.tmp")


@dataclass(frozen=True)
class Publication:
    """A version that the store knew."""

    version: int
    step: int
    hash: str


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

    def acknowledge(self, publication: Publication) -> None:
        """Remember beside the files that the store knows a version, for the case that a server forgets it."""
        self._check_owner()
        files = [path.name for path in self.path.glob("version-*")]
        kept = [
            known
            for known in self.publications()
            if known.version != publication.version
            and any(name.startswith(f"version-{known.version:06d}") for name in files)
        ]
        content = json.dumps([asdict(known) for known in [*kept, publication]])
        _write_whole(self.path / PUBLISHED_FILE, content)

    def publications(self) -> list[Publication]:
        """The newest version that the store knew, after those that have files here."""
        try:
            found = json.loads((self.path / PUBLISHED_FILE).read_bytes())
            return [Publication(**known) for known in found]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError) as error:
            logger.warning("%s cannot be read: %s", self.path / PUBLISHED_FILE, error)
            return []

    def keep_later(self, newest: int) -> list[int]:
        """Set aside checkpoints of versions that the store has forgotten; returns these versions' numbers.

        Args:
            newest: the highest version that the store knows of, -1 before the first. A crash leaves at most
                the next one that it never knew.
        """
        self._check_owner()
        paths = [(path, _NAME.fullmatch(path.name)) for path in sorted(self.path.glob("version-*"))]
        numbers = {path: int(name[1]) for path, name in paths if name}
        aside = [int(later[1]) for path, _ in paths if (later := _LATER.fullmatch(path.name))]
        acknowledged = [known.version for known in self.publications()]
        beyond = [number for number in numbers.values() if number > newest + 1]
        last = max([newest, *acknowledged, *beyond, *aside])
        for path, number in numbers.items():
            if newest < number <= last:
                _rename(path, "later")
        return list(range(newest + 1, last + 1))

    def later(self, version: int) -> tuple[Publication, Path] | None:
        """The checkpoint of a version that was set aside, as it was published; None where there is none."""
        known = [publication for publication in self.publications() if publication.version == version]
        paths = [path for path in self.path.glob(f"version-{version:06d}*") if _LATER.fullmatch(path.name)]
        found = (path for path in sorted(paths) if known and verify(path, known[-1].hash))
        place = next(found, None)
        return None if place is None else (known[-1], place)

    def clear_leftovers(self, published: Container[str]) -> None:
        """Delete what crashes left: unfinished checkpoints, and whole ones that no version names.

        Call it after `keep_later`.

        Args:
            published: the names of the folders of versions.
        """
        self._check_owner()
        for path in sorted(self.path.glob("version-*")):
            name = _NAME.fullmatch(path.name)
            if (name and path.name not in published) or _ASIDE.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)
        for path in self.path.glob(f"{PUBLISHED_FILE}.*.tmp"):
            path.unlink(missing_ok=True)

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
    default, own = places(default, identity)
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


def places(default: Path, identity: dict[str, Any]) -> tuple[Path, Path]:
    """Where a run's own folder may be: the default one, or the one beside it."""
    own = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:8]
    return default, default.with_name(f"{default.name}-{own}")


def clear(path: Path, identity: dict[str, Any]) -> bool:
    """Delete all checkpoints in a folder, and the folder where nothing else is in it.

    Returns:
        whether it is the run's: another folder is left as it is.
    """
    if not path.is_absolute() or path.is_symlink() or not names(path, json.dumps(identity)):
        return False
    for child in path.glob("version-*"):
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child, ignore_errors=True)
    for file in path.glob(
        f"{PUBLISHED_FILE}*"
    ):  # a later run of the name would take its versions for its own
        file.unlink()
    (path / OWNER_FILE).unlink()
    if not any(path.iterdir()):
        path.rmdir()
    return True


def names(folder: Path, owner: str) -> bool:
    """Whether the file in a folder names this owner."""
    file = folder / OWNER_FILE
    try:
        return file.is_file() and file.read_bytes() == owner.encode()
    except OSError:
        return False


def _take(folder: Path, owner: str) -> bool:
    """Make a folder the owner's where it is nobody's; whether it is the owner's."""
    file = folder / OWNER_FILE
    try:
        # Versions that nobody owns are of a run whose file was lost: a copy of its store knows them too.
        if not file.exists() and not any(folder.glob("version-*")):
            _write_once(file, owner)
        is_owners = file.is_file() and file.read_bytes() == owner.encode()
        if is_owners:
            checkpoint.flush(folder)  # each time, since a crash may have come before it
        return is_owners
    except OSError as error:
        raise checkpoint.unwritable(str(folder), error) from error


def _write_whole(file: Path, content: str) -> None:
    """Replace a file by one that is whole and on disk.

    Raises:
        TrinityError: it cannot be written.
    """
    aside = file.with_name(f"{file.name}.{uuid4().hex[:8]}.tmp")
    try:
        aside.write_text(content)
        checkpoint.flush(aside)
        aside.replace(file)
        checkpoint.flush(file.parent)
    except OSError as error:
        raise checkpoint.unwritable(str(file), error) from error
    finally:
        aside.unlink(missing_ok=True)


def _write_once(file: Path, content: str) -> None:
    """Write a file whole; one that is there by now stays as it is. The caller flushes the folder."""
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
        raise TrinityError(f"{path} cannot be set aside as {word}: {error.strerror}.") from error
