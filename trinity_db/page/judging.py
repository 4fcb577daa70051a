"""The queue page of a person who labels: the current item, the keys, and the outcome of the last key."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import psycopg
from nicegui import ui

from trinity_db.errors import DatabaseUnavailable, LeaseLost, NotFound, TrinityError
from trinity_db.page import conversation, layout
from trinity_db.page.answers import PAUSES
from trinity_db.page.elements import Cell, Column, Key, Keys, Pulse, Rows, element
from trinity_db.page.rights import Right, may
from trinity_db.page.texts import LongText
from trinity_db.page.writer import Writer
from trinity_db.people import keys
from trinity_db.people.session import Session
from trinity_db.postgres.connection import first_line
from trinity_db.schema.typed_rows import RewardPart
from trinity_db.store.verdicts import PersonVerdict, ReviewClaim

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

BEAT_SECONDS = 5.0  # seconds between renewals of claims and retries of an unsaved verdict
HELP = {
    keys.SKIP: "Leave it to others; you will not be asked about it again.",
    keys.DISCARD: "Nobody can judge it: an answer without a value.",
    keys.UNDO: "Undo your last verdict and everything that resulted from it, and judge that item again.",
    keys.REWARDS: "Show its rewards. The store then records that your verdict is not blind.",
}
JUDGED = 200_000  # characters up to which a text is shown whole: a person who judges must read its end
NOT_WHOLE = "{hidden:,} characters are hidden above: show them before you judge."
NOT_STORED = "It was not stored."
TAKEN_AWAY = "You may no longer give verdicts here."
WAITS = "Your verdict is kept here and stored when the database answers: keep this page open."
NOTHING = (
    "Nothing to judge at the moment. The page checks again by itself.\n"
    "trinity-db label {run} --ask CONDITION asks people about rows.\n"
    "As to pairs, people are asked once about each group with two different responses."
)


class Judging:
    """A person's queue. Actions run one at a time, in the order of the keys."""

    def __init__(
        self, writer: Writer, author: str, run: str, pairs: bool, on_change: Callable[[], None]
    ) -> None:
        self._writer, self._author, self._run, self._pairs = writer, author, run, pairs
        self._on_change = on_change
        self._session: Session | None = None
        self._waiting: PersonVerdict | None = None
        """Verdict that is not stored yet because the database did not answer."""
        self._seen: ReviewClaim | None = None
        """Item on screen. The session may be one further if the database went away after a verdict."""
        self._texts: list[LongText] = []
        self._turn = 0
        self._has_left = False
        self._rests_until = 0.0
        self._lock = asyncio.Lock()
        self._notice = element("p", "", "notice", role="alert")
        self._notice.set_visibility(False)
        self._place = element("section", "", "claim", aria_label="what is judged")
        with self._place:
            element("p", "Loading the queue.", "explained")
        self._message = element("p", "", "muted", role="status")
        self._keys = Keys(self._press, self.leave)
        Pulse(BEAT_SECONDS, self._beat)
        ui.context.client.on_delete(self.leave)
        layout.later(self._beat)

    async def leave(self) -> None:
        """Store an unsaved verdict, and give back the claims. May be called repeatedly."""
        async with self._lock:
            self._has_left = True
            session, self._session = self._session, None
            if session is None:
                return
            try:
                try:
                    if self._waiting is not None:
                        await self._writer.run(partial(session.decide, self._waiting))
                finally:
                    await self._writer.leave(session)
            except (TrinityError, psycopg.Error) as error:
                lost = "" if self._waiting is None else "An unsaved verdict was not stored. "
                logger.warning(
                    "%sThe claims of a closed page expire by themselves: %s", lost, first_line(error)
                )

    async def _press(self, key: str, turn: int) -> None:
        if not may(Right.LABEL):
            await self._stop()
            return
        async with self._lock:
            if turn != self._turn or self._session is None or self._waiting is not None:
                return  # pressed for an item that is no longer shown
            session = self._session
            claim = self._seen
            if key == keys.UNDO:
                await self._try(self._undo(session), "It was not undone.")
            elif claim is not None and key == keys.REWARDS:
                await self._try(self._reveal(session, claim))
            elif claim is not None and keys.is_verdict(claim, key):
                self._waiting = session.verdict(key)
                await self._try(self._store(session, keys.description(claim, key)), NOT_STORED)
            await self._go_on(session)
        self._on_change()

    async def _stop(self) -> None:
        """Handle a withdrawn right: give back the claims, and stop accepting keys."""
        await self.leave()
        self._place.clear()
        self._keys.show([], self._turn, 0)
        self._notice.text = TAKEN_AWAY
        self._notice.set_visibility(True)

    async def _beat(self) -> None:
        """Continue pending work: retry an unsaved verdict, renew claims, or refill an empty queue."""
        if not may(Right.LABEL):
            await self._stop()
            return
        if self._lock.locked():
            return
        async with self._lock:
            if self._has_left:
                return
            if self._session is None:
                await self._try(self._open())
            elif self._waiting is not None:
                await self._try(self._store(self._session, "Your verdict"), NOT_STORED)
                await self._go_on(self._session)
            elif self._seen is not None and self._seen is self._session.shown:
                await self._try(self._writer.run(self._session.renew))
            elif time.monotonic() > self._rests_until:
                seen = self._seen
                await self._try(self._next(self._session))
                if self._seen is not seen or self._turn == 0:  # otherwise a key in transit would be lost
                    self._take_keys()

    async def _open(self) -> None:
        try:
            self._session = await self._writer.open(self._author, self._run, self._pairs)
        except NotFound:
            return  # the rest of the page shows it
        await self._next(self._session)
        self._take_keys()
        self._on_change()  # opening an empty queue fills it

    async def _go_on(self, session: Session) -> None:
        """Show the next item, unless it is on screen already, and begin a turn."""
        if session.shown is not self._seen:
            await self._try(self._next(session))
        self._take_keys()

    async def _store(self, session: Session, words: str) -> None:
        """Store the pending verdict. It stays pending only if no database answers."""
        verdict, self._waiting = self._waiting, None
        assert verdict is not None
        try:
            await self._writer.run(partial(session.decide, verdict))
        except DatabaseUnavailable as error:
            self._waiting = verdict
            raise DatabaseUnavailable(f"{error} {WAITS}") from error
        except (LeaseLost, NotFound) as error:
            self._tell(f"{NOT_STORED} {error}", is_failure=True)
        else:
            self._tell(f"{words}: stored.")

    async def _undo(self, session: Session) -> None:
        is_back = await self._writer.run(session.undo)
        self._tell("The last verdict was undone." if is_back else "There is no verdict to undo.")

    async def _reveal(self, session: Session, claim: ReviewClaim) -> None:
        parts = await self._writer.run(session.rewards)
        self._rewards.clear()
        with self._rewards:
            _show_rewards(claim, parts)

    async def _next(self, session: Session) -> None:
        """Show the next item, and claim the one after it."""
        begun = time.monotonic()
        claim = await self._writer.run(session.current)
        self._rests_until = time.monotonic() + PAUSES * (time.monotonic() - begun)
        self._seen, self._texts = claim, []
        self._warn()
        self._place.clear()
        with self._place:
            if claim is None:
                element("p", NOTHING.format(run=self._run), "empty")
                return
            self._texts = _show_claim(claim, self._warn)
            self._rewards = element("div")
        self._warn()
        session.begin()
        layout.later(partial(self._prepare, session))

    def _warn(self) -> None:
        """Show next to the keys how many characters of the texts are hidden."""
        hidden = sum(text.hidden for text in self._texts)
        self._keys.warn(NOT_WHOLE.format(hidden=hidden) if hidden else "")

    async def _prepare(self, session: Session) -> None:
        async with self._lock:
            if session is self._session:
                await self._try(self._writer.run(session.prepare))

    async def _try(self, work: Awaitable[object], failed: str = "") -> None:
        """Run an action, or show its error: temporary errors as a notice, others after `failed`."""
        try:
            await work
        except (TrinityError, psycopg.Error) as error:
            refused = f"The database refuses: {first_line(error)}"
            text = str(error) if isinstance(error, TrinityError) else refused
            if failed and not isinstance(error, DatabaseUnavailable):
                self._tell(f"{failed} {text}", is_failure=True)
                return
            self._notice.text = text
            self._notice.set_visibility(True)
            if self._seen is None and not isinstance(error, DatabaseUnavailable):
                self._place.clear()  # it is no longer loading
        else:
            self._notice.set_visibility(False)

    def _tell(self, text: str, is_failure: bool = False) -> None:
        """Show the outcome of the last key."""
        self._message.text = text
        self._message.classes(replace="notice" if is_failure else "muted")

    def _take_keys(self) -> None:
        """Begin a turn: accept keys if the item on screen is the session's current one."""
        claim = self._seen
        self._turn += 1
        is_judged = self._waiting is not None or self._session is None or self._session.shown is not claim
        taken = [] if is_judged else _keys(claim)
        self._keys.show(taken, self._turn, 0 if claim is None else claim.label_id)


def _keys(claim: ReviewClaim | None) -> list[Key]:
    """Keys for a claim; without a claim, only undo."""
    if claim is None:
        return [Key(keys.UNDO, keys.MOVES[keys.UNDO], HELP[keys.UNDO])]
    answers = [
        Key(key, word or f"grade {key}", "A verdict: stored at once.", is_main=True)
        for key, word in keys.answers(claim).items()
    ]
    return answers + [Key(key, word, HELP[key]) for key, word in keys.MOVES.items()]


def _show_claim(claim: ReviewClaim, on_more: Callable[[], None]) -> list[LongText]:
    """Show the item to judge, and return its texts."""
    ids = " and ".join(map(str, sorted(claim.experience_ids)))
    grades = f", grades {claim.lowest} (worst) to {claim.highest} (best)" if claim.is_graded else ""
    element("h2", f"Pair of experiences {ids}" if claim.is_pair else f"Experience {ids}{grades}")
    element("p", f"Judged: {claim.name}", "explained")
    prompt = list(conversation.prompt_turns(claim.messages, claim.prompt))
    if not claim.is_pair:
        return conversation.show([*prompt, ("assistant", claim.responses[0])], JUDGED, on_more)
    made = conversation.show(prompt, JUDGED, on_more)
    with element("div", "", "beside"):
        for name, response in zip("AB", claim.responses, strict=True):
            with element("section", "", "card", aria_label=f"response {name}"):
                element("h3", name)
                made.append(LongText(response, JUDGED, on_more, empty="(empty)"))
    return made


def _show_rewards(claim: ReviewClaim, parts: list[RewardPart]) -> None:
    layout.heading("Rewards", "Your verdict will be stored as not blind.")
    names = dict(zip(claim.experience_ids, "AB", strict=False)) if claim.is_pair else {}
    columns = [
        Column("response"), Column("reward"), Column("value", "number"), Column("weight", "number"),
        Column("source"),
    ]  # fmt: skip
    rows = [
        [
            Cell(names.get(part["experience_id"], "")),
            Cell(layout.cut(part["name"])),
            Cell(f"{part['value']:.4g}"),
            Cell(f"{part['weight']:.4g}"),
            Cell(layout.cut(part["source"])),
        ]
        for part in parts
    ]
    Rows("rewards", columns if claim.is_pair else columns[1:], "No rewards yet.").show(
        rows if claim.is_pair else [row[1:] for row in rows]
    )
