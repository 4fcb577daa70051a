"""Actions on runs for visitors with the right to manage. Each refuses other visitors."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from trinity_db.errors import ConfigError, DatabaseUnavailable, TrinityError
from trinity_db.page.launching import Launcher, Started, name_of
from trinity_db.page.rights import Right, may
from trinity_db.page.threads import Threads
from trinity_db.postgres.connection import Transaction
from trinity_db.store import runs, stopping, workers
from trinity_db.store.stopping import StopRequest
from trinity_db.store.workers import Worker
from trinity_db.worker.service import LEASE_SECONDS

Result = TypeVar("Result")

REFUSED = "You may not start, stop or extend runs here: this needs the right to manage."


class Manager:
    """Starts runs on this machine, and stops runs on all machines."""

    def __init__(self, threads: Threads, launcher: Launcher) -> None:
        self._threads, self._launcher = threads, launcher
        self._turn = asyncio.Lock()  # one check at a time: it uses much memory

    @property
    def folder(self) -> Path:
        """Folder for the configurations of runs."""
        return self._launcher.folder

    def file_of(self, text: str) -> Path:
        """See `Launcher.file_of`."""
        return self._launcher.file_of(text)

    def files_of(self, run: str) -> list[Path]:
        """See `Launcher.files_of`."""
        return self._launcher.files_of(run)

    def started(self, run: str) -> Started | None:
        """Return the last start of a run from this page."""
        return self._launcher.started(run)

    async def check(self, text: str) -> list[str]:
        """Check a configuration, and return a line for each mistake.

        Raises:
            TrinityError: if the visitor may not manage, or `Launcher.check` raises it.
        """
        _refuse_others()
        async with self._turn:
            return await asyncio.to_thread(self._launcher.check, text)

    async def start(self, text: str, change: bool) -> Started:
        """Start the run of a configuration.

        Raises:
            TrinityError: if the visitor may not manage, the run is running, or `Launcher.start` raises it.
        """
        _refuse_others()
        name = await asyncio.to_thread(name_of, text)  # a long text takes a second
        if await self.is_at_work(name):
            raise ConfigError(f"Run '{name}' is running: stop it first.")
        newest = await self._threads.run(partial(self._newest, name))

        def has_begun() -> bool:
            try:
                return self._newest(name) != newest
            except DatabaseUnavailable:
                return True  # unknown: keep its file
            finally:
                self._threads.database.close()  # the thread ends, and its connection with it

        return await asyncio.to_thread(self._launcher.start, text, change, has_begun)

    async def is_at_work(self, name: str) -> bool:
        """Whether a run exists and one of its workers is alive."""

        def look(tx: Transaction) -> bool:
            if name not in runs.names(tx):
                return False
            running = workers.running(tx, runs.find(tx, name).id, LEASE_SECONDS)
            return any(worker.is_alive for worker in running)

        return await self._threads.run(partial(self._decide, look))

    async def stop(self, name: str) -> StopRequest:
        """Ask all workers of a run to stop. If none is alive, end the command that this page started for it.

        Such a command is preparing the run, or is waiting to restart its roles.

        Raises:
            TrinityError: if the visitor may not manage, the run does not exist, or nothing of it is alive.
        """
        _refuse_others()
        started = self._launcher.started(name)
        is_there = started is not None and started.code is None

        def ask(tx: Transaction) -> StopRequest:
            run = runs.find(tx, name)
            return stopping.ask(tx, run, LEASE_SECONDS, must_work=not is_there)

        request = await self._threads.run(partial(self._decide, ask))
        if started is not None and not request.workers:
            started.process.terminate()
        return request

    async def still_at_work(self, name: str, asked_at: datetime) -> list[Worker]:
        """Workers of a run that were asked to stop and are still alive."""

        def look(tx: Transaction) -> list[Worker]:
            return stopping.at_work(tx, runs.find(tx, name), asked_at, LEASE_SECONDS)

        return await self._threads.run(partial(self._decide, look))

    def _newest(self, name: str) -> int | None:
        return self._decide(lambda tx: workers.newest(tx, name))

    def _decide(self, verb: Callable[[Transaction], Result]) -> Result:
        with self._threads.database.transaction() as tx:
            return verb(tx)


def _refuse_others() -> None:
    if not may(Right.MANAGE):
        raise TrinityError(REFUSED)
