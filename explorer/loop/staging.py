"""Fetches the files of policy versions to this machine before the engine needs them.

Sources in order: the trainer's broadcast, its folder, an object store. A thread fetches a version while the
explorer keeps sampling with its current one, so the engine pauses only for loading. An unreachable object
store does not stop sampling at once; the staleness limit does, later.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from trinity_db.errors import ConfigError, MissingExtra, TrinityError
from trinity_db.explorer.loop.store_thread import StoreThread
from trinity_db.models import folder_digest
from trinity_db.store import workers
from trinity_db.store.policies import PolicyVersion
from trinity_db.weights import cache
from trinity_db.weights.broadcast import Lost, Receiver
from trinity_db.weights.bucket import Refused
from trinity_db.weights.manifest import BrokenUpload
from trinity_db.weights.recorded_places import RecordedPlaces

logger = logging.getLogger(__name__)

AGAIN_SECONDS = 5.0  # retry delay after a failure
OWN_FAULT = (
    " The trainer uploads it again, unless its objects are intact: then this machine's disk or memory "
    "corrupts them."
)
LONGEST_SECONDS = 300.0  # maximum retry delay for corrupted objects, as each retry fetches all; it doubles


@dataclass
class _Fetching:
    """A version that a thread is fetching or has tried to fetch."""

    policy: PolicyVersion
    trains: bool
    """Whether it is the newest version, for training; False: a version to evaluate."""
    folder: Path | None = None
    error: Exception | None = None
    ended_at: float | None = None
    times: int = 1
    """Number of consecutive tries."""

    @property
    def pause(self) -> float:
        """Retry delay in seconds. It is short for other errors: an object store may be back soon."""
        if not isinstance(self.error, BrokenUpload):
            return AGAIN_SECONDS
        return min(AGAIN_SECONDS * (1 << min(self.times - 1, 16)), LONGEST_SECONDS)


class Staging:
    """Versions available on this machine.

    Args:
        places: the folders and addresses that versions may be read from.
        changed: called in another thread when a fetch has succeeded or failed.
    """

    def __init__(self, store: StoreThread, places: RecordedPlaces, changed: Callable[[], None]) -> None:
        self._store = store
        self._places = places
        self._changed = changed
        self._fetching: _Fetching | None = None
        self._newest: PolicyVersion | None = None
        """Latest version fetched for training, with its local folder."""
        self._evaluated: PolicyVersion | None = None
        self._failed: dict[bool, _Fetching] = {}
        """Latest failure for training (True) and for evaluation (False). Both may fail, in turn."""
        self._complaints: dict[bool, str] = {}
        self._broken: dict[bool, str] = {}
        """Addresses of corrupted weights, reported to the trainer."""
        self._receiver = Receiver()
        self._refused_broadcast: str | None = None

    async def for_training(self, policy: PolicyVersion) -> PolicyVersion | None:
        """Return the newest version on this machine, and start fetching the requested one if it differs.

        Args:
            policy: the newest version of the run.

        Returns:
            None: no version is available yet.

        Raises:
            TrinityError: if the object store denies access to this machine, and no version is available.
        """
        if policy.weights is None and policy.broadcast_at is None:
            return policy
        await self._look()
        if not _is_same(self._newest, policy):
            self._begin(policy, trains=True)
        here = self._newest
        if here is None or (here.version >= policy.version and not _is_same(here, policy)):
            return None  # the local version was withdrawn
        return here

    async def for_evaluation(self, policy: PolicyVersion) -> PolicyVersion | None:
        """Return exactly this version, or None while it is being fetched."""
        if policy.weights is None:
            return policy
        await self._look()
        for here in (self._newest, self._evaluated):
            if _is_same(here, policy):
                return here
        self._begin(policy, trains=False)
        return None

    def forget(self) -> None:
        """Discard the local versions, whose files are unusable, so that they are looked up again."""
        self._newest = self._evaluated = None

    def close(self) -> None:
        """Stop the process that receives broadcasts. The next version starts another one."""
        self._receiver.close()

    def _begin(self, policy: PolicyVersion, trains: bool) -> None:
        """Start fetching a version, unless a fetch is running or its retry delay has not passed."""
        before = self._fetching
        if before is not None and before.ended_at is None:
            return
        failed, times = self._failed.get(trains), 1
        if failed is not None and failed.policy == policy:
            assert failed.ended_at is not None
            if time.monotonic() - failed.ended_at < failed.pause:
                return
            times = failed.times + 1
        self._fetching = fetching = _Fetching(policy, trains, times=times)
        # A daemon thread: a stopping explorer does not wait for it, and the next fetch removes partial files.
        threading.Thread(target=self._fetch, args=(fetching,), name="fetch", daemon=True).start()

    def _fetch(self, fetching: _Fetching) -> None:
        try:
            fetching.folder = self._received(fetching.policy) or _fetched(fetching.policy, self._places)
        except Exception as error:  # `_look` raises or logs it in the explorer's thread
            fetching.error = error
        fetching.ended_at = time.monotonic()
        self._changed()

    def _received(self, policy: PolicyVersion) -> Path | None:
        """Receive a version from the trainer's broadcast; None: it must be read from its files."""
        if policy.broadcast_at is None:
            return None
        run, begun = policy.checkpoint.parent.name, time.monotonic()
        try:
            self._places.check_broadcast(policy.broadcast_at)
            folder = cache.receive(
                self._receiver, policy.broadcast_at, run, policy.version, policy.checkpoint_hash
            )
        except Lost as error:
            logger.info("version %d: %s", policy.version, error)
            return None
        except ConfigError as error:
            if policy.broadcast_at != self._refused_broadcast:  # warn once, not for every version
                logger.warning("versions are read from their files: %s", error)
            self._refused_broadcast = policy.broadcast_at
            return None
        logger.info("version %d: received in %.1f s", policy.version, time.monotonic() - begun)
        return folder

    async def _look(self) -> None:
        """Take over the result of a finished fetch, and record it in the store.

        Raises:
            TrinityError: if the object store denies access to this machine, and no version is available.
        """
        ended = self._fetching
        if ended is None or ended.ended_at is None:
            return
        if ended.folder is not None:
            here = replace(ended.policy, checkpoint=ended.folder)
            if ended.trains:
                self._newest = here
            else:
                self._evaluated = here
            self._fetching = None
            for known in (self._failed, self._complaints, self._broken):
                known.pop(ended.trains, None)
            await self._record(ended.policy.version)
        elif ended.error is not None:
            self._fetching = None
            self._failed[ended.trains] = ended
            if str(ended.error) != self._complaints.get(ended.trains):
                await self._complain(ended.policy, ended.trains, ended.error)

    async def _complain(self, policy: PolicyVersion, trains: bool, error: Exception) -> None:
        """Log once why a version cannot be fetched. Report it to the trainer if uploading it again may help.

        Raises:
            TrinityError: if the object store denies access to this machine, and no version is available.
        """
        if not isinstance(error, TrinityError | OSError):
            raise error
        if self._newest is None and isinstance(error, TrinityError) and not _may_pass(error):
            raise error
        self._complaints[trains] = str(error)
        whose = OWN_FAULT if isinstance(error, BrokenUpload) else ""
        logger.warning("version %d cannot be fetched yet: %s%s", policy.version, error, whose)
        if isinstance(error, BrokenUpload) and policy.weights is not None:
            self._broken[trains] = policy.weights
            await self._record(None)

    async def _record(self, staged: int | None) -> None:
        """Record the staged version and one corrupted version; others follow after its repair."""
        worker_id, broken = self._store.worker_id, next(iter(self._broken.values()), None)
        await self._store.decide(lambda tx: workers.record_staged(tx, worker_id, staged, broken))


def _fetched(policy: PolicyVersion, places: RecordedPlaces) -> Path:
    """Return the version in the trainer's folder if visible here, otherwise fetch it from the object store.

    Raises:
        TrinityError: if it is in neither, or `places` does not allow its location; and the errors of
            `cache.fetch`.
    """
    if policy.weights is None:
        places.check_folder(policy)
    if places.allows_folder(policy) and folder_digest.verify(policy.checkpoint, policy.checkpoint_hash):
        return policy.checkpoint
    if policy.weights is None:
        raise TrinityError(f"it was not received by broadcast, and {policy.checkpoint} is not visible here.")
    places.check_address(policy)
    begun = time.monotonic()
    folder = cache.fetch(policy.weights, policy.checkpoint_hash)
    logger.info("version %d: fetched in %.1f s", policy.version, time.monotonic() - begun)
    return folder


def _is_same(here: PolicyVersion | None, policy: PolicyVersion) -> bool:
    """Whether both are the same version with the same weights, in any folder."""
    # Compare hashes too: after the server lost commits, a version number may be reused for other weights.
    if here is None:
        return False
    return (here.version, here.checkpoint_hash) == (policy.version, policy.checkpoint_hash)


def _may_pass(error: TrinityError) -> bool:
    """Whether a retry may help: the object store is unreachable, or the trainer uploads the objects again."""
    return not isinstance(error, Refused | ConfigError | MissingExtra)
