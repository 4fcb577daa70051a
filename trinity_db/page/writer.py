"""Stores the verdicts of people, each under the name of the one who gave it."""

import logging
from collections import defaultdict

from trinity_db.database import Database
from trinity_db.errors import DatabaseUnavailable, TrinityError
from trinity_db.labelling.question import question
from trinity_db.labelling.session import Session
from trinity_db.page.threads import Threads
from trinity_db.store import runs

logger = logging.getLogger(__name__)

WRITE_SECONDS = 30.0  # of a statement; to look for pairs in a million rows takes 3, on a busy machine 20
PATIENCE_SECONDS = 2.0  # a restart of the server; then the page says that it waits, and tries again


class Writer(Threads):
    """Sessions of people, a session for each open queue of each. A session does one thing at a time."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._sessions: list[Session] = []
        self._seen: defaultdict[str, set[int]] = defaultdict(set)
        """Labels whose rewards a person saw: a page that is opened anew shows the same row."""

    async def open(self, author: str, run: str, pairs: bool) -> Session:
        """A session of a person at the queue of a run.

        Raises:
            NotFound: there is no such run.
            TrinityError: the run is being deleted, or no database answers.
        """
        session = await self.run(lambda: self._open(author, run, pairs))
        self._sessions.append(session)
        return session

    async def leave(self, session: Session) -> None:
        """End a session, which gives its claims back."""
        self._sessions = [one for one in self._sessions if one is not session]
        await self.run(session.close)

    def finish(self) -> None:
        """End all sessions; the claims that no database takes back end by themselves."""
        for session in self._sessions:
            try:
                session.close()
            except DatabaseUnavailable:
                return  # the next session would wait for it as long
            except TrinityError as error:
                logger.warning("Claims end by themselves: %s", error)

    def _open(self, author: str, name: str, pairs: bool) -> Session:
        with self.database.transaction() as tx:
            run = runs.find(tx, name, "run or data set")
        runs.check_stays(run)
        asked, seen = question(run.config, {}), self._seen[author]
        return Session(self.database, run, author, pairs, asked, PATIENCE_SECONDS, seen=seen)
