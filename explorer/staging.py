"""Has the files of a version on this machine before the engine needs them.

They come by the trainer's broadcast, from its folder, or from an object store, in this order. A thread
fetches them while the explorer samples on with the version that it has. So the engine pauses for loading
alone, and an object store that is away stops nothing at once: the limit of staleness does, later.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from trinity_db.errors import ConfigError, MissingExtra, TrinityError
from trinity_db.explorer.store_thread import StoreThread
from trinity_db.models import folder_digest
from trinity_db.store import workers
from trinity_db.store.policies import PolicyVersion
from trinity_db.weights import cache
from trinity_db.weights.broadcast import Lost, Receiver
from trinity_db.weights.bucket import Refused
from trinity_db.weights.manifest import Broken
from trinity_db.weights.recorded_places import RecordedPlaces

logger = logging.getLogger(__name__)

AGAIN_SECONDS = 5.0  # after a failure
OWN_FAULT = (
    " The trainer uploads it again, unless it finds the objects whole: then this machine's disk or memory "
    "damages them."
)
LONGEST_SECONDS = 300.0  # the pause doubles up to this while objects come damaged: each try fetches all


@dataclass
class _Fetching:
    """A version that a thread fetches, or has tried to."""

    policy: PolicyVersion
    trains: bool
    """Whether it is the newest one, and not one that is evaluated."""
    folder: Path | None = None
    error: Exception | None = None
    ended_at: float | None = None
    times: int = 1
    """How often it was tried in a row."""

    @property
    def pause(self) -> float:
        """Seconds after a failure. An object store that comes back is found soon."""
        if not isinstance(self.error, Broken):
            return AGAIN_SECONDS
        return min(AGAIN_SECONDS * (1 << min(self.times - 1, 16)), LONGEST_SECONDS)


class Staging:
    """The versions that are on this machine.

    Args:
        places: the folders and addresses that versions may be read from.
        changed: called by a thread when a version is there, or cannot be fetched.
    """

    def __init__(self, store: StoreThread, places: RecordedPlaces, changed: Callable[[], None]) -> None:
        self._store = store
        self._places = places
        self._changed = changed
        self._fetching: _Fetching | None = None
        self._newest: PolicyVersion | None = None
        """The version that came last of those for training, with its folder here."""
        self._evaluated: PolicyVersion | None = None
        self._failed: dict[bool, _Fetching] = {}
        """What failed last, for training and for evaluation. Both may be wanted in turn, and both fail."""
        self._complaints: dict[bool, str] = {}
        self._broken: dict[bool, str] = {}
        """Addresses of what is damaged, for the trainer."""
        self._receiver = Receiver()
        self._refused_broadcast: str | None = None

    async def for_training(self, policy: PolicyVersion) -> PolicyVersion | None:
        """The newest version that is here. This one is fetched meanwhile if it is another one.

        Args:
            policy: the newest version of the run.

        Returns:
            None: there is none yet.

        Raises:
            TrinityError: the object store refuses this machine, and there is no version to go on with.
        """
        if policy.weights is None and policy.broadcast_at is None:
            return policy
        await self._look()
        if not _is_same(self._newest, policy):
            self._begin(policy, trains=True)
        here = self._newest
        if here is None or (here.version >= policy.version and not _is_same(here, policy)):
            return None  # the one that is here was withdrawn
        return here

    async def for_evaluation(self, policy: PolicyVersion) -> PolicyVersion | None:
        """This very version, or None: it is being fetched."""
        if policy.weights is None:
            return policy
        await self._look()
        for here in (self._newest, self._evaluated):
            if _is_same(here, policy):
                return here
        self._begin(policy, trains=False)
        return None

    def forget(self) -> None:
        """Look for the files again: those that were here cannot be used."""
        self._newest = self._evaluated = None

    def close(self) -> None:
        """End the process that receives versions. The next version starts another one."""
        self._receiver.close()

    def _begin(self, policy: PolicyVersion, trains: bool) -> None:
        """Fetch a version unless one is being fetched, or this one just failed."""
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
        # A daemon: an explorer that is told to stop does not wait, and the next fetch removes the files.
        threading.Thread(target=self._fetch, args=(fetching,), name="fetch", daemon=True).start()

    def _fetch(self, fetching: _Fetching) -> None:
        try:
            fetching.folder = self._received(fetching.policy) or _fetched(fetching.policy, self._places)
        except Exception as error:  # `_look` raises it, or says it, in the explorer's own thread
            fetching.error = error
        fetching.ended_at = time.monotonic()
        self._changed()

    def _received(self, policy: PolicyVersion) -> Path | None:
        """A version that the trainer sends to all explorers at once; None: it must come from its files."""
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
            if policy.broadcast_at != self._refused_broadcast:  # once, and not for each version
                logger.warning("versions come from their files: %s", error)
            self._refused_broadcast = policy.broadcast_at
            return None
        logger.info("version %d: received in %.1f s", policy.version, time.monotonic() - begun)
        return folder

    async def _look(self) -> None:
        """Take over what the thread has fetched, and record it.

        Raises:
            TrinityError: the object store refuses this machine, and there is no version to go on with.
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
        """Say once why a version cannot be fetched. Record it if the trainer can mend it.

        Raises:
            TrinityError: the object store refuses this machine, and there is no version to go on with.
        """
        if not isinstance(error, TrinityError | OSError):
            raise error
        if self._newest is None and isinstance(error, TrinityError) and not _may_pass(error):
            raise error
        self._complaints[trains] = str(error)
        whose = OWN_FAULT if isinstance(error, Broken) else ""
        logger.warning("version %d cannot be fetched yet: %s%s", policy.version, error, whose)
        if isinstance(error, Broken) and policy.weights is not None:
            self._broken[trains] = policy.weights
            await self._record(None)

    async def _record(self, staged: int | None) -> None:
        """Record what is here now, and one version that is damaged; another one follows when it is mended."""
        worker_id, broken = self._store.worker_id, next(iter(self._broken.values()), None)
        await self._store.decide(lambda tx: workers.record_staged(tx, worker_id, staged, broken))


def _fetched(policy: PolicyVersion, places: RecordedPlaces) -> Path:
    """A version from the trainer's folder if this machine sees it, else from the object store.

    Raises:
        TrinityError: it is in neither, or is where `places` does not allow it; or as `cache.fetch`.
    """
    if policy.weights is None:
        places.check_folder(policy)
    if places.allows_folder(policy) and folder_digest.verify(policy.checkpoint, policy.checkpoint_hash):
        return policy.checkpoint
    if policy.weights is None:
        raise TrinityError(f"it did not come by broadcast, and {policy.checkpoint} is not seen here.")
    places.check_address(policy)
    begun = time.monotonic()
    folder = cache.fetch(policy.weights, policy.checkpoint_hash)
    logger.info("version %d: fetched in %.1f s", policy.version, time.monotonic() - begun)
    return folder


def _is_same(here: PolicyVersion | None, policy: PolicyVersion) -> bool:
    """Whether it is this version with these weights, in any folder."""
    # By the hash too: after a setback of the server the same number may stand for other weights.
    if here is None:
        return False
    return (here.version, here.checkpoint_hash) == (policy.version, policy.checkpoint_hash)


def _may_pass(error: TrinityError) -> bool:
    """Whether trying again may help: an object store that is away, or objects that the trainer puts again."""
    return not isinstance(error, Refused | ConfigError | MissingExtra)
