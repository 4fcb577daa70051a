"""The buttons of a run for visitors who may manage: stop it, prolong it; and how a start here ended."""

from collections.abc import Callable, Mapping
from typing import Any

from nicegui import ui

from trinity_db.errors import DatabaseUnavailable, TrinityError
from trinity_db.page import layout
from trinity_db.page.elements import said
from trinity_db.page.manager import Manager
from trinity_db.store.stopping import Asked

LOOK_SECONDS = 1.0  # between two looks at workers that are to stop


class Managing:
    """The buttons of a run, and what became of the last press."""

    def __init__(self, manager: Manager, run: str, on_change: Callable[[], None]) -> None:
        self._manager, self._run, self._on_change = manager, run, on_change
        self._asked: Asked | None = None
        self._is_asking = False
        self._notice = said("p", "", "notice lines", role="alert")
        self._notice.set_visibility(False)
        self._buttons = said("div", "", "more")
        self._buttons.set_visibility(False)  # until the run is known; a data set has none
        with self._buttons:
            self._stop = said("button", "Stop", type="button").on("click", self._ask, args=[])
            self._sure = said("span", f"Stop run {run} on all its machines?")
            self._yes = said("button", "Stop it", "main", type="button").on("click", self._do, args=[])
            self._no = said("button", "Let it work", type="button").on("click", self._leave, args=[])
            link = layout.place("start", run=run)
            self._go_on = said("a", "Prolong or go on", "button", href=link)
            self._progress = said("span", "", role="status")
        self._clock = ui.timer(LOOK_SECONDS, self._look, active=False)
        self._works = False

    def show(self, run: Mapping[str, Any]) -> None:
        """Offer what can be done with the run as it is now."""
        started = self._manager.started(self._run)
        is_there = started is not None and started.code is None
        self._works = is_there or any(worker["alive"] for worker in run["workers"])
        if started is not None and started.code and not self._works:
            words = f"It was started here and ended with exit code {started.code}."
            self._tell(f"{words} {started.last_words()}\nIts log: {started.log}")
        self._show()

    def _show(self) -> None:
        self._buttons.set_visibility(True)
        stops = self._asked is not None
        self._stop.set_visibility(self._works and not stops and not self._is_asking)
        for part in (self._sure, self._yes, self._no):
            part.set_visibility(self._is_asking)
        self._go_on.set_visibility(not self._works and not stops)

    async def _ask(self) -> None:
        self._is_asking = True
        self._show()
        self._no.run_method("focus")

    async def _leave(self) -> None:
        self._is_asking = False
        self._show()

    async def _do(self) -> None:
        self._is_asking = False
        self._notice.set_visibility(False)
        try:
            self._asked = await self._manager.stop(self._run)
        except TrinityError as error:
            self._tell(str(error))
        else:
            self._progress.text = "It is asked to stop."
            self._clock.activate()
            self._on_change()
        self._show()

    async def _look(self) -> None:
        if self._asked is None:
            return
        try:
            alive = await self._manager.still_at_work(self._run, self._asked.at)
        except DatabaseUnavailable:
            return
        except TrinityError as error:  # the run was deleted meanwhile
            self._clock.deactivate()
            self._progress.text = ""
            self._tell(str(error))
            return
        if alive:
            self._progress.text = f"It stops. Waiting for {'; '.join(map(str, alive))}."
            return
        self._clock.deactivate()
        self._asked, self._works = None, False
        self._progress.text = "It has stopped. To go on, start it again."
        self._show()
        self._on_change()

    def _tell(self, text: str) -> None:
        self._notice.text = layout.cut(text)
        self._notice.set_visibility(True)
