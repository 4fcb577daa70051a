"""Converts older 16-bit versions to deltas, so that each of a run's versions can be loaded later.

A thread converts the versions that need not be full, oldest first. A delta is based on the next newer full
version (trinity_db/weights/packed.py). It is written to a temporary folder, flushed, and checked against the
version's digest, before it gets its name. Only then is the full folder removed, in a transaction in which
this worker is the run's trainer and no other run starts from the version. A crash at any time therefore
leaves the version full or as a delta.
"""

import logging
import re
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

from trinity_db.errors import LeaseLost
from trinity_db.io import durable
from trinity_db.models.weights_file import FILE, is_sixteen_bit
from trinity_db.postgres.connection import Transaction
from trinity_db.store import policies, workers
from trinity_db.trainer.checkpoints import writing
from trinity_db.trainer.checkpoints.run_files import RunFiles
from trinity_db.weights import packed

logger = logging.getLogger(__name__)

CHAIN_SHARE = 0.5
"""Bytes of the deltas in a chain, relative to the full version at its end, from which a version stays full:
loading the oldest would take more than twice the time of a full one."""
MOST_LINKS = 64  # deltas in a chain: the number of versions lost if the full one at its end is damaged
MOST_WAITING = 8  # versions waiting for conversion, before the trainer waits for one of them


class OlderVersions:
    """The older versions of one run, and the thread that converts them.

    Args:
        keep: Number of newest versions that stay full and do not count towards the share.
        share: Maximum share, taken by older versions, of the disk space that is free or taken by them.
    """

    def __init__(self, files: RunFiles, keep: int, share: float) -> None:
        self._files, self._keep, self._share = files, keep, share
        self._bytes: dict[str, int] = {}
        """Bytes of versions by the names of their folders, full or as deltas. 0: not in 16 bits."""
        self._recorded: Sequence[policies.PolicyVersion] = ()
        """Versions in 16 bits, newest first."""
        self._unpackable: set[str] = set()
        """Names of versions whose deltas would be too large, or whose files are damaged."""
        self._waiting: list[policies.PolicyVersion] = []
        """Versions to convert, oldest first."""
        self._is_full = False
        """Whether the disk had no room for a version."""
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        """The thread; None if it has ended, or will not look for versions again."""

    def kept(self, tx: Transaction) -> list[int]:
        """Return the 16-bit versions whose weights stay, without the oldest that exceed the disk space."""
        if not self._share:
            return []
        recorded = policies.with_checkpoint(tx, self._files.run.id)
        packable = [policy for policy in recorded if policy.version > 0 and self._size(policy.checkpoint)]
        older = [self._size(policy.checkpoint) for policy in packable[self._keep :]]
        limit = self._share * (shutil.disk_usage(self._files.folder.path).free + sum(older))
        fit, total = 0, 0
        while fit < len(older) and total + older[fit] <= limit:
            total += older[fit]
            fit += 1
        if fit < len(older) and not self._is_full:
            self._is_full = True
            logger.info(
                "version %d and older: deleted because of trainer.keep_deltas",
                packable[self._keep + fit].version,
            )
        self._recorded = packable[: self._keep + fit]
        return [policy.version for policy in self._recorded]

    def convert(self, packable: set[int]) -> None:
        """Let the thread convert these versions, unless they are deltas already."""
        with self._changed:
            self._waiting = [
                policy
                for policy in reversed(self._recorded)
                if policy.version in packable
                and policy.checkpoint.name not in self._unpackable
                and policy.checkpoint.is_dir()
            ]
            if self._waiting and self._thread is None:
                # A daemon thread: a stopping trainer does not wait. The next start removes unfinished files.
                self._thread = threading.Thread(target=self._run, name="deltas", daemon=True)
                self._thread.start()

    def catch_up(self) -> None:
        """Wait while too many versions are waiting for conversion, so that they do not fill the disk."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) <= MOST_WAITING)

    def wait(self, seconds: float | None = None) -> None:
        """Wait for the conversions, at most this long."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)

    def abandon(self) -> None:
        """Wait for the current conversion, and start no other one."""
        with self._changed:
            self._waiting = []
        self.wait()

    def _run(self) -> None:
        try:
            while (policy := self._next()) is not None:
                self._convert(policy)
        except Exception as error:  # a version stays full; the next publication retries
            if not isinstance(error, LeaseLost):  # reported by the trainer's main thread
                logger.warning("older versions are not converted to deltas now: %s", error)
            with self._changed:
                self._waiting, self._thread = [], None
                self._changed.notify_all()
        finally:
            self._files.database.close()  # the connection of this thread

    def _next(self) -> policies.PolicyVersion | None:
        """Return the next version to convert; None if all are converted, which ends the thread."""
        with self._changed:
            self._changed.notify_all()
            if not self._waiting:
                self._thread = None
                return None
            return self._waiting.pop(0)

    def _convert(self, policy: policies.PolicyVersion) -> None:
        """Replace a version's folder with a delta, unless its chain would become too long."""
        folder, base = policy.checkpoint, self._base(policy)
        if not folder.is_dir() or base is None:
            return
        if self._ends_long_chain(folder):
            self._unpackable.add(folder.name)
            return
        aside = writing.aside_of(folder)
        try:
            is_worth_it = packed.write(folder, base, policy.checkpoint_hash, aside)
        except packed.BrokenDelta as error:
            logger.warning("version %d: %s", policy.version, error)
            is_worth_it = False
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)
            raise writing.unwritable(f"The delta of {folder}", error) from error
        if not is_worth_it:
            shutil.rmtree(aside, ignore_errors=True)
            self._unpackable.add(folder.name)
            return
        delta_folder = packed.delta_folder(folder)
        shutil.rmtree(delta_folder, ignore_errors=True)
        writing.rename(aside, delta_folder)
        self._remove_whole(policy, delta_folder)

    def _remove_whole(self, policy: policies.PolicyVersion, delta_folder: Path) -> None:
        """Remove a version's full folder, or its delta if the version has to be full again."""
        folder = policy.checkpoint
        removed = writing.aside_of(folder)
        with self._files.database.transaction() as tx:
            workers.hold_place(tx, self._files.worker_id)
            if may := policies.may_pack(tx, self._files.run.id, policy):
                folder.rename(removed)
        if may:
            durable.flush(folder.parent)
            self._bytes[folder.name] = _bytes_of(delta_folder)
            shutil.rmtree(removed, ignore_errors=True)
        else:
            shutil.rmtree(delta_folder, ignore_errors=True)

    def _base(self, policy: policies.PolicyVersion) -> Path | None:
        """Return the folder of the next newer full version in 16 bits, or None."""
        newer = [
            recorded
            for recorded in self._recorded
            if recorded.version > policy.version and recorded.checkpoint.is_dir()
        ]
        return newer[-1].checkpoint if newer else None

    def _ends_long_chain(self, folder: Path) -> bool:
        """Whether the longest chain of deltas that ends at a full version has reached its limit."""
        bases = packed.bases(folder.parent)
        chains: dict[str, tuple[int, int]] = {}
        """Bytes and number of the deltas of the longest chain that ends at a version."""
        for name in sorted(bases, key=_number):  # a base is newer than what is based on it
            size, count = chains.get(name, (0, 0))
            base = bases[name]
            longer = size + self._size(folder.with_name(name)), count + 1
            chains[base] = max(chains.get(base, (0, 0)), longer)
        size, count = chains.get(folder.name, (0, 0))
        return size >= CHAIN_SHARE * self._size(folder) or count >= MOST_LINKS

    def _size(self, folder: Path) -> int:
        """Return the bytes of a version on disk; 0 if it is not in 16 bits, or not in the run's own
        folder."""
        if folder.name not in self._bytes:
            own = self._files.folder.path
            # After a folder has moved, the store still has its versions at the old location.
            is_own = not folder.parent.is_dir() or folder.parent.resolve() == own.resolve()
            whole = own / folder.name
            is_delta = packed.is_packed(whole)
            is_kept = is_own and (is_delta or is_sixteen_bit(whole / FILE))
            self._bytes[folder.name] = (
                _bytes_of(packed.delta_folder(whole) if is_delta else whole) if is_kept else 0
            )
        return self._bytes[folder.name]


def _bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _number(name: str) -> int:
    match = re.match(r"version-(\d+)", name)
    return int(match[1]) if match else 0
