"""The people of a page: a file has their rights, and a file in the home the hashes of their keys.

The page reads both files again when they change, so that removing a right or a key takes effect at once.
A key is printed when it is made and stored nowhere; the hashes are not in the store, whose tables readers can
read. Each file of people has separate keys, so that pages with different files can share a home.
"""

import fcntl
import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from trinity_db.config.base import content_of, hint
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.io import durable
from trinity_db.page.access import hashed, new_key
from trinity_db.page.rights import Right, Visitor
from trinity_db.store.rewards import check_words

logger = logging.getLogger(__name__)

KEYS = "page-keys.json"
EXAMPLE = "ann: manage"
HASH_DIGITS = 64
Signature = tuple[tuple[int, int, int], ...]


class Keyring:
    """People by name, each with a right and perhaps a key."""

    def __init__(self, people: Path, home: Path) -> None:
        """Read both files.

        Raises:
            ConfigError: if either file is invalid.
        """
        self._people, self._keys = people.absolute(), home / KEYS
        self._signature = self._told = self._sign()
        self._visitors = self._read()

    def visitors(self) -> Mapping[str, Visitor]:
        """Visitors with access now, by the hashes of their keys. An invalid file changes nothing."""
        if (signature := self._sign()) != self._signature:
            try:
                self._visitors = self._read()
                self._signature = signature
            except TrinityError as error:  # retried: the cause may pass without another change of the file
                if signature != self._told:
                    logger.warning("Rights and keys are unchanged: %s", error)
                self._told = signature
        return self._visitors

    def has(self, right: Right) -> bool:
        """Whether the file gives someone this right."""
        return max(read_people(self._people).values()) >= right

    def complete(self) -> dict[str, str]:
        """Make missing keys and return them by name; delete keys of people who are not in the file.

        Raises:
            ConfigError: if the keys cannot be written.
        """
        people = read_people(self._people)
        with self._alone():
            known = self._known()
            made = {name: new_key() for name in people if name not in known}
            remaining = {name: key for name, key in known.items() if name in people}
            if made or remaining != known:
                self._write(remaining | {name: hashed(key) for name, key in made.items()})
        return made

    def renew(self, name: str) -> str:
        """Replace a person's key. The old key and its sessions end.

        Raises:
            ConfigError: if the file has no such person, or the keys cannot be written.
        """
        people = read_people(self._people)
        if name not in people:
            raise ConfigError(f"{self._people}: has no '{name}'; {hint(name, people)}")
        key = new_key()
        with self._alone():
            self._write(self._known() | {name: hashed(key)})
        return key

    def _read(self) -> dict[str, Visitor]:
        people, keys = read_people(self._people), self._known()
        return {keys[name]: Visitor(name, right) for name, right in people.items() if name in keys}

    def _known(self) -> dict[str, str]:
        """Hashes of the keys of the people in this file."""
        return _read_keys(self._keys).get(str(self._people), {})

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock out other commands, so that reading and writing the keys is atomic.

        Raises:
            ConfigError: if the home cannot be written.
        """
        try:
            self._keys.parent.mkdir(parents=True, exist_ok=True)
            lock = self._keys.with_suffix(".lock").open("w")
        except OSError as error:
            raise ConfigError(f"{self._keys}: keys cannot be written: {error.strerror}.") from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _write(self, keys: Mapping[str, str]) -> None:
        """Write the keys atomically, readable only by the owner."""
        aside = self._keys.with_name(f"{KEYS}.{os.getpid()}")
        everyone = _read_keys(self._keys) | {str(self._people): keys}
        try:
            aside.unlink(missing_ok=True)
            with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                json.dump(everyone, file, indent=1)
            durable.flush(aside)
            aside.replace(self._keys)
        except OSError as error:
            raise ConfigError(f"{self._keys}: keys cannot be written: {error.strerror}.") from error

    def _sign(self) -> Signature:
        """Signature that changes when one of the files does."""
        return tuple(_sign(path) for path in (self._people, self._keys))


def read_people(path: Path) -> dict[str, Right]:
    """Read names and rights.

    Raises:
        ConfigError: if the file is invalid. The message names the first person whose line is wrong.
    """
    content = content_of(path, EXAMPLE)
    if not content:
        raise ConfigError(f"{path}: names nobody: write a line for each person, such as {EXAMPLE}.")
    words = {right.word: right for right in Right}
    for name, word in content.items():
        if not isinstance(name, str):
            raise ConfigError(f"{path}: {name!r} is not a name: put it in quotes.")
        check_words([name], f"{path}: a name")
        if not isinstance(word, str) or word not in words:
            wrong = f"{word!s:.50}"
            raise ConfigError(f"{path}: {name}: there is no right '{wrong}'; {hint(wrong, words)}.")
    return {name: words[word] for name, word in content.items()}


def _read_keys(path: Path) -> dict[str, dict[str, str]]:
    """Read the hashes of keys, by file of people and name.

    Raises:
        ConfigError: if the file is damaged or cannot be read.
    """
    try:
        hashes = json.loads(path.read_bytes())
        keys = [key for people in hashes.values() for key in people.values()]
        if all(isinstance(key, str) and len(key) == HASH_DIGITS and key.isascii() for key in keys):
            return dict(hashes)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}.") from error
    except (ValueError, AttributeError, RecursionError):
        pass
    raise ConfigError(f"{path}: is damaged: remove it, and everyone gets a new key at the next start.")


def _sign(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_ino, status.st_size, status.st_mtime_ns)
