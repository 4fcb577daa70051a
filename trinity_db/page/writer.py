"""Stores people's verdicts, each under the name of its author."""

import logging
from collections import defaultdict

from trinity_db.errors import DatabaseUnavailable, TrinityError
from trinity_db.page.threads import Threads
from trinity_db.people.question import question
from trinity_db.people.session import Session
from trinity_db.postgres.connection import Database
from trinity_db.store import runs

logger = logging.getLogger(__name__)

WRITE_SECONDS = 30.0  # per statement; finding pairs in a million rows takes 3 s, on a busy machine 20 s
PATIENCE_SECONDS = 2.0  # enough for a server restart; then the page shows a notice, and retries


class Writer(Threads):
    """People's sessions, one for each open queue of a person. A session does one thing at a time."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._sessions: list[Session] = []
        self._seen: defaultdict[str, set[int]] = defaultdict(set)
        """Labels whose rewards a person has seen: reopening the page shows the same row."""

    async def open(self, author: str, run: str, pairs: bool) -> Session:
        """Open a person's session at the queue of a run.

        Raises:
            NotFound: if the run does not exist.
            TrinityError: if the run is being deleted, or no database answers.
        """
        session = await self.run(lambda: self._open(author, run, pairs))
        self._sessions.append(session)
        return session

    async def leave(self, session: Session) -> None:
        """End a session, which gives back its claims."""
        self._sessions = [open_session for open_session in self._sessions if open_session is not session]
        await self.run(session.close)

    def finish(self) -> None:
        """End all sessions; claims that cannot be given back expire."""
        for session in self._sessions:
            try:
                session.close()
            except DatabaseUnavailable:
                return  # the next session would wait just as long
            except TrinityError as error:
                logger.warning("Claims will expire: %s", error)

    def _open(self, author: str, name: str, pairs: bool) -> Session:
        with self.database.transaction() as tx:
            run = runs.find(tx, name, "run or data set")
        runs.check_stays(run)
        asked_question, seen = question(run.config, {}), self._seen[author]
        return Session(self.database, run, author, pairs, asked_question, PATIENCE_SECONDS, seen=seen)
