"""A configuration that a visitor edits, checks, and starts as a run."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nicegui import ui

from trinity_db.config.base import MAX_BYTES
from trinity_db.errors import ConfigError, DatabaseUnavailable, TrinityError
from trinity_db.page import layout
from trinity_db.page.elements import Draft, element
from trinity_db.page.launching import Started, command_of
from trinity_db.page.manager import Manager

ACTIONS = (("check", "Check", False), ("start", "Start", True))
EXPLAINED = (
    "Edit what you like; nothing happens until you press Start. Start writes the file into {folder}, where "
    "the page was started, and overwrites no other file."
)
FOLLOWS = "The file was just updated from the form: check it, and press the button again."
COPY = "() => navigator.clipboard?.writeText(document.getElementById('command').textContent)"
LOOK_SECONDS = 1.0  # between two checks of a run that is starting


class Drafting:
    """The file, the equivalent command line, and the outcome of the last button press."""

    def __init__(
        self,
        manager: Manager,
        text: str,
        change: bool,
        form: str = "",
        write: Callable[[Mapping[str, str]], str] | None = None,
    ) -> None:
        """Show a file.

        Args:
            change: whether the run exists and continues with this configuration.
            form: CSS selector of the form that writes the file; "" without a form.
            write: return the file for the form's values; may raise a TrinityError.
        """
        self._manager, self._change, self._write = manager, change, write
        self._started: Started | None = None
        layout.heading("The file", EXPLAINED.format(folder=manager.folder))
        fill = None if write is None else self._fill
        self._draft = Draft(text, MAX_BYTES, ACTIONS, self._act, form, fill)
        self._notice = element("p", "", "notice lines", role="alert")
        self._notice.set_visibility(False)
        self._progress = element("p", "", "explained lines", role="status")
        with element("p", "", "more"):
            element("span", "On the command line:")
            self._command = element("code", "", "command", id_="command")
            element("button", "Copy", type="button").on("click", js_handler=COPY)
        self._clock = ui.timer(LOOK_SECONDS, self._look, active=False)
        with suppress(TrinityError):  # a missing name is reported when a button is pressed
            self._tell_command(manager.file_of(text))
        layout.later(self._draft.listen)

    async def _fill(self, values: Mapping[str, Any]) -> None:
        """Write the file from the form that a person edits."""
        try:
            text = self._written(values)
            self._draft.write(text)
            self._tell_command(await asyncio.to_thread(self._manager.file_of, text))
        except TrinityError as error:
            self._fail(str(error))
        else:
            self._notice.set_visibility(False)

    def _written(self, values: Mapping[str, Any]) -> str:
        assert self._write is not None
        return self._write({name: layout.text(str(value)) for name, value in values.items()})

    async def _act(self, name: str, text: str, values: Mapping[str, Any]) -> None:
        verb: Callable[[str], Awaitable[None]] = self._start if name == "start" else self._check
        text = layout.text(text)
        self._notice.set_visibility(False)
        self._draft.work(True)
        try:
            if self._write is not None and values and (current := self._written(values)) != text:
                self._draft.write(current)  # the button was pressed before the file was updated from the form
                raise ConfigError(FOLLOWS)
            self._tell_command(await asyncio.to_thread(self._manager.file_of, text))
            await verb(text)
        except TrinityError as error:
            self._fail(str(error))

    async def _check(self, text: str) -> None:
        self._progress.text = "Checking. This takes a few seconds."
        if mistakes := await self._manager.check(text):
            self._fail("\n".join(mistakes))
            return
        self._progress.text = "No mistakes found."
        self._draft.work(False)

    async def _start(self, text: str) -> None:
        self._progress.text = "Starting."
        self._started = await self._manager.start(text, self._change)
        self._command.text = self._started.command
        self._clock.activate()

    async def _look(self) -> None:
        """Open the run's page once the run works, or show why the start failed."""
        started = self._started
        if started is None:
            return
        code = started.code  # read before the store is queried: a short run may already be over
        words = started.last_words()
        try:
            works = code is None and await self._manager.is_at_work(started.run)
        except DatabaseUnavailable:
            return
        except TrinityError as error:
            self._clock.deactivate()
            self._fail(str(error))
            return
        if works or code == 0:
            self._clock.deactivate()
            ui.navigate.to(layout.link("run", started.run))
        elif code is not None:
            self._clock.deactivate()
            self._fail(f"The command ended with exit code {code}. {words}\nLog: {started.log}")
        else:
            self._progress.text = f"Starting. {words.splitlines()[-1] if words else ''}"

    def _tell_command(self, file: Path) -> None:
        words = command_of(file, self._change)
        self._command.text = f"trinity-db {' '.join(words)}"

    def _fail(self, text: str) -> None:
        self._draft.work(False)
        self._progress.text = ""
        self._notice.text = layout.cut(text)
        self._notice.set_visibility(True)
