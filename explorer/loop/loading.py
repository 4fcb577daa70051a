"""Tracks the policy version loaded in an explorer's engine, and loads other versions."""

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

WRITE_SECONDS = 0.2  # between writes of finished attempts while the engine loads a version


class LoadedVersion:
    """The policy version loaded in an engine.

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
        """Version and hash of its weights."""
        self._unusable: PolicyVersion | None = None

    @property
    def number(self) -> int | None:
        """Number of the loaded version; None: none, or unknown."""
        return None if self._loaded is None else self._loaded[0]

    def is_at(self, policy: PolicyVersion) -> bool:
        """Whether the engine has this version with these weights."""
        # Compare hashes too: after the server lost commits, a version number may be reused for other weights.
        return self._loaded == (policy.version, policy.checkpoint_hash)

    def forget(self) -> None:
        """Forget the loaded version, so that even the same one is loaded again."""
        self._loaded = None

    async def load(self, policy: PolicyVersion) -> bool:
        """Load a version. False if its files are missing, corrupted, or not the published ones.

        A newer version follows then: the trainer prunes old versions, and withdraws corrupted ones at its
        start.

        Raises:
            ConfigError: if the initial model cannot be loaded.
        """
        if self.is_at(policy):
            return True
        error = await self.try_to_load(policy)
        if error is None:
            return True
        if policy.version == 0:
            raise ConfigError(str(error))
        if policy != self._unusable:
            logger.warning("version %d is unusable: %s", policy.version, error)
        self._unusable = policy
        return False

    async def try_to_load(self, policy: PolicyVersion) -> Exception | None:
        """Load a version; return the error if it cannot be loaded, otherwise None."""
        try:
            self._places.check_folder(policy)
            await self._load(policy)
        except (ConfigError, OSError) as error:
            return error
        logger.info("using policy version %d", policy.version)
        self._loaded = policy.version, policy.checkpoint_hash
        return None

    async def _load(self, policy: PolicyVersion) -> None:
        """Load a version into the engine; retry if the trainer converts its folder to a delta meanwhile."""
        digest = policy.checkpoint_hash
        while True:
            made = asyncio.to_thread(cache.whole, policy.checkpoint, policy.version, digest)
            folder = await self._meanwhile(made)
            self._loaded = None  # a failed load may leave the engine without its previous weights
            try:
                return await self._meanwhile(self._engine.load(folder, policy.version))
            except (ConfigError, OSError):
                was_converted = folder == policy.checkpoint and not folder.is_dir()
                if not was_converted or not packed.delta_folder(folder).is_dir():
                    raise

    async def _meanwhile(self, work: Coroutine[None, None, Result]) -> Result:
        """Await a task that may take minutes, writing finished attempts meanwhile."""
        task = asyncio.create_task(work)
        try:
            while not (await asyncio.wait([task], timeout=WRITE_SECONDS))[0]:
                await self._write_ended()
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
