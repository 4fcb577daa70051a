"""What a version in an object store is made of. Its manifest is written last: until then there is no version.

A version is whole, or lies on a base: the version before it, to which its deltas are applied. Bases are named
by the names that they have beside the version, so that a run's objects may be moved together. A checkpoint
has a manifest of the same form, and is always whole.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Literal

from trinity_db.errors import TrinityError
from trinity_db.weights import delta
from trinity_db.weights.bucket import PART_BYTES, Bucket, Missing

FILE = "manifest.json"
OWNER_FILE = "run.json"
FORMAT = "trinity-db weights 1"
NAME = re.compile(r"(version|checkpoint)-(\d{6,})-[0-9a-f]{8}")
MAX_CHAIN = 1000  # bases below one another; a chain that names itself ends here


class Broken(TrinityError):
    """Objects of a version are missing or damaged. It can be fetched again once they are put again."""


@dataclass(frozen=True)
class File:
    """A file of a version."""

    path: str
    """In the folder of the version."""
    encoding: Literal["whole", "same", "xor16-zstd"]
    """whole: its bytes. same: those of the base's file. Else: what `delta` makes of the base's file."""
    stored: int = 0
    """Bytes of its objects together. Each but the last has `part`."""
    part: int = PART_BYTES

    def names(self, version: str) -> list[str]:
        """Its objects in order. An empty file has one too."""
        if self.encoding == "same":
            return []
        count = max(1, -(-self.stored // self.part))
        return [f"{version}/files/{self.path}.{number:05d}" for number in range(count)]


@dataclass(frozen=True)
class Manifest:
    """A version in an object store."""

    digest: str
    """Of the folder with these files, as the store of the run has it."""
    files: list[File]
    base: str | None = None
    """The version that deltas are applied to; None: this one is whole."""
    adapter_on: str | None = None
    """The version that this one is an adapter on; None: it is no adapter."""

    @property
    def stored(self) -> int:
        """Bytes of all its files as they are stored."""
        return sum(file.stored for file in self.files)

    @property
    def content(self) -> bytes:
        """The object."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1).encode()


def split(address: str) -> tuple[str, str]:
    """The address of a run's objects, and the name of a version or a checkpoint below it.

    Raises:
        Broken: it is none of ours.
    """
    url, _, name = address.rstrip("/").rpartition("/")
    if not NAME.fullmatch(name):
        raise Broken(f"{address!r:.300}: is the address of no version.")
    return url, name


def read(bucket: Bucket, version: str) -> Manifest:
    """The manifest of a version or a checkpoint.

    Raises:
        Broken: there is none, or it cannot be read.
        TrinityError: as `Bucket.get`.
    """
    try:
        return _checked(json.loads(bucket.get(f"{version}/{FILE}")))
    except Missing as error:
        raise Broken(str(error)) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Broken(f"{bucket.url}/{version}/{FILE}: is no manifest: {error!r:.200}") from error


def chain(bucket: Bucket, version: str) -> dict[str, Manifest]:
    """The manifests of a version and of all that it lies on, the nearest first and the whole one at the end.

    Raises:
        Broken: one is missing or damaged.
        TrinityError: as `Bucket.get`.
    """
    found: dict[str, Manifest] = {}
    following: str | None = version
    while following is not None:
        if following in found or len(found) >= MAX_CHAIN:
            raise Broken(f"{bucket.url}/{version}: its bases name one another.")
        found[following] = read(bucket, following)
        following = found[following].base
    return found


def checked_path(path: str) -> str:
    """A path in a version, which becomes a path of this machine.

    Raises:
        ValueError: it leads out of the version.
    """
    parts = PurePosixPath(path)
    if parts.is_absolute() or not parts.parts or ".." in parts.parts or "\0" in path:
        raise ValueError(f"{path!r} is no path in a version")
    return path


def _checked(content: Mapping[str, object]) -> Manifest:
    """A manifest of what JSON says. Names in it become paths of this machine, so they are checked.

    Raises:
        ValueError: it is none of ours.
    """
    values = dict(content)
    if values.pop("format") != FORMAT:
        raise ValueError("its format is another one")
    files = [File(**one) for one in values.pop("files")]  # type: ignore[attr-defined]
    made = Manifest(files=files, **values)  # type: ignore[arg-type]
    for name in (made.base, made.adapter_on):
        if name is not None and not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is the name of no version")
    for file in files:
        checked_path(file.path)
        if file.encoding not in ("whole", "same", delta.ENCODING) or file.part < 1 or file.stored < 0:
            raise ValueError(f"{file.path!r} has an unknown encoding or size")
        if file.encoding != "whole" and made.base is None:
            raise ValueError(f"{file.path!r} needs a base, and there is none")
    return made
