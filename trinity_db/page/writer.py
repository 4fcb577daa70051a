"""Stores the verdicts of the person that the page was started for."""

from contextlib import suppress

from trinity_db.database import Database
from trinity_db.errors import TrinityError
from trinity_db.labelling.question import question
from trinity_db.labelling.session import Session
from trinity_db.page.threads import Threads
from trinity_db.store import runs

PATIENCE_SECONDS = 2.0  # a restart of the server; then the page says that it waits, and tries again


class Writer(Threads):
    """Sessions of one person, a session for each open queue. A session does one thing at a time."""

    def __init__(self, database: Database, author: str) -> None:
        super().__init__(database)
        self.author = author
        self._sessions: list[Session] = []
        self._seen: set[int] = set()
        """Labels whose rewards the person saw: a page that is opened anew shows the same row."""

    async def open(self, name: str, pairs: bool) -> Session:
        """A session at the queue of a run.

        Raises:
            NotFound: there is no such run.
            TrinityError: the run is being deleted, or no database answers.
        """
        session = await self.run(lambda: self._open(name, pairs))
        self._sessions.append(session)
        return session

    async def leave(self, session: Session) -> None:
        """End a session, which gives its claims back."""
        self._sessions = [one for one in self._sessions if one is not session]
        await self.run(session.close)

    def finish(self) -> None:
        """End all sessions; the claims that no database takes back end by themselves."""
        for session in self._sessions:
            with suppress(TrinityError):
                session.close()

    def _open(self, name: str, pairs: bool) -> Session:
        with self.database.transaction() as tx:
            run = runs.find(tx, name, "run or data set")
        runs.check_stays(run)
        asked = question(run.config, {})
        return Session(self.database, run, self.author, pairs, asked, PATIENCE_SECONDS, seen=self._seen)
