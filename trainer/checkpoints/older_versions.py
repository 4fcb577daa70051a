"""Keeps older versions in 16 bits as deltas, so that each of a run's versions can be loaded later.

A thread converts the versions that need not be whole, the oldest first. Its delta is based on the next newer
version that is whole (trinity_db/weights/packed.py). The delta is written to a temporary folder, flushed, and
checked to give the version's digest, before it gets its name. Only then the whole folder is removed, in a
transaction in which this worker is the run's trainer and no other run starts from the version. So a crash at
any time leaves the version whole or as a delta.
"""

import logging
import re
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

from trinity_db import durable
from trinity_db.database import Transaction
from trinity_db.errors import LeaseLost
from trinity_db.models.weights_file import FILE, is_sixteen_bit
from trinity_db.store import policies, workers
from trinity_db.trainer.checkpoints import writing
from trinity_db.trainer.checkpoints.run_files import RunFiles
from trinity_db.weights import packed

logger = logging.getLogger(__name__)

CHAIN_SHARE = 0.5
"""A version stays whole if the deltas of a chain that ends at it take this share of its bytes: loading the
oldest would take more than twice the time of a whole one."""
MOST_LINKS = 64  # deltas of a chain: so many versions are lost if the one at its end is damaged
MOST_WAITING = 8  # versions that wait to be converted, before the trainer waits for one of them


class OlderVersions:
    """The older versions of one run, and the thread that converts them.

    Args:
        keep: number of newest versions that stay whole. They do not count to the share of the disk.
        share: of the disk space that is free or taken by older versions; older versions take no more.
    """

    def __init__(self, files: RunFiles, keep: int, share: float) -> None:
        self._files, self._keep, self._share = files, keep, share
        self._bytes: dict[str, int] = {}
        """Of versions by the names of their folders, whole or as deltas. 0: it is not in 16 bits."""
        self._recorded: Sequence[policies.PolicyVersion] = ()
        """Versions in 16 bits, newest first."""
        self._unpackable: set[str] = set()
        """The names of versions whose deltas would be too large, or whose files are damaged."""
        self._waiting: list[policies.PolicyVersion] = []
        """The versions to convert, oldest first."""
        self._is_full = False
        """Whether the disk had no room for a version."""
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        """None: it has ended, or will not look for versions again."""

    def kept(self, tx: Transaction) -> list[int]:
        """The versions in 16 bits, whose weights stay, without the oldest that the disk has no room for."""
        if not self._share:
            return []
        recorded = policies.with_checkpoint(tx, self._files.run.id)
        found = [policy for policy in recorded if policy.version > 0 and self._size(policy.checkpoint)]
        older = [self._size(policy.checkpoint) for policy in found[self._keep :]]
        limit = self._share * (shutil.disk_usage(self._files.folder.path).free + sum(older))
        fit, total = 0, 0
        while fit < len(older) and total + older[fit] <= limit:
            total += older[fit]
            fit += 1
        if fit < len(older) and not self._is_full:
            self._is_full = True
            logger.info(
                "version %d and older: deleted, as trainer.keep_deltas allows",
                found[self._keep + fit].version,
            )
        self._recorded = found[: self._keep + fit]
        return [policy.version for policy in self._recorded]

    def convert(self, packable: set[int]) -> None:
        """Have the thread convert these versions, unless they are deltas already."""
        with self._changed:
            self._waiting = [
                policy
                for policy in reversed(self._recorded)
                if policy.version in packable
                and policy.checkpoint.name not in self._unpackable
                and policy.checkpoint.is_dir()
            ]
            if self._waiting and self._thread is None:
                # A daemon: a trainer that stops does not wait. The next start removes what is unfinished.
                self._thread = threading.Thread(target=self._run, name="deltas", daemon=True)
                self._thread.start()

    def catch_up(self) -> None:
        """Wait while too many versions are whole that need not be, so that they do not fill the disk."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) <= MOST_WAITING)

    def wait(self, seconds: float | None = None) -> None:
        """Wait for the conversions, but not longer than this."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)

    def abandon(self) -> None:
        """Wait for the conversion under way, and begin no other one."""
        with self._changed:
            self._waiting = []
        self.wait()

    def _run(self) -> None:
        try:
            while (policy := self._next()) is not None:
                self._convert(policy)
        except Exception as error:  # a version stays whole; the next publication begins again
            if not isinstance(error, LeaseLost):  # the trainer's own thread reports that
                logger.warning("older versions are not made deltas now: %s", error)
            with self._changed:
                self._waiting, self._thread = [], None
                self._changed.notify_all()
        finally:
            self._files.database.close()  # the connection of this thread

    def _next(self) -> policies.PolicyVersion | None:
        """The next version to convert. None if all are converted; then the thread ends."""
        with self._changed:
            self._changed.notify_all()
            if not self._waiting:
                self._thread = None
                return None
            return self._waiting.pop(0)

    def _convert(self, policy: policies.PolicyVersion) -> None:
        """Replace a version's folder by a delta, unless its chain would become too long."""
        folder, base = policy.checkpoint, self._base(policy)
        if not folder.is_dir() or base is None:
            return
        if self._ends_long_chain(folder):
            self._unpackable.add(folder.name)
            return
        aside = writing.aside_of(folder)
        try:
            is_worth_it = packed.write(folder, base, policy.checkpoint_hash, aside)
        except packed.Broken as error:
            logger.warning("version %d: %s", policy.version, error)
            is_worth_it = False
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)
            raise writing.unwritable(f"The delta of {folder}", error) from error
        if not is_worth_it:
            shutil.rmtree(aside, ignore_errors=True)
            self._unpackable.add(folder.name)
            return
        place = packed.place_of(folder)
        shutil.rmtree(place, ignore_errors=True)
        writing.rename(aside, place)
        self._remove_whole(policy, place)

    def _remove_whole(self, policy: policies.PolicyVersion, place: Path) -> None:
        """Remove a version's whole folder, or its delta if the version has to be whole again."""
        folder = policy.checkpoint
        removed = writing.aside_of(folder)
        with self._files.database.transaction() as tx:
            workers.hold_place(tx, self._files.worker_id)
            if may := policies.may_pack(tx, self._files.run.id, policy):
                folder.rename(removed)
        if may:
            durable.flush(folder.parent)
            self._bytes[folder.name] = _bytes_of(place)
            shutil.rmtree(removed, ignore_errors=True)
        else:
            shutil.rmtree(place, ignore_errors=True)

    def _base(self, policy: policies.PolicyVersion) -> Path | None:
        """The folder of the next newer whole version in 16 bits. None if none exists."""
        newer = [one for one in self._recorded if one.version > policy.version and one.checkpoint.is_dir()]
        return newer[-1].checkpoint if newer else None

    def _ends_long_chain(self, folder: Path) -> bool:
        """Whether the longest chain of deltas that ends at a whole version is as long as it may become."""
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
        """Bytes of a version on disk; 0 if it is not in 16 bits, or in a folder that is not the run's own."""
        if folder.name not in self._bytes:
            own = self._files.folder.path
            # A folder that was moved has its versions on record in the place where it was.
            is_own = not folder.parent.is_dir() or folder.parent.resolve() == own.resolve()
            whole = own / folder.name
            is_delta = packed.is_packed(whole)
            is_kept = is_own and (is_delta or is_sixteen_bit(whole / FILE))
            self._bytes[folder.name] = (
                _bytes_of(packed.place_of(whole) if is_delta else whole) if is_kept else 0
            )
        return self._bytes[folder.name]


def _bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _number(name: str) -> int:
    found = re.match(r"version-(\d+)", name)
    return int(found[1]) if found else 0
