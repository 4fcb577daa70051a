"""The doctor page: the findings of `trinity-db doctor`, when a person opens the page or checks again."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from urllib.parse import urlsplit

from nicegui import ui

from trinity_db.explorer.engines.vllm import diagnosis
from trinity_db.insight.checks.doctor import examine
from trinity_db.insight.checks.finding import Finding, Level
from trinity_db.page import layout
from trinity_db.page.alerts import SHOWN_BY, shown_by
from trinity_db.page.elements import Cell, Column, Rows, element
from trinity_db.page.reader import Reader

COLUMNS = (Column("level"), Column("what"), Column("found", "long"), Column("remedy", "long"), SHOWN_BY)
EXPLAINED = (
    "The findings of trinity-db doctor for this machine and for the store, as seen by the login '{login}'. "
    "Whatever this login may not see is marked. In a terminal, the command uses the store's main login, and "
    "also renders the first task of each run, which loads a tokenizer."
)
LOOKING = "Checking packages, disks, the server and the store. This takes a few seconds."


def register(reader: Reader) -> None:
    """Add the page."""
    turn = asyncio.Lock()  # takes seconds, and must not block other pages

    @ui.page("/doctor", response_timeout=layout.RESPONSE_SECONDS)
    async def doctor_page() -> None:
        with layout.frame("Doctor", "Doctor"):
            page = _Doctor(reader.url, turn)
            layout.later(page.look)


class _Doctor:
    def __init__(self, url: str, turn: asyncio.Lock) -> None:
        self._url, self._turn = url, turn
        element("p", EXPLAINED.format(login=urlsplit(url).username or ""), "explained")
        self._progress = element("p", LOOKING, "explained", role="status")
        with element("div").style("margin-bottom: 0.9rem"):
            self._again = element("button", "Check again", type="button").on("click", self.look, args=[])
        self._findings = element("div")

    async def look(self) -> None:
        """Run the checks and show the findings."""
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
            table = Rows("findings", COLUMNS, "Nothing was checked.")
            order = sorted(findings, key=lambda finding: worst_first.index(finding.level))
            table.show([_row(finding) for finding in order])


def _row(finding: Finding) -> list[Cell]:
    return [
        layout.state(finding.level.value),
        Cell(finding.what),
        Cell(finding.found),
        Cell(finding.remedy or ""),
        shown_by(finding),
    ]


def _examine(url: str) -> list[Finding]:
    return [*examine(url), *diagnosis.findings()]
