"""What a version in an object store is made of. Its manifest is written last: until then there is no version.

A version is whole, or lies on a base: the version before it, to which its deltas are applied. Bases are named
by the names that they have beside the version, so that a run's objects may be moved together. A checkpoint
has a manifest of the same form, and is always whole.
"""

import json
import re
from dataclasses import asdict
from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from trinity_db.errors import TrinityError
from trinity_db.weights.bucket import MAX_OBJECT_BYTES, PART_BYTES, Bucket, Missing, TooLarge

FILE = "manifest.json"
OWNER_FILE = "run.json"
FORMAT: Literal["trinity-db weights 1"] = "trinity-db weights 1"
NAME = re.compile(r"(version|checkpoint)-(\d{6,})-[0-9a-f]{8}")
MAX_CHAIN = 100  # bases below one another; a chain that names itself ends here
MAX_BYTES = 4 << 20  # of a manifest; a file takes some 150
MAX_OBJECTS = 100_000  # of a version; each but the last of a file has 32 MiB
MAX_STORED = 1 << 50  # bytes of a file


class Broken(TrinityError):
    """Objects of a version are missing or damaged. It can be fetched again once they are put again."""


def checked_path(path: str) -> str:
    """A path in a version, which becomes a path of this machine.

    Raises:
        ValueError: it leads out of the version.
    """
    parts = PurePosixPath(path)
    if parts.is_absolute() or not parts.parts or ".." in parts.parts or "\0" in path:
        raise ValueError(f"{path!r} is no path in a version")
    return path


_STRICT = ConfigDict(strict=True, extra="forbid")
_Name = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]


@dataclass(frozen=True, config=_STRICT)
class File:
    """A file of a version."""

    path: Annotated[str, Field(max_length=1000), AfterValidator(checked_path)]
    """In the folder of the version."""
    encoding: Literal["whole", "same", "gap16-zstd"]
    """whole: its bytes. same: those of the base's file. Else: what `delta` makes of the base's file."""
    stored: Annotated[int, Field(ge=0, le=MAX_STORED)] = 0
    """Bytes of its objects together. Each but the last has `part`."""
    part: Annotated[int, Field(ge=1, le=MAX_OBJECT_BYTES)] = PART_BYTES

    @property
    def num_objects(self) -> int:
        """How many objects it has. An empty file has one too."""
        return 0 if self.encoding == "same" else max(1, -(-self.stored // self.part))

    def names(self, version: str) -> list[str]:
        """Its objects in order."""
        return [f"{version}/files/{self.path}.{number:05d}" for number in range(self.num_objects)]


@dataclass(frozen=True, config=_STRICT)
class Manifest:
    """A version in an object store."""

    digest: Annotated[str, Field(max_length=1000)]
    """Of the folder with these files, as the store of the run has it."""
    files: list[File]
    base: _Name | None = None
    """The version that deltas are applied to; None: this one is whole."""
    adapter_on: _Name | None = None
    """The version that this one is an adapter on; None: it is no adapter."""

    @model_validator(mode="after")
    def files_can_be_fetched(self) -> Self:
        if sum(file.num_objects for file in self.files) > MAX_OBJECTS:
            raise ValueError(f"it has more than {MAX_OBJECTS} objects")
        for file in self.files:
            if file.encoding != "whole" and self.base is None:
                raise ValueError(f"{file.path!r} needs a base, and there is none")
        return self

    @property
    def stored(self) -> int:
        """Bytes of all its files as they are stored."""
        return sum(file.stored for file in self.files)

    @property
    def content(self) -> bytes:
        """The object."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1).encode()


@dataclass(frozen=True, config=_STRICT, kw_only=True)
class _Stored(Manifest):
    """The content of the object."""

    format: Literal["trinity-db weights 1"]


_STORED = TypeAdapter(_Stored)


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
        stored = _STORED.validate_json(bucket.get(f"{version}/{FILE}", MAX_BYTES))
    except (Missing, TooLarge) as error:
        raise Broken(str(error)) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise Broken(f"{bucket.url}/{version}/{FILE}: is no manifest: {where}: {first['msg']:.200}") from None
    return Manifest(stored.digest, stored.files, stored.base, stored.adapter_on)


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
