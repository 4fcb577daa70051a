"""Doctor: what `trinity-db doctor` says, looked at when a person opens the page or asks again."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from urllib.parse import urlsplit

from nicegui import ui

from trinity_db.diagnosis.doctor import examine
from trinity_db.diagnosis.finding import Finding, Level
from trinity_db.explorer.engines.vllm import diagnosis
from trinity_db.page import layout
from trinity_db.page.alerts import SHOWN_BY, shown_by
from trinity_db.page.elements import Cell, Column, Rows, said
from trinity_db.page.reader import Reader

COLUMNS = (Column("level"), Column("what"), Column("found", "long"), Column("remedy", "long"), SHOWN_BY)
EXPLAINED = (
    "What trinity-db doctor says of this machine, and of the store by the login '{login}'. It says what "
    "this login may not see; in a terminal it looks by the store's own login, and renders the first task of "
    "each run, for which it loads a tokenizer."
)
LOOKING = "It looks at packages, disks, the server and the store. This takes seconds."


def register(reader: Reader) -> None:
    """Add the page."""
    turn = asyncio.Lock()  # it takes seconds, and is not to keep other pages waiting

    @ui.page("/doctor", response_timeout=layout.RESPONSE_SECONDS)
    async def doctor_page() -> None:
        with layout.frame("Doctor", "Doctor"):
            page = _Doctor(reader.url, turn)
            layout.later(page.look)


class _Doctor:
    def __init__(self, url: str, turn: asyncio.Lock) -> None:
        self._url, self._turn = url, turn
        said("p", EXPLAINED.format(login=urlsplit(url).username or ""), "explained")
        self._progress = said("p", LOOKING, "explained", role="status")
        with said("div").style("margin-bottom: 0.9rem"):
            self._again = said("button", "Look again", type="button").on("click", self.look, args=[])
        self._findings = said("div")

    async def look(self) -> None:
        """Examine, and show what is found."""
        self._progress.text = LOOKING
        self._allow(False)
        async with self._turn:
            findings = await asyncio.to_thread(_examine, self._url)
        self._show(findings)
        self._allow(True)

    def _allow(self, again: bool) -> None:
        self._again.props["disabled"] = not again
        self._again.update()

    def _show(self, findings: Sequence[Finding]) -> None:
        levels = Counter(finding.level for finding in findings)
        worst_first = list(reversed(Level))
        self._progress.text = ", ".join(f"{levels[level]} {level.value}" for level in worst_first) + "."
        self._findings.clear()
        with self._findings:
            table = Rows("findings", COLUMNS, "Nothing was looked at.")
            order = sorted(findings, key=lambda finding: worst_first.index(finding.level))
            table.show([_row(one) for one in order])


def _row(one: Finding) -> list[Cell]:
    return [
        layout.state(one.level.value),
        Cell(one.what),
        Cell(one.found),
        Cell(one.remedy or ""),
        shown_by(one),
    ]


def _examine(url: str) -> list[Finding]:
    return [*examine(url), *diagnosis.findings()]
