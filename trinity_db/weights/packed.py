"""Versions stored as deltas: the difference between an older version and a newer one of the same run.

The files of version 12 are in `version-000012/`, or as deltas in `version-000012.delta/`:

    delta.json   digest of the version's folder, its base, and the form of each file
    files/       the files, or the deltas to the base's files

The base is a newer version in the same folder, whole or itself a delta, so deleting the oldest version never
breaks another one. Names are relative, so a run's folder may be moved.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass as plain_dataclass
from filecmp import cmp
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from trinity_db.errors import TrinityError
from trinity_db.io import durable
from trinity_db.models import folder_digest
from trinity_db.weights import delta
from trinity_db.weights.manifest import checked_path

SUFFIX = ".delta"
FILE, FILES = "delta.json", "files"
FORMAT: Literal["trinity-db delta 1"] = "trinity-db delta 1"
MAX_BYTES = 4 << 20  # largest delta.json
MAX_CHAIN = 1000  # longest chain of deltas; ends cyclic chains
BLOCK_BYTES = 1 << 24  # bytes of a file in memory at a time
LATER = ".later"  # suffix of versions that the server has lost

_STRICT = ConfigDict(strict=True, extra="forbid")


class BrokenDelta(TrinityError):
    """A version cannot be made from its deltas."""


class Changed(TrinityError):
    """A folder was replaced while it was read. Reading it again succeeds."""


@dataclass(frozen=True, config=_STRICT)
class PackedFile:
    """A file of a version."""

    path: Annotated[str, Field(max_length=1000), AfterValidator(checked_path)]
    encoding: Literal["whole", "same", "gap16-zstd"]
    """Form of storage. whole: its bytes; same: equal to the base's file; otherwise a `delta` to the base's
    file."""


@dataclass(frozen=True, config=_STRICT)
class Content:
    """The content of `delta.json`."""

    format: Literal["trinity-db delta 1"]
    digest: Annotated[str, Field(max_length=1000)]
    """Digest of the version's folder, as recorded in the store."""
    stored: Annotated[str, Field(max_length=1000)]
    """Digest of the folder `files`, which locates the damaged delta of a chain."""
    size: Annotated[int, Field(ge=0)]
    """Size of the version's folder in bytes."""
    base: Annotated[str, Field(pattern=r"^version-\d{6,}(-\d+)?$")]
    files: list[PackedFile]


_CONTENT = TypeAdapter(Content)


@plain_dataclass(frozen=True)
class Packed:
    """A version that is stored as a delta."""

    folder: Path
    """Folder of the delta, whose name ends in .delta."""
    content: Content

    def file(self, path: str) -> PackedFile | None:
        return next((file for file in self.content.files if file.path == path), None)


class _WholeFile:
    """A file that is stored whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.size = path.stat().st_size

    def blocks(self) -> Iterator[memoryview]:
        with self._path.open("rb") as file:
            while content := file.read(BLOCK_BYTES):
                yield memoryview(content)


def delta_folder(folder: Path) -> Path:
    """Return the folder of a version's delta, given the folder of its whole files."""
    return folder.parent / f"{folder.name}{SUFFIX}"


def is_packed(folder: Path) -> bool:
    """Whether the version of this folder is stored as a delta only."""
    return delta_folder(folder).is_dir() and not folder.is_dir()


def read(folder: Path) -> Packed | None:
    """Read the delta in a folder; None if the folder does not exist.

    Raises:
        Broken: if it cannot be read.
    """
    try:
        with (folder / FILE).open("rb") as file:
            content = _CONTENT.validate_json(file.read(MAX_BYTES))
    except FileNotFoundError:
        if folder.is_dir():
            raise BrokenDelta(f"{folder} has no {FILE}.") from None
        return None
    except OSError as error:
        raise BrokenDelta(f"{folder / FILE} cannot be read: {error.strerror}.") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise BrokenDelta(f"{folder / FILE} is damaged: {where}: {first['msg']:.200}.") from None
    return Packed(folder, content)


def write(version: Path, base: Path, digest: str, target: Path) -> bool:
    """Write a version as a delta to its base, both whole, and verify the result.

    Args:
        target: a temporary folder, created and flushed here.

    Returns:
        False if a delta would not save enough.

    Raises:
        Broken: if the files do not have the version's digest.
        OSError: if a file cannot be read or written.
    """
    (target / FILES).mkdir(parents=True)
    paths = sorted(path for path in version.rglob("*") if path.is_file())
    # Largest first: stop early if the largest file is not worth a delta.
    files: list[PackedFile] = []
    for path in sorted(paths, key=lambda path: path.stat().st_size, reverse=True):
        files.append(_write_file(path, path.relative_to(version), base, target))
        if files[0].encoding == "whole":
            return False
    size = sum(path.stat().st_size for path in paths)
    stored = folder_digest.digest(target / FILES)
    content = Content(FORMAT, digest, stored, size, base.name, files)
    made = folder_digest.of(_contents([Packed(target, content)], base))
    if made != digest:
        raise BrokenDelta(
            f"{version}: its files are not those that were published; it is not converted into a delta."
        )
    (target / FILE).write_bytes(_CONTENT.dump_json(content, indent=1))
    durable.flush_all(target)
    return True


def _write_file(path: Path, relative: Path, base: Path, delta_folder: Path) -> PackedFile:
    old, target = base / relative, delta_folder / FILES / relative
    if old.is_file() and cmp(old, path, shallow=False):
        return PackedFile(relative.as_posix(), "same")
    target.parent.mkdir(parents=True, exist_ok=True)
    if old.is_file() and delta.write(old, path, target):
        return PackedFile(relative.as_posix(), delta.ENCODING)
    shutil.copyfile(path, target)
    return PackedFile(relative.as_posix(), "whole")


def unpack(folder: Path, digest: str, target: Path) -> None:
    """Make a version's files from its chain of deltas.

    Args:
        folder: the folder that the version's whole files would have.
        target: a temporary folder, created here; incomplete if this raises.

    Raises:
        Broken: if something is missing or damaged; the message names it and the versions that are lost.
        Changed: if a base became a delta meanwhile.
        OSError: if the files cannot be written.
    """
    links, base = chain(folder)
    try:
        for file in links[0].content.files:
            (target / file.path).parent.mkdir(parents=True, exist_ok=True)
        made = folder_digest.complete(target, _contents(links, base))
    except (delta.Damaged, FileNotFoundError) as error:
        if not base.is_dir():
            raise Changed(f"{base} became a delta meanwhile.") from error
        raise BrokenDelta(_blame(links, base, str(error))) from error
    if made != digest:
        raise BrokenDelta(_blame(links, base, f"{folder.name} has another digest than was published."))


def chain(folder: Path) -> tuple[list[Packed], Path]:
    """Return a version's chain of deltas, its own first, and the folder of the whole version at the end.

    Raises:
        Broken: if one is missing or unreadable, or the version has no delta.
    """
    links: list[Packed] = []
    following = folder
    while not links or not following.is_dir():
        link = read(delta_folder(following)) or _later(following)
        if isinstance(link, Path):
            return links, link
        if link is None or len(links) >= MAX_CHAIN:
            missing = f"{following} is missing" if link is None else f"the bases of {folder} do not end"
            raise BrokenDelta(_lost(folder.parent, following.name, missing) if links else f"{missing}.")
        links.append(link)
        following = folder.with_name(link.content.base)
    return links, following


def dependents(parent: Path, name: str) -> list[str]:
    """Return the versions of a run's folder that depend on this one, by the names of their whole folders."""
    base_of, names = bases(parent), {name}
    while added := {version for version, base in base_of.items() if base in names} - names:
        names |= added
    return sorted(names - {name})


def bases(parent: Path) -> dict[str, str]:
    """Map the readable deltas in a run's folder to their bases, both by the names of whole folders."""
    base_of: dict[str, str] = {}
    for folder in parent.glob(f"version-*{SUFFIX}"):
        with suppress(BrokenDelta):
            if (link := read(folder)) is not None:
                base_of[folder.name.removesuffix(SUFFIX)] = link.content.base
    return base_of


def _later(folder: Path) -> Packed | Path | None:
    """Return a version that the server has lost and the trainer has renamed."""
    whole = folder.with_name(f"{folder.name}{LATER}")
    return whole if whole.is_dir() else read(folder.with_name(f"{folder.name}{SUFFIX}{LATER}"))


def _contents(links: Sequence[Packed], base: Path) -> dict[Path, folder_digest.Unwritten]:
    """Return readers of the first link's files.

    Raises:
        Damaged: if a file of a base is missing.
        OSError: if a file cannot be read.
    """
    return {Path(file.path): _file(file.path, links, base) for file in links[0].content.files}


def _file(path: str, links: Sequence[Packed], base: Path) -> folder_digest.Unwritten:
    deltas: list[Path] = []
    source = base / path
    for link in links:
        file = link.file(path)
        if file is None:
            raise delta.Damaged(f"{link.folder.name} has no {path}.")
        if file.encoding == "whole":
            source = link.folder / FILES / path
            break
        if file.encoding == delta.ENCODING:
            deltas.insert(0, link.folder / FILES / path)
    return delta.Applied(source, deltas) if deltas else _WholeFile(source)


def _blame(links: Sequence[Packed], base: Path, otherwise: str) -> str:
    """Describe which folder of a chain is damaged and which versions depend on it, the oldest last."""
    for link in reversed(links):
        if not folder_digest.verify(link.folder / FILES, link.content.stored):
            return _lost(base.parent, link.folder.name.removesuffix(SUFFIX), f"{link.folder} is damaged")
    # All deltas match their digests, so the whole version at the end is damaged.
    return _lost(base.parent, base.name, f"{base} is damaged ({otherwise.rstrip('.')})")


def _lost(parent: Path, name: str, why: str) -> str:
    lost = [name, *dependents(parent, name)]
    return f"{why}; it is needed for {', '.join(sorted(lost))}, so restore it from a copy."
