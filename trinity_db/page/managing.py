"""The buttons that stop and extend a run, and the outcome of a start from this page."""

from collections.abc import Callable, Mapping
from typing import Any

from nicegui import ui

from trinity_db.errors import DatabaseUnavailable, TrinityError
from trinity_db.page import layout
from trinity_db.page.elements import element
from trinity_db.page.manager import Manager
from trinity_db.store.stopping import StopRequest

LOOK_SECONDS = 1.0  # between two checks of workers that were asked to stop


class Managing:
    """The buttons of a run, and the outcome of the last press."""

    def __init__(self, manager: Manager, run: str, on_change: Callable[[], None]) -> None:
        self._manager, self._run, self._on_change = manager, run, on_change
        self._stop_request: StopRequest | None = None
        self._is_asking = False
        self._notice = element("p", "", "notice lines", role="alert")
        self._notice.set_visibility(False)
        self._buttons = element("div", "", "more")
        self._buttons.set_visibility(False)  # until the run is loaded; a data set has no buttons
        with self._buttons:
            self._stop = element("button", "Stop", type="button").on("click", self._ask, args=[])
            self._sure = element("span", f"Stop run {run} on all its machines?")
            self._yes = element("button", "Stop it", "main", type="button").on("click", self._do, args=[])
            self._no = element("button", "Keep it running", type="button").on("click", self._leave, args=[])
            link = layout.link("start", run=run)
            self._go_on = element("a", "Resume or extend", "button", href=link)
            self._progress = element("span", "", role="status")
        self._clock = ui.timer(LOOK_SECONDS, self._look, active=False)
        self._works = False

    def show(self, run: Mapping[str, Any]) -> None:
        """Show the buttons that apply to the run's current state."""
        started = self._manager.started(self._run)
        is_there = started is not None and started.code is None
        self._works = is_there or any(worker["alive"] for worker in run["workers"])
        if started is not None and started.code and not self._works:
            words = f"The command started here ended with exit code {started.code}."
            self._tell(f"{words} {started.last_words()}\nLog: {started.log}")
        self._show()

    def _show(self) -> None:
        self._buttons.set_visibility(True)
        stops = self._stop_request is not None
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
            self._stop_request = await self._manager.stop(self._run)
        except TrinityError as error:
            self._tell(str(error))
        else:
            self._progress.text = "StopRequest to stop."
            self._clock.activate()
            self._on_change()
        self._show()

    async def _look(self) -> None:
        if self._stop_request is None:
            return
        try:
            alive = await self._manager.still_at_work(self._run, self._stop_request.at)
        except DatabaseUnavailable:
            return
        except TrinityError as error:  # the run has been deleted
            self._clock.deactivate()
            self._progress.text = ""
            self._tell(str(error))
            return
        if alive:
            self._progress.text = f"Stopping. Waiting for {'; '.join(map(str, alive))}."
            return
        self._clock.deactivate()
        self._stop_request, self._works = None, False
        self._progress.text = "Stopped. To continue, start it again."
        self._show()
        self._on_change()

    def _tell(self, text: str) -> None:
        self._notice.text = layout.cut(text)
        self._notice.set_visibility(True)
