"""One person's work on a queue: the current claim, the next one, verdicts, and undo.

The next claim is made while the person reads, so that it is ready at once. All claims are renewed while
the session lives. The claims of a killed session expire.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from trinity_db.errors import LeaseLost, NotFound
from trinity_db.people import keys
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.schema.states import LabelState
from trinity_db.schema.typed_rows import RewardPart
from trinity_db.store import reviews, runs, verdicts
from trinity_db.store.reviews import Question
from trinity_db.store.verdicts import PersonVerdict, ReviewClaim

Result = TypeVar("Result")

RETRY_SECONDS = 10  # enough for a server restart; then the person decides
ASKED_AT_ONCE = 256  # rows or pairs that enter the queue when it is empty
RENEW_SECONDS = verdicts.LEASE_SECONDS / 4


@dataclass
class Session:
    """A person's claims in a run's queue."""

    database: Database
    run: runs.Run
    author: str
    pairs: bool
    question: Question
    """Question for rows or pairs that enter the queue."""
    patience: float = RETRY_SECONDS
    """Seconds for which it retries if no database answers."""
    verdicts: int = 0
    """Number of verdicts in this session, minus undone ones."""
    _claims: deque[ReviewClaim] = field(default_factory=deque)
    """Current claim, and those prepared after it."""
    _renewed: float = field(default_factory=time.monotonic)
    _began: float = field(default_factory=time.monotonic)
    seen: set[int] = field(default_factory=set)
    """Labels whose rewards the person has seen; sessions may share the set."""

    @property
    def shown(self) -> ReviewClaim | None:
        """Current claim if it exists already; runs no query."""
        return self._claims[0] if self._claims else None

    def current(self) -> ReviewClaim | None:
        """Return the current claim; None if nothing waits for this person.

        An expired claim is made again with a new random order: otherwise the person would get it twice.
        """
        if self._claims:
            renewed = self._hold()
            self._claims = deque(claim for claim in self._claims if claim.label_id in renewed)
        if not self._claims:
            self.prepare()
        return self.shown

    def prepare(self) -> None:
        """Claim the next item, unless one is prepared already."""
        if len(self._claims) < 2 and (claim := self._retry(self._next)) is not None:
            self._claims.append(claim)

    def begin(self) -> None:
        """Start the clock of the current claim: the person sees it from now on."""
        self._began = time.monotonic()

    def rewards(self) -> list[RewardPart]:
        """Return the parts of the current claim's rewards. Its verdict is not blind from now on."""
        claim = self._claims[0]
        parts = self._retry(lambda tx: verdicts.reward_parts(tx, claim))
        self.seen.add(claim.label_id)
        return parts

    def verdict(self, key: str) -> PersonVerdict:
        """Return the verdict on the current claim that a key gives now."""
        claim = self._claims[0]
        state = keys.ENDS.get(key, LabelState.SUBMITTED)
        seconds = time.monotonic() - self._began
        return PersonVerdict(state, keys.value(claim, key), seconds, claim.label_id not in self.seen)

    def decide(self, verdict: PersonVerdict) -> None:
        """Store the verdict on the current claim, and move to the next. May be repeated after
        DatabaseUnavailable.

        Raises:
            LeaseLost: if another person judges the item by now. The session moves to the next anyway.
            NotFound: if the item is no longer in the queue. The session moves to the next anyway.
            DatabaseUnavailable: if no database answers; the claim stays the current one.
        """
        claim = self._claims[0]
        try:
            self._retry(lambda tx: verdicts.decide(tx, claim, self.author, verdict))
        except (LeaseLost, NotFound):
            self._claims.popleft()
            raise
        self._claims.popleft()
        self.verdicts += 1

    def undo(self) -> bool:
        """Undo the last verdict, and make its item the current one; False without a verdict."""
        last = self._retry(lambda tx: verdicts.last_decided(tx, self.run.id, self.author, self.pairs))
        if last is None:
            return False
        # By its id: retried after an unclear commit, it does not undo an older verdict as well.
        self._claims.appendleft(self._retry(lambda tx: verdicts.undo(tx, last, self.author)))
        self.verdicts -= 1
        return True

    def renew(self) -> None:
        """Renew the claims if it is time."""
        if self._claims and time.monotonic() - self._renewed > RENEW_SECONDS:
            self._hold()

    def progress(self) -> reviews.Progress:
        """Return the person's progress."""
        return self._retry(lambda tx: reviews.progress(tx, self.run.id, self.author, self.pairs))

    def close(self) -> None:
        """Release the claims that were not judged."""
        while self._claims:
            claim = self._claims.popleft()
            self._retry(lambda tx, claim=claim: verdicts.release(tx, claim))  # type: ignore[misc]

    def _hold(self) -> set[int]:
        """Renew the claims; return the labels of claims that had not expired."""
        renewed = self._retry(lambda tx: verdicts.renew(tx, list(self._claims)))
        self._renewed = time.monotonic()
        return renewed

    def _next(self, tx: Transaction) -> ReviewClaim | None:
        """Claim an item; if the queue is empty, first add rows that the run waits for, or pairs."""
        claim = verdicts.claim(tx, self.run.id, self.author, self.pairs)
        if claim is not None:
            return claim
        if self.pairs:
            num_added = reviews.ask_pairs(tx, self.run, self.question, ASKED_AT_ONCE)
        else:
            num_added = reviews.ask_awaited(tx, self.run.id, self.question, ASKED_AT_ONCE)
        return verdicts.claim(tx, self.run.id, self.author, self.pairs) if num_added else None

    def _retry(self, decide: Callable[[Transaction], Result]) -> Result:
        deadline = time.monotonic() + self.patience

        def once() -> Result:
            with self.database.transaction() as tx:
                return decide(tx)

        return self.database.retry(once, give_up=lambda: time.monotonic() > deadline)
