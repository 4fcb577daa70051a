"""Asks the database for pages."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from psycopg.errors import QueryCanceled

from trinity_db.database import Database
from trinity_db.errors import DatabaseUnavailable, TrinityError
from trinity_db.page.threads import Threads

Result = TypeVar("Result")

STATEMENT_SECONDS = 10.0  # people wait no longer, and other visitors wait for the thread


class Reader(Threads):
    """Answers questions of pages, some at a time. Others wait for their turn."""

    @property
    def url(self) -> str:
        """Of the store, with the reader's login."""
        return self.database.url

    async def ask(self, read: Callable[[Database], Result]) -> Result:
        """What a question finds.

        Raises:
            DatabaseUnavailable: no database answers.
            TrinityError: the question failed, or took too long; with what to do.
        """
        return await self.run(partial(self._read, read))

    def _read(self, read: Callable[[Database], Result]) -> Result:
        try:
            return read(self.database)
        except DatabaseUnavailable as error:
            if isinstance(error.__cause__, QueryCanceled):
                raise TrinityError(
                    f"The store did not answer in {STATEMENT_SECONDS:.0f} s: ask for less, as for one run."
                ) from error
        return read(self.database)  # the connection was lost: a new one may be had at once
