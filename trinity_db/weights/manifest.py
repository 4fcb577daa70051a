"""Manifests: the parts of a version in an object store. Written last, so a version without one is incomplete.

A version is whole, or is a set of deltas to a base, the version before it. Bases are named relative to the
run's address, so that a run's objects may be moved together. A checkpoint has a manifest of the same form,
and is always whole.
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
MAX_CHAIN = 100  # longest chain of bases; ends cyclic chains
MAX_BYTES = 4 << 20  # largest manifest; a file takes about 150
MAX_OBJECTS = 100_000  # most objects of a version; each but a file's last has 32 MiB
MAX_STORED = 1 << 50  # largest file, in bytes


class BrokenUpload(TrinityError):
    """Objects of a version are missing or damaged. It can be fetched after they are uploaded again."""


def checked_path(path: str) -> str:
    """Return a file's path in a version, which becomes a path on this machine, if it is valid.

    Raises:
        ValueError: if it leads outside the version's folder.
    """
    parts = PurePosixPath(path)
    if parts.is_absolute() or not parts.parts or ".." in parts.parts or "\0" in path:
        raise ValueError(f"{path!r} is not a path in a version")
    return path


_STRICT = ConfigDict(strict=True, extra="forbid")
_Name = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]


@dataclass(frozen=True, config=_STRICT)
class UploadedFile:
    """A file of a version."""

    path: Annotated[str, Field(max_length=1000), AfterValidator(checked_path)]
    """Path in the version's folder."""
    encoding: Literal["whole", "same", "gap16-zstd"]
    """Form of storage. whole: its bytes; same: equal to the base's file; otherwise a `delta` to the base's
    file."""
    stored: Annotated[int, Field(ge=0, le=MAX_STORED)] = 0
    """Total size of its objects in bytes. Each but the last has `part` bytes."""
    part: Annotated[int, Field(ge=1, le=MAX_OBJECT_BYTES)] = PART_BYTES

    @property
    def num_objects(self) -> int:
        """Number of objects; an empty file has one too."""
        return 0 if self.encoding == "same" else max(1, -(-self.stored // self.part))

    def names(self, version: str) -> list[str]:
        """Return the names of its objects, in order."""
        return [f"{version}/files/{self.path}.{number:05d}" for number in range(self.num_objects)]


@dataclass(frozen=True, config=_STRICT)
class Manifest:
    """A version in an object store."""

    digest: Annotated[str, Field(max_length=1000)]
    """Digest of the folder with these files, as recorded in the store."""
    files: list[UploadedFile]
    base: _Name | None = None
    """Version that the deltas are applied to; None: this one is whole."""
    adapter_on: _Name | None = None
    """Base version of an adapter; None: it is not an adapter."""

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
        """Total stored size of its files in bytes."""
        return sum(file.stored for file in self.files)

    @property
    def content(self) -> bytes:
        """Return the manifest as the content of an object."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1).encode()


@dataclass(frozen=True, config=_STRICT, kw_only=True)
class _Stored(Manifest):
    """The stored form of a manifest."""

    format: Literal["trinity-db weights 1"]


_STORED = TypeAdapter(_Stored)


def split(address: str) -> tuple[str, str]:
    """Split an address into that of the run's objects and the name of a version or a checkpoint.

    Raises:
        Broken: if it is not an address of a version.
    """
    url, _, name = address.rstrip("/").rpartition("/")
    if not NAME.fullmatch(name):
        raise BrokenUpload(f"{address!r:.300}: is not the address of a version.")
    return url, name


def read(bucket: Bucket, version: str) -> Manifest:
    """Read the manifest of a version or a checkpoint.

    Raises:
        Broken: if it does not exist or cannot be read.
        TrinityError: as `Bucket.get`.
    """
    try:
        stored = _STORED.validate_json(bucket.get(f"{version}/{FILE}", MAX_BYTES))
    except (Missing, TooLarge) as error:
        raise BrokenUpload(str(error)) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise BrokenUpload(
            f"{bucket.url}/{version}/{FILE}: is not a manifest: {where}: {first['msg']:.200}"
        ) from None
    return Manifest(stored.digest, stored.files, stored.base, stored.adapter_on)


def chain(bucket: Bucket, version: str) -> dict[str, Manifest]:
    """Read the manifests of a version and its chain of bases, ending with the whole version.

    Raises:
        Broken: if one is missing or damaged.
        TrinityError: as `Bucket.get`.
    """
    manifests: dict[str, Manifest] = {}
    following: str | None = version
    while following is not None:
        if following in manifests or len(manifests) >= MAX_CHAIN:
            raise BrokenUpload(f"{bucket.url}/{version}: its bases name one another.")
        manifests[following] = read(bucket, following)
        following = manifests[following].base
    return manifests
