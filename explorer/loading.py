"""Which policy version an explorer's engine has, and how it gets another one."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

from trinity_db.errors import ConfigError
from trinity_db.explorer.engines.engine import Engine
from trinity_db.store.policies import PolicyVersion
from trinity_db.weights import cache, packed
from trinity_db.weights.recorded_places import RecordedPlaces

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

WRITE_SECONDS = 0.2  # between two looks for attempts that ended, while the engine loads a version


class LoadedVersion:
    """The policy version that an engine has.

    Args:
        places: the folders that may be loaded.
        write_ended: writes attempts that end while the engine loads a version, which may take minutes.
    """

    def __init__(
        self, engine: Engine, places: RecordedPlaces, write_ended: Callable[[], Awaitable[None]]
    ) -> None:
        self._engine = engine
        self._places = places
        self._write_ended = write_ended
        self._loaded: tuple[int, str] | None = None
        """Version and hash."""
        self._unusable: PolicyVersion | None = None

    @property
    def number(self) -> int | None:
        """None: there is none, or the engine may have another one by now."""
        return None if self._loaded is None else self._loaded[0]

    def is_at(self, policy: PolicyVersion) -> bool:
        """Whether it is this version, with these weights."""
        # By the hash too: after a setback of the server the same number may stand for other weights.
        return self._loaded == (policy.version, policy.checkpoint_hash)

    def forget(self) -> None:
        """Load even the same version again: the engine may not have it any more."""
        self._loaded = None

    async def load(self, policy: PolicyVersion) -> bool:
        """Use a version; False when its files are gone, damaged, or not those that were published.

        Another version follows then: the trainer prunes old ones, and at its start it withdraws damaged ones.

        Raises:
            ConfigError: there is no starting model.
        """
        if self.is_at(policy):
            return True
        error = await self.try_to_load(policy)
        if error is None:
            return True
        if policy.version == 0:
            raise ConfigError(str(error))
        if policy != self._unusable:
            logger.warning("version %d cannot be used: %s", policy.version, error)
        self._unusable = policy
        return False

    async def try_to_load(self, policy: PolicyVersion) -> Exception | None:
        """Load a version; why it cannot be loaded, or None."""
        try:
            self._places.check_folder(policy)
            await self._load(policy)
        except (ConfigError, OSError) as error:
            return error
        logger.info("using policy version %d", policy.version)
        self._loaded = policy.version, policy.checkpoint_hash
        return None

    async def _load(self, policy: PolicyVersion) -> None:
        """Have the engine load a version, again if the trainer converts its folder to a delta meanwhile."""
        digest = policy.checkpoint_hash
        while True:
            made = asyncio.to_thread(cache.whole, policy.checkpoint, policy.version, digest)
            folder = await self._meanwhile(made)
            self._loaded = None  # a load that fails may leave the engine without its previous weights
            try:
                return await self._meanwhile(self._engine.load(folder, policy.version))
            except (ConfigError, OSError):
                was_converted = folder == policy.checkpoint and not folder.is_dir()
                if not was_converted or not packed.place_of(folder).is_dir():
                    raise

    async def _meanwhile(self, work: Coroutine[None, None, Result]) -> Result:
        """Await something that may take minutes, and write what ends in this time."""
        task = asyncio.create_task(work)
        try:
            while not (await asyncio.wait([task], timeout=WRITE_SECONDS))[0]:
                await self._write_ended()
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
