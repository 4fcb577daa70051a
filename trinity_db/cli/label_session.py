"""One person at a queue: the claim that is shown, the next one, the verdicts, and the way back.

The next claim is made while the person reads, so that it is there at once. All claims are renewed as long as
the session lives. A session that is killed leaves its claims to end by themselves.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from trinity_db.database import Database, Transaction
from trinity_db.store import reviews, runs, verdicts
from trinity_db.store.reviews import Question
from trinity_db.store.verdicts import Claim, Verdict

Result = TypeVar("Result")

RETRY_SECONDS = 10  # enough to get past a restart of the server; then the person decides
ASKED_AT_ONCE = 256  # rows or pairs that enter the queue when it is empty
RENEW_SECONDS = verdicts.LEASE_SECONDS / 4


@dataclass
class Session:
    """A person's claims to a queue of a run."""

    database: Database
    run: runs.Run
    author: str
    pairs: bool
    question: Question
    """What people are asked about rows or pairs that enter the queue."""
    given: int = 0
    """Verdicts in this session, less those that were taken back."""
    _claims: deque[Claim] = field(default_factory=deque)
    """The one that is shown, and those after it."""
    _renewed: float = field(default_factory=time.monotonic)

    def current(self) -> Claim | None:
        """What the person judges now; None: nothing waits for this person."""
        if not self._claims:
            self.prepare()
        return self._claims[0] if self._claims else None

    def prepare(self) -> None:
        """Claim what comes after the current one, if it is not there yet."""
        if len(self._claims) < 2 and (found := self._retry(self._next)) is not None:
            self._claims.append(found)

    def decide(self, verdict: Verdict) -> None:
        """Judge the current claim, and go on to the next.

        Raises:
            LeaseLost: another person judges it by now. The session goes on to the next all the same.
        """
        claim = self._claims.popleft()
        self._retry(lambda tx: verdicts.decide(tx, claim, self.author, verdict))
        self.given += 1

    def undo(self) -> bool:
        """Take the last verdict back, and judge that one again; whether there was one."""
        back = self._retry(lambda tx: verdicts.undo(tx, self.run.id, self.author, self.pairs))
        if back is not None:
            self._claims.appendleft(back)
            self.given -= 1
        return back is not None

    def renew(self) -> None:
        """Keep the claims, where it is time for that."""
        if self._claims and time.monotonic() - self._renewed > RENEW_SECONDS:
            self._retry(lambda tx: verdicts.renew(tx, list(self._claims)))
            self._renewed = time.monotonic()

    def progress(self) -> reviews.Progress:
        """How far the person is."""
        return self._retry(lambda tx: reviews.progress(tx, self.run.id, self.author, self.pairs))

    def close(self) -> None:
        """Give back what was not judged."""
        while self._claims:
            claim = self._claims.popleft()
            self._retry(lambda tx, claim=claim: verdicts.release(tx, claim))  # type: ignore[misc]

    def _next(self, tx: Transaction) -> Claim | None:
        """A claim; where the queue has none, rows that the run waits for or pairs enter it first."""
        found = verdicts.claim(tx, self.run.id, self.author, self.pairs)
        if found is not None:
            return found
        if self.pairs:
            asked = reviews.ask_pairs(tx, self.run, self.question, ASKED_AT_ONCE)
        else:
            asked = reviews.ask_awaited(tx, self.run.id, self.question, ASKED_AT_ONCE)
        return verdicts.claim(tx, self.run.id, self.author, self.pairs) if asked else None

    def _retry(self, decide: Callable[[Transaction], Result]) -> Result:
        deadline = time.monotonic() + RETRY_SECONDS

        def once() -> Result:
            with self.database.transaction() as tx:
                return decide(tx)

        return self.database.retry(once, give_up=lambda: time.monotonic() > deadline)
