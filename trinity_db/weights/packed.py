"""Versions on disk as deltas: the difference of an older version from a newer one of the same run.

The files of version 12 are in `version-000012/`, or if only what changed is kept, in `version-000012.delta/`:

    delta.json   digest of the version's folder, its base, and how each file is stored
    files/       the files, or the deltas to the base's files

The base is a newer version of the same folder, whole or a delta itself. So deleting the oldest version never
breaks another one. The names stay relative: a run's folder may be moved.
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

from trinity_db import durable
from trinity_db.errors import TrinityError
from trinity_db.models import folder_digest
from trinity_db.weights import delta
from trinity_db.weights.manifest import checked_path

SUFFIX = ".delta"
FILE, FILES = "delta.json", "files"
FORMAT: Literal["trinity-db delta 1"] = "trinity-db delta 1"
MAX_BYTES = 4 << 20  # of delta.json
MAX_CHAIN = 1000  # deltas below one another; bases that name one another end here
BLOCK_BYTES = 1 << 24  # of a file in memory at a time
LATER = ".later"  # the end of the name of a version that the server has lost

_STRICT = ConfigDict(strict=True, extra="forbid")


class Broken(TrinityError):
    """A version cannot be made from its deltas."""


class Changed(TrinityError):
    """A folder was replaced while it was read. Reading it again succeeds."""


@dataclass(frozen=True, config=_STRICT)
class File:
    """A file of a version."""

    path: Annotated[str, Field(max_length=1000), AfterValidator(checked_path)]
    encoding: Literal["whole", "same", "gap16-zstd"]
    """whole: its bytes. same: those of the base's file. Else: what `delta` makes of the base's file."""


@dataclass(frozen=True, config=_STRICT)
class Content:
    """The content of `delta.json`."""

    format: Literal["trinity-db delta 1"]
    digest: Annotated[str, Field(max_length=1000)]
    """Of the version's folder, as the store of the run has it."""
    stored: Annotated[str, Field(max_length=1000)]
    """Of the folder `files`. It shows which delta of a chain is damaged."""
    size: Annotated[int, Field(ge=0)]
    """Bytes of the version's folder."""
    base: Annotated[str, Field(pattern=r"^version-\d{6,}(-\d+)?$")]
    files: list[File]


_CONTENT = TypeAdapter(Content)


@plain_dataclass(frozen=True)
class Packed:
    """A version that is stored as a delta."""

    folder: Path
    """Its own folder, whose name ends in .delta."""
    content: Content

    def file(self, path: str) -> File | None:
        return next((file for file in self.content.files if file.path == path), None)


class _Stored:
    """A file that is on disk as it is."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.size = path.stat().st_size

    def blocks(self) -> Iterator[memoryview]:
        with self._path.open("rb") as file:
            while content := file.read(BLOCK_BYTES):
                yield memoryview(content)


def place_of(folder: Path) -> Path:
    """Where a version's delta is, from the folder that has its files whole."""
    return folder.parent / f"{folder.name}{SUFFIX}"


def is_packed(folder: Path) -> bool:
    """Whether the version of this folder is stored as a delta, and not whole."""
    return place_of(folder).is_dir() and not folder.is_dir()


def read(place: Path) -> Packed | None:
    """The delta in a folder. None if the folder does not exist.

    Raises:
        Broken: it cannot be read.
    """
    try:
        with (place / FILE).open("rb") as file:
            content = _CONTENT.validate_json(file.read(MAX_BYTES))
    except FileNotFoundError:
        if place.is_dir():
            raise Broken(f"{place} has no {FILE}.") from None
        return None
    except OSError as error:
        raise Broken(f"{place / FILE} cannot be read: {error.strerror}.") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise Broken(f"{place / FILE} is damaged: {where}: {first['msg']:.200}.") from None
    return Packed(place, content)


def write(version: Path, base: Path, digest: str, place: Path) -> bool:
    """Write what a version differs in from its base, both whole, and check that it gives the version.

    Args:
        place: a temporary folder, which this function makes and flushes.

    Returns:
        False if the files are not worth a delta.

    Raises:
        Broken: the files do not have the version's digest.
        OSError: a file cannot be read or written.
    """
    (place / FILES).mkdir(parents=True)
    paths = sorted(path for path in version.rglob("*") if path.is_file())
    # The largest first: if what takes most has no delta, nothing more is written.
    files: list[File] = []
    for path in sorted(paths, key=lambda path: path.stat().st_size, reverse=True):
        files.append(_write_file(path, path.relative_to(version), base, place))
        if files[0].encoding == "whole":
            return False
    size = sum(path.stat().st_size for path in paths)
    stored = folder_digest.digest(place / FILES)
    content = Content(FORMAT, digest, stored, size, base.name, files)
    made = folder_digest.of(_contents([Packed(place, content)], base))
    if made != digest:
        raise Broken(f"{version}: its files are not those that were published; it is not made a delta.")
    (place / FILE).write_bytes(_CONTENT.dump_json(content, indent=1))
    durable.flush_all(place)
    return True


def _write_file(path: Path, relative: Path, base: Path, place: Path) -> File:
    old, target = base / relative, place / FILES / relative
    if old.is_file() and cmp(old, path, shallow=False):
        return File(relative.as_posix(), "same")
    target.parent.mkdir(parents=True, exist_ok=True)
    if old.is_file() and delta.write(old, path, target):
        return File(relative.as_posix(), delta.ENCODING)
    shutil.copyfile(path, target)
    return File(relative.as_posix(), "whole")


def unpack(folder: Path, digest: str, target: Path) -> None:
    """Make a version's files from its chain of deltas.

    Args:
        folder: where the version's files would be whole.
        target: a temporary folder, which this function makes. It is incomplete where this raises.

    Raises:
        Broken: something is missing or damaged. The message names it, and the versions that are lost.
        Changed: a base became a delta meanwhile.
        OSError: the files cannot be written.
    """
    links, base = chain(folder)
    try:
        for file in links[0].content.files:
            (target / file.path).parent.mkdir(parents=True, exist_ok=True)
        made = folder_digest.complete(target, _contents(links, base))
    except (delta.Damaged, FileNotFoundError) as error:
        if not base.is_dir():
            raise Changed(f"{base} became a delta meanwhile.") from error
        raise Broken(_blame(links, base, str(error))) from error
    if made != digest:
        raise Broken(_blame(links, base, f"{folder.name} has another digest than was published."))


def chain(folder: Path) -> tuple[list[Packed], Path]:
    """The deltas that a version is made of, its own first, and the folder of the whole one at the end.

    Raises:
        Broken: one is missing or unreadable, or the version has no delta.
    """
    links: list[Packed] = []
    following = folder
    while not links or not following.is_dir():
        link = read(place_of(following)) or _later(following)
        if isinstance(link, Path):
            return links, link
        if link is None or len(links) >= MAX_CHAIN:
            missing = f"{following} is missing" if link is None else f"the bases of {folder} do not end"
            raise Broken(_lost(folder.parent, following.name, missing) if links else f"{missing}.")
        links.append(link)
        following = folder.with_name(link.content.base)
    return links, following


def dependents(parent: Path, name: str) -> list[str]:
    """The versions of a run's folder that are made with this one, by the names of their whole folders."""
    found, wanted = bases(parent), {name}
    while added := {one for one, base in found.items() if base in wanted} - wanted:
        wanted |= added
    return sorted(wanted - {name})


def bases(parent: Path) -> dict[str, str]:
    """The bases of the readable deltas in a run's folder, both by the names of whole folders."""
    found: dict[str, str] = {}
    for place in parent.glob(f"version-*{SUFFIX}"):
        with suppress(Broken):
            if (link := read(place)) is not None:
                found[place.name.removesuffix(SUFFIX)] = link.content.base
    return found


def _later(folder: Path) -> Packed | Path | None:
    """A version that the server has lost: the trainer renamed it."""
    whole = folder.with_name(f"{folder.name}{LATER}")
    return whole if whole.is_dir() else read(folder.with_name(f"{folder.name}{SUFFIX}{LATER}"))


def _contents(links: Sequence[Packed], base: Path) -> dict[Path, folder_digest.Unwritten]:
    """The files of the first link.

    Raises:
        Damaged: a file of a base is missing.
        OSError: a file cannot be read.
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
    return delta.Applied(source, deltas) if deltas else _Stored(source)


def _blame(links: Sequence[Packed], base: Path, otherwise: str) -> str:
    """Which folder of a chain is damaged, the oldest version last, and which versions are lost with it."""
    for link in reversed(links):
        if not folder_digest.verify(link.folder / FILES, link.content.stored):
            return _lost(base.parent, link.folder.name.removesuffix(SUFFIX), f"{link.folder} is damaged")
    # All deltas match their digests, so the whole version at the end is damaged.
    return _lost(base.parent, base.name, f"{base} is damaged ({otherwise.rstrip('.')})")


def _lost(parent: Path, name: str, why: str) -> str:
    lost = [name, *dependents(parent, name)]
    return f"{why}; it is needed for {', '.join(sorted(lost))}, so restore it from a copy."
