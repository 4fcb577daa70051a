"""Cache of the versions that this machine has fetched or made from deltas, one folder per run.

Versions arrive from an object store, by broadcast, or from the deltas in the folder of the run's trainer.

A version is fetched to a temporary folder, checked against its digest, and then renamed. Explorers on one
machine share the folder: one fetches at a time, the others use the result. Files in the cache may be deleted
by hand at any time; they are fetched again.
"""

import fcntl
import logging
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from trinity_db.config.base import home
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.models import folder_digest
from trinity_db.weights import delta, fetching, manifest, packed
from trinity_db.weights.broadcast import Lost, Receiver
from trinity_db.weights.bucket import Bucket, Missing, Refused
from trinity_db.weights.manifest import OWNER_FILE, BrokenUpload, Manifest

logger = logging.getLogger(__name__)

TRIES = 10  # attempts to read a chain of deltas while the trainer converts its versions
KEPT = 3  # latest versions; a restarted engine loads its previous one


def fetch(weights: str, expected: str, opened: Callable[[str], Bucket] = Bucket) -> Path:
    """Return the folder of a version on this machine, fetching it if it is missing.

    Args:
        weights: the address of the version.
        expected: the digest that its files must have.
        opened: makes the bucket of an address.

    Raises:
        Broken: if objects are missing or damaged.
        Unreachable: as `Bucket.get`.
        Refused: as `Bucket.get`, or if this machine finds no objects of the run.
        ConfigError, MissingExtra: as `Bucket`.
        TrinityError: if the files cannot be written here.
    """
    url, version = manifest.split(weights)
    cache_folder = _folder_of_run(url.rpartition("/")[2])
    if cache_folder is None:
        raise BrokenUpload(f"{weights!r:.300}: is not the address of a version.")
    bucket = opened(url)
    try:
        with _alone(cache_folder):
            return _Fetching(bucket, cache_folder).folder(version, expected)
    except BrokenUpload as error:
        if isinstance(error.__cause__, Missing):
            _check_owner(bucket)
        raise
    except OSError as error:
        raise _unwritable(cache_folder, error) from error


def _unwritable(folder: Path, error: OSError) -> TrinityError:
    return TrinityError(
        f"{folder} cannot be written: {_cause(error)}. Free space there, fix its permissions, or name "
        "another home with TRINITY_DB_HOME."
    )


def _folder_of_run(run: str) -> Path | None:
    """Return the folder of a run's versions on this machine; None if the name is not a valid folder name."""
    return None if run in ("", ".", "..") or "/" in run else home() / "weights" / run


def _check_owner(bucket: Bucket) -> None:
    """Raise Refused if the run has no objects there: uploading a version again would not help."""
    try:
        bucket.get(OWNER_FILE)
    except Missing as error:
        raise Refused(
            f"{bucket.url}: this machine finds nothing of the run there; mount the folder, or name the "
            "server that the trainer names."
        ) from error


def _cause(error: OSError) -> str:
    """Describe the error without names of temporary files, so that repeated failures read the same."""
    if isinstance(error, shutil.Error):  # from copying: it lists each file
        return re.sub(r"\[Errno \d+\] |:? '.*", "", str(error.args[0][0][2]))
    return error.strerror or str(error)


def receive(receiver: Receiver, address: str, run: str, version: int, expected: str) -> Path:
    """Return the folder of a version on this machine, receiving it from the run's trainer if it is missing.

    Args:
        address: where the trainer broadcasts.
        run: the name of the run's own folder.
        expected: the digest that its files must have.

    Raises:
        Lost: if it was not received, its files differ, or they cannot be written here.
    """
    cache_folder = _folder_of_run(run)
    if cache_folder is None:
        raise Lost(f"{run!r:.100} is not a valid folder name.")
    folder = cache_folder / f"version-{version:06d}-{expected[:8]}"
    try:
        with _alone(cache_folder):
            if not folder_digest.verify(folder, expected):
                shutil.rmtree(folder, ignore_errors=True)
                _receive(receiver, address, folder, expected)
                _evict(cache_folder, folder)
            folder.touch()
    except OSError as error:
        raise Lost(f"{cache_folder} cannot be written: {_cause(error)}.") from error
    return folder


def whole(checkpoint: Path, version: int, expected: str) -> Path:
    """Return a folder with a version's files: the recorded one, or one in the cache if that is a delta.

    Args:
        checkpoint: the folder on record.
        expected: the digest that its files must have.

    Raises:
        ConfigError: if the files are missing or damaged, or cannot be written here.
    """
    for _ in range(TRIES):
        if folder_digest.verify(checkpoint, expected):
            return checkpoint
        cache_folder = _folder_of_run(checkpoint.parent.name)
        if cache_folder is None or not packed.delta_folder(checkpoint).is_dir():
            break
        try:
            return _unpacked(checkpoint, cache_folder / f"version-{version:06d}-{expected[:8]}", expected)
        except packed.Changed:
            continue
        except packed.BrokenDelta as error:
            raise ConfigError(f"version {version} cannot be made from its delta: {error}") from error
        except OSError as error:
            raise ConfigError(str(_unwritable(cache_folder, error))) from error
    raise ConfigError(f"{checkpoint}: its files are not those that were published; restore them.")


def _unpacked(checkpoint: Path, folder: Path, expected: str) -> Path:
    """Make a version's folder in the cache from its delta. Raises as `packed.unpack`."""
    with _alone(folder.parent):
        if not folder_digest.verify(folder, expected):
            shutil.rmtree(folder, ignore_errors=True)
            aside = folder.with_name(f"{folder.name}.tmp")
            begun = time.monotonic()
            try:
                packed.unpack(checkpoint, expected, aside)
                aside.rename(folder)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
            logger.info("%s: made from its delta in %.1f s", checkpoint.name, time.monotonic() - begun)
            _evict(folder.parent, folder)
        folder.touch()
    return folder


def _receive(receiver: Receiver, address: str, folder: Path, expected: str) -> None:
    """Receive a version's folder. Raises as `receive`."""
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
        cache_folder: the run's folder in the cache.
    """

    def __init__(self, bucket: Bucket, cache_folder: Path) -> None:
        self._bucket = bucket
        self._cache_folder = cache_folder

    def folder(self, version: str, expected: str) -> Path:
        """Return a version's folder. The base model of an adapter is in the folder next to it."""
        path = self._cache_folder / version
        if not folder_digest.verify(path, expected):
            shutil.rmtree(path, ignore_errors=True)
            manifests = manifest.chain(self._bucket, version)
            newest = manifests[version]
            if newest.digest != expected:
                raise BrokenUpload(f"{self._bucket.url}/{version}: is another version of the same number.")
            if newest.adapter_on is not None:
                base = manifest.read(self._bucket, newest.adapter_on)
                if base.adapter_on is not None:  # else a cyclic chain would never end
                    raise BrokenUpload(f"{self._bucket.url}/{version}: is an adapter on another adapter.")
                self.folder(newest.adapter_on, base.digest)
            self._make(path, manifests, expected)
            _evict(self._cache_folder, path)
        path.touch()
        return path

    def _make(self, folder: Path, manifests: dict[str, Manifest], expected: str) -> None:
        """Make a version's folder from the nearest cached base, or from objects alone if the base is
        damaged."""
        names = list(manifests)
        here = next(
            (number for number, name in enumerate(names) if (self._cache_folder / name).is_dir()), None
        )
        if here is not None and self._assemble(folder, manifests, names[:here], names[here], expected):
            return
        if not self._assemble(folder, manifests, names, None, expected):
            raise BrokenUpload(
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
        """Make a version from a cached base and objects. Return False if its digest does not match.

        Args:
            names: the versions to fetch, the newest first.
            base: base of the last of them; None: the last one is whole.

        Raises:
            Broken: if an object is missing, or visibly damaged even without its digest.
        """
        aside = folder.with_name(f"{folder.name}.tmp")
        try:
            if base is None:
                aside.mkdir()
            else:
                shutil.copytree(self._cache_folder / base, aside)
            for name in reversed(names):
                fetching.make(aside, self._bucket, name, manifests[name])
            if not folder_digest.verify(aside, expected):
                return False
            aside.rename(folder)
            return True
        except delta.Damaged as error:
            if base is not None:
                return False
            raise BrokenUpload(f"{self._bucket.url}/{folder.name}: {error}") from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _evict(cache_folder: Path, newest: Path) -> None:
    """Delete the least recently used versions, except version 0, the base of adapters."""
    versions = [path for path in cache_folder.iterdir() if manifest.NAME.fullmatch(path.name)]
    versions.sort(key=lambda path: (path == newest, path.stat().st_mtime), reverse=True)
    for path in versions[KEPT:]:
        if not path.name.startswith("version-000000-"):
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _alone(cache_folder: Path) -> Iterator[None]:
    """Lock out other processes of this machine. The system releases the lock of a process that dies."""
    cache_folder.mkdir(parents=True, exist_ok=True)
    with (cache_folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for leftover in cache_folder.glob(
            "*.tmp"
        ):  # left by a killed or failed process: this one holds the lock
            shutil.rmtree(leftover, ignore_errors=True)
        yield
