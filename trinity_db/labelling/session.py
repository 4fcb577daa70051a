"""One person at a queue: the claim that is shown, the next one, the verdicts, and the way back.

The next claim is made while the person reads, so that it is there at once. All claims are renewed as long as
the session lives. A session that is killed leaves its claims to end by themselves.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from psycopg.rows import DictRow

from trinity_db.database import Database, Transaction
from trinity_db.errors import LeaseLost, NotFound
from trinity_db.labelling import keys
from trinity_db.schema.states import LabelState
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
    patience: float = RETRY_SECONDS
    """For how many seconds it tries again where no database answers."""
    given: int = 0
    """Verdicts in this session, less those that were taken back."""
    _claims: deque[Claim] = field(default_factory=deque)
    """The one that is shown, and those after it."""
    _renewed: float = field(default_factory=time.monotonic)
    _began: float = field(default_factory=time.monotonic)
    seen: set[int] = field(default_factory=set)
    """Labels whose rewards the person saw, in other sessions too if these share it."""

    @property
    def shown(self) -> Claim | None:
        """The current claim if it was made already; asks no database."""
        return self._claims[0] if self._claims else None

    def current(self) -> Claim | None:
        """What the person judges now; None: nothing waits for this person.

        A claim that has ended since is made anew, with another lot: otherwise the person would get it twice.
        """
        if self._claims:
            held = self._hold()
            self._claims = deque(claim for claim in self._claims if claim.label_id in held)
        if not self._claims:
            self.prepare()
        return self.shown

    def prepare(self) -> None:
        """Claim what comes after the current one, if it is not there yet."""
        if len(self._claims) < 2 and (found := self._retry(self._next)) is not None:
            self._claims.append(found)

    def begin(self) -> None:
        """The person sees the current claim from now on: its seconds are counted from here."""
        self._began = time.monotonic()

    def rewards(self) -> list[DictRow]:
        """What the rewards of the current claim are made of. Its verdict is not blind from now on."""
        claim = self._claims[0]
        parts = self._retry(lambda tx: verdicts.reward_parts(tx, claim))
        self.seen.add(claim.label_id)
        return parts

    def verdict(self, key: str) -> Verdict:
        """What a key says of the current claim now."""
        claim = self._claims[0]
        state = keys.ENDS.get(key, LabelState.SUBMITTED)
        seconds = time.monotonic() - self._began
        return Verdict(state, keys.value(claim, key), seconds, claim.label_id not in self.seen)

    def decide(self, verdict: Verdict) -> None:
        """Judge the current claim, and go on to the next. Harmless when repeated after DatabaseUnavailable.

        Raises:
            LeaseLost: another person judges it by now. The session goes on to the next all the same.
            NotFound: it is not in the queue any more. The same.
            DatabaseUnavailable: the claim stays the current one.
        """
        claim = self._claims[0]
        try:
            self._retry(lambda tx: verdicts.decide(tx, claim, self.author, verdict))
        except (LeaseLost, NotFound):
            self._claims.popleft()
            raise
        self._claims.popleft()
        self.given += 1

    def undo(self) -> bool:
        """Take the last verdict back, and judge that one again; whether there was one."""
        last = self._retry(lambda tx: verdicts.last_decided(tx, self.run.id, self.author, self.pairs))
        if last is None:
            return False
        # By its id: tried again after an unclear commit, it takes no older verdict back as well.
        self._claims.appendleft(self._retry(lambda tx: verdicts.undo(tx, last, self.author)))
        self.given -= 1
        return True

    def renew(self) -> None:
        """Keep the claims, where it is time for that."""
        if self._claims and time.monotonic() - self._renewed > RENEW_SECONDS:
            self._hold()

    def progress(self) -> reviews.Progress:
        """How far the person is."""
        return self._retry(lambda tx: reviews.progress(tx, self.run.id, self.author, self.pairs))

    def close(self) -> None:
        """Give back what was not judged."""
        while self._claims:
            claim = self._claims.popleft()
            self._retry(lambda tx, claim=claim: verdicts.release(tx, claim))  # type: ignore[misc]

    def _hold(self) -> set[int]:
        """Put off the end of the claims; returns the labels of those that had not ended."""
        held = self._retry(lambda tx: verdicts.renew(tx, list(self._claims)))
        self._renewed = time.monotonic()
        return held

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
        deadline = time.monotonic() + self.patience

        def once() -> Result:
            with self.database.transaction() as tx:
                return decide(tx)

        return self.database.retry(once, give_up=lambda: time.monotonic() > deadline)
