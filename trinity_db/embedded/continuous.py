"""The folder of a continuous backup: base backups of one server, and its log since the oldest of them.

    server.json                     the server: no other one may write here
    base-20261125T140312.123456Z/   a base backup, by the time at which it was whole: the first to restore to
    log/                            the files of the log, as the server handed them over

One folder has one history of a server. A server that was restored goes on in another folder.
"""

import json
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

from trinity_db import durable
from trinity_db.embedded.accounts import Account, hand_over, let_through, server_account
from trinity_db.embedded.binaries import Binaries, reason
from trinity_db.embedded.place import Place
from trinity_db.errors import DatabaseUnavailable, TrinityError

# A segment of the log that is not full is handed over after this time, so no more is lost with the server's
# disk. Each takes 16 MB, full or not; a server without work hands over none.
HAND_OVER_SECONDS = 60
NAMES = "base-%Y%m%dT%H%M%S.%fZ"
SEGMENT = re.compile(r"[0-9A-F]{24}")


@dataclass(frozen=True)
class Server:
    """The server that a folder is of."""

    system_identifier: int
    timeline: int
    home: str
    restored: str | None = None
    """When its data were restored, which began another history."""


@dataclass(frozen=True)
class BaseBackup:
    """A base backup, and the time at which it was whole."""

    path: Path
    ended_at: datetime


@dataclass(frozen=True)
class Folder:
    """The folder of a continuous backup, whether or not it is there."""

    path: Path

    @property
    def log(self) -> Path:
        return self.path / "log"

    @property
    def server_file(self) -> Path:
        return self.path / "server.json"

    def server(self) -> Server | None:
        """The server that it is of; None: it is no continuous backup.

        Raises:
            TrinityError: the folder cannot be read.
        """
        try:
            return Server(**json.loads(self.server_file.read_text()))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, TypeError) as error:
            raise TrinityError(f"{self.server_file} cannot be read: {error}") from error

    def base_backups(self) -> list[BaseBackup]:
        """All that are whole, the oldest first."""
        found = []
        for path in sorted(self.path.glob("base-*")):
            with suppress(ValueError):  # another name: none of ours
                found.append(BaseBackup(path, datetime.strptime(path.name, NAMES).replace(tzinfo=UTC)))
        return found

    def segments(self, first: str) -> list[str]:
        """The files of the log from one on, in order."""
        names = sorted(path.name for path in self.log.iterdir() if SEGMENT.fullmatch(path.name))
        return [name for name in names if name >= first]

    def take_for(self, place: Place, binaries: Binaries) -> None:
        """Make the folder that of a home's server, or find that it is.

        Raises:
            TrinityError: the folder is of another server, or holds other files.
        """
        wanted = _server(place, binaries)
        found = self.server()
        if found is None:
            self._make(place)
            durable.write(self.server_file, json.dumps(asdict(wanted)))
        elif found != wanted:
            what = "another server" if found.system_identifier != wanted.system_identifier else "this server"
            is_here = what == "this server" and found.home == wanted.home
            since = ", from before it was restored" if is_here else ""
            raise TrinityError(
                f"{self.path} is the continuous backup of {what} in {found.home}{since}: name another folder."
            )
        if account := server_account(place.data):
            self.give_to(account)

    def _make(self, place: Place) -> None:
        account = server_account(place.data)
        try:
            if self.path.exists() and any(path != self.log for path in self.path.iterdir()):
                raise TrinityError(f"{self.path} holds other files: name a new folder.")
            for folder in (self.path, self.log):
                folder.mkdir(exist_ok=True)
                folder.chmod(0o700)
                if account:
                    os.chown(folder, account.uid, account.gid)
        except OSError as error:
            raise TrinityError(
                f"{self.path} cannot be made: {error.strerror}; name another folder."
            ) from error

    def give_to(self, account: Account) -> None:
        """Let a server's user use the folder, also one that root has copied."""
        hand_over(self.path, account)
        let_through((self.log,), account)

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Let one process at a time make and remove base backups. Yields the lock: a child that inherits it
        holds it on when its parent is killed.

        Raises:
            TrinityError: another one does, or the folder cannot be used.
        """
        try:
            with self.server_file.open("r+") as file:  # NFS locks nothing that is open for reading only
                flock(file, LOCK_EX | LOCK_NB)
                yield file.fileno()
        except BlockingIOError:
            raise TrinityError(f"Another command takes a base backup into {self.path}.") from None
        except OSError as error:
            raise TrinityError(f"{error.filename or self.path} cannot be used: {error.strerror}.") from error


def settings(folder: Path) -> tuple[str, ...]:
    """The settings with which a server hands its log over to a folder.

    Each file is written aside and is on the disk before it has its name. One that is there already is never
    written again: if it has another content, the server says that it cannot hand over its log. It keeps the
    log itself until it can.
    """
    log = _log(folder)
    keep = 'cp "%p" "$f.aside" && sync "$f.aside" && mv "$f.aside" "$f"'
    command = f'f={log}/%f; if test -e "$f"; then cmp "%p" "$f"; else {keep}; fi && sync {log}'
    return ("archive_mode=on", f"archive_command={command}", f"archive_timeout={HAND_OVER_SECONDS}")


def restore_command(folder: Path) -> str:
    """The setting by which a server in recovery fetches its log.

    The server takes 1 for the end of the log, and stops at 126: a folder that is gone, or a file that cannot
    be read, must not look like the end.
    """
    log = _log(folder)
    there = f"test -r {log}/. || exit 126; test -e {log}/%f || exit 1"
    return f'restore_command={there}; cp {log}/%f "%p" || exit 126'


def _log(folder: Path) -> str:
    """The folder of the log in a command of the server's, in which % begins a name of a file."""
    return shlex.quote(str(Folder(folder).log)).replace("%", "%%")


def _server(place: Place, binaries: Binaries) -> Server:
    """What a home's server says of itself in its data."""
    if account := server_account(place.data):  # root may have copied them, as the start takes into account
        hand_over(place.data, account)
        let_through((place.data,), account)
    said = binaries.run("pg_controldata", data=place.data)
    if said.returncode:
        raise DatabaseUnavailable(f"The embedded database cannot be looked at: {reason(said.stdout)}")
    lines = dict(line.split(":", 1) for line in said.stdout.splitlines() if ":" in line)
    identifier, timeline = lines["Database system identifier"], lines["Latest checkpoint's TimeLineID"]
    restored = place.restored_file.read_text() if place.restored_file.exists() else None
    return Server(int(identifier), int(timeline), str(place.home), restored)
