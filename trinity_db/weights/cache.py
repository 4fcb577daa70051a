"""The versions that this machine has fetched or made from deltas, in a folder for each run.

They come from an object store, by broadcast, or from the deltas in the folder of the run's trainer.

A version is fetched aside, held to its digest, and gets its name then. Explorers of one machine share the
folder: one fetches at a time, and the others find what it has fetched. What is in the cache may be deleted at
any time by hand; it is fetched again.
"""

import fcntl
import logging
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from trinity_db.errors import ConfigError, TrinityError
from trinity_db.models import folder_digest
from trinity_db.settings import home
from trinity_db.weights import delta, fetching, manifest, packed
from trinity_db.weights.broadcast import Lost, Receiver
from trinity_db.weights.bucket import Bucket, Missing, Refused
from trinity_db.weights.manifest import OWNER_FILE, Broken, Manifest

logger = logging.getLogger(__name__)

TRIES = 10  # of reading a chain of deltas while the trainer converts versions of it
KEPT = 3  # versions fetched last; an engine that is started again loads one that it had before


def fetch(weights: str, expected: str, opened: Callable[[str], Bucket] = Bucket) -> Path:
    """The folder of a version on this machine, fetched if it is not there.

    Args:
        weights: the address of the version.
        expected: the digest that its files must have.
        opened: makes the bucket of an address.

    Raises:
        Broken: objects are missing or damaged.
        Unreachable: as `Bucket.get`.
        Refused: as `Bucket.get`, or this machine finds nothing of the run.
        ConfigError, MissingExtra: as `Bucket`.
        TrinityError: the files cannot be written here.
    """
    url, version = manifest.split(weights)
    place = _place(url.rpartition("/")[2])
    if place is None:
        raise Broken(f"{weights!r:.300}: is the address of no version.")
    bucket = opened(url)
    try:
        with _alone(place):
            return _Fetching(bucket, place).folder(version, expected)
    except Broken as error:
        if isinstance(error.__cause__, Missing):
            _check_owner(bucket)
        raise
    except OSError as error:
        raise _unwritable(place, error) from error


def _unwritable(place: Path, error: OSError) -> TrinityError:
    return TrinityError(
        f"{place} cannot be written: {_cause(error)}. Free space there, mend its rights, or name another "
        "home with TRINITY_DB_HOME."
    )


def _place(run: str) -> Path | None:
    """The folder of a run's versions on this machine; None if the name is that of no folder."""
    return None if run in ("", ".", "..") or "/" in run else home() / "weights" / run


def _check_owner(bucket: Bucket) -> None:
    """Raise Refused if the run has nothing there: the trainer would upload a version again in vain."""
    try:
        bucket.get(OWNER_FILE)
    except Missing as error:
        raise Refused(
            f"{bucket.url}: this machine finds nothing of the run there; mount the folder, or name the "
            "server that the trainer names."
        ) from error


def _cause(error: OSError) -> str:
    """Without names of temporary files: a failure that comes again reads the same."""
    if isinstance(error, shutil.Error):  # of a copy: it lists each file
        return re.sub(r"\[Errno \d+\] |:? '.*", "", str(error.args[0][0][2]))
    return error.strerror or str(error)


def receive(receiver: Receiver, address: str, run: str, version: int, expected: str) -> Path:
    """The folder of a version on this machine, sent by the run's trainer if it is not there.

    Args:
        address: where the trainer broadcasts.
        run: the name of the run's own folder.
        expected: the digest that its files must have.

    Raises:
        Lost: it did not come, other files came, or they cannot be written here.
    """
    place = _place(run)
    if place is None:
        raise Lost(f"{run!r:.100} is the name of no folder.")
    found = place / f"version-{version:06d}-{expected[:8]}"
    try:
        with _alone(place):
            if not folder_digest.verify(found, expected):
                shutil.rmtree(found, ignore_errors=True)
                _receive(receiver, address, found, expected)
                _evict(place, found)
            found.touch()
    except OSError as error:
        raise Lost(f"{place} cannot be written: {_cause(error)}.") from error
    return found


def whole(checkpoint: Path, version: int, expected: str) -> Path:
    """A folder with a version's files: the recorded one, or if that is a delta, one in the cache.

    Args:
        checkpoint: the folder on record.
        expected: the digest that its files must have.

    Raises:
        ConfigError: the files are missing or damaged, or cannot be written here.
    """
    for _ in range(TRIES):
        if folder_digest.verify(checkpoint, expected):
            return checkpoint
        place = _place(checkpoint.parent.name)
        if place is None or not packed.place_of(checkpoint).is_dir():
            break
        try:
            return _unpacked(checkpoint, place / f"version-{version:06d}-{expected[:8]}", expected)
        except packed.Changed:
            continue
        except packed.Broken as error:
            raise ConfigError(f"version {version} cannot be made from its delta: {error}") from error
        except OSError as error:
            raise ConfigError(str(_unwritable(place, error))) from error
    raise ConfigError(f"{checkpoint}: its files are not those that were published; restore them.")


def _unpacked(checkpoint: Path, found: Path, expected: str) -> Path:
    """A version's folder in the cache, made from its delta. Raises as `packed.unpack`."""
    with _alone(found.parent):
        if not folder_digest.verify(found, expected):
            shutil.rmtree(found, ignore_errors=True)
            aside = found.with_name(f"{found.name}.tmp")
            begun = time.monotonic()
            try:
                packed.unpack(checkpoint, expected, aside)
                aside.rename(found)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
            logger.info("%s: made from its delta in %.1f s", checkpoint.name, time.monotonic() - begun)
            _evict(found.parent, found)
        found.touch()
    return found


def _receive(receiver: Receiver, address: str, folder: Path, expected: str) -> None:
    """Have a version's folder sent. Raises as `receive`."""
    aside = folder.with_name(f"{folder.name}.tmp")
    try:
        aside.mkdir()
        receiver.receive(address, expected, aside)
        if not folder_digest.verify(aside, expected):
            raise Lost(f"The broadcast from {address} gave other files than were published.")
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


class _Fetching:
    """Fetches versions of one run.

    Args:
        place: the folder that has them on this machine.
    """

    def __init__(self, bucket: Bucket, place: Path) -> None:
        self._bucket = bucket
        self._place = place

    def folder(self, version: str, expected: str) -> Path:
        """A version's folder. If it is an adapter, the model that it lies on is beside it."""
        found = self._place / version
        if not folder_digest.verify(found, expected):
            shutil.rmtree(found, ignore_errors=True)
            manifests = manifest.chain(self._bucket, version)
            newest = manifests[version]
            if newest.digest != expected:
                raise Broken(f"{self._bucket.url}/{version}: is another version of the same number.")
            if newest.adapter_on is not None:
                base = manifest.read(self._bucket, newest.adapter_on)
                if base.adapter_on is not None:  # a manifest that names itself would never end
                    raise Broken(f"{self._bucket.url}/{version}: is an adapter on another adapter.")
                self.folder(newest.adapter_on, base.digest)
            self._make(found, manifests, expected)
            _evict(self._place, found)
        found.touch()
        return found

    def _make(self, folder: Path, manifests: dict[str, Manifest], expected: str) -> None:
        """Make a version's folder of the nearest one that is here, or if that is damaged of objects alone."""
        names = list(manifests)
        here = next((number for number, name in enumerate(names) if (self._place / name).is_dir()), None)
        if here is not None and self._assemble(folder, manifests, names[:here], names[here], expected):
            return
        if not self._assemble(folder, manifests, names, None, expected):
            raise Broken(
                f"{self._bucket.url}/{folder.name}: its objects give other files than were published."
            )

    def _assemble(
        self,
        folder: Path,
        manifests: dict[str, Manifest],
        names: Sequence[str],
        base: str | None,
        expected: str,
    ) -> bool:
        """Make a version of a base that is here and of objects. Return False if that gives other files.

        Args:
            names: the versions to fetch, the newest first.
            base: the version that the last of them lies on; None: that one is whole.

        Raises:
            Broken: an object is missing, or damaged in a way that shows without the digest.
        """
        aside = folder.with_name(f"{folder.name}.tmp")
        try:
            if base is None:
                aside.mkdir()
            else:
                shutil.copytree(self._place / base, aside)
            for name in reversed(names):
                fetching.make(aside, self._bucket, name, manifests[name])
            if not folder_digest.verify(aside, expected):
                return False
            aside.rename(folder)
            return True
        except delta.Damaged as error:
            if base is not None:
                return False
            raise Broken(f"{self._bucket.url}/{folder.name}: {error}") from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _evict(place: Path, newest: Path) -> None:
    """Delete versions that were not used lately. Version 0 stays: adapters lie on it."""
    found = [path for path in place.iterdir() if manifest.NAME.fullmatch(path.name)]
    found.sort(key=lambda path: (path == newest, path.stat().st_mtime), reverse=True)
    for path in found[KEPT:]:
        if not path.name.startswith("version-000000-"):
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Keep other processes of this machine out. If one dies, the system lets the next one in."""
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in place.glob("*.tmp"):  # of a process that was killed or failed: this one is alone
            shutil.rmtree(left, ignore_errors=True)
        yield
