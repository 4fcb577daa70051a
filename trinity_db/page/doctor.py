"""Doctor: what `trinity-db doctor` says, looked at when a person opens the page or asks again."""

from collections import Counter
from collections.abc import Sequence
from urllib.parse import urlsplit

from nicegui import ui

from trinity_db.database import Database
from trinity_db.diagnosis.doctor import examine
from trinity_db.diagnosis.finding import Finding, Level
from trinity_db.explorer.engines.vllm import diagnosis
from trinity_db.page import layout
from trinity_db.page.alerts import SHOWN_BY, shown_by
from trinity_db.page.elements import Cell, Column, Rows, said
from trinity_db.page.layout import Look
from trinity_db.page.reader import Reader

COLUMNS = (Column("level"), Column("what"), Column("found", "long"), Column("remedy", "long"), SHOWN_BY)
EXPLAINED = (
    "What trinity-db doctor says of this machine, and of the store by the login '{login}'. It says what "
    "this login may not see; in a terminal it looks by the store's own login."
)
LOOKING = "It looks at packages, disks, the server and the store. This takes seconds."


def register(reader: Reader) -> None:
    """Add the page."""

    @ui.page("/doctor", response_timeout=layout.RESPONSE_SECONDS)
    async def doctor_page() -> None:
        with layout.frame("Doctor", "Doctor"):
            page = _Doctor(reader)
            layout.later(page.look)


class _Doctor:
    def __init__(self, reader: Reader) -> None:
        login = urlsplit(reader.url).username or ""
        said("p", EXPLAINED.format(login=login), "explained")
        self._progress = said("p", LOOKING, "explained", role="status")
        self._look = Look(reader, _read, self._show, lambda: None, follows=False)
        with said("div").style("margin-bottom: 0.9rem"):
            self._again = said("button", "Look again", type="button").on("click", self.look, args=[])
        self._findings = said("div")

    async def look(self) -> None:
        """Examine, and show what is found."""
        self._progress.text = LOOKING
        self._again.props["disabled"] = True
        self._again.update()
        await self._look.look()
        self._again.props["disabled"] = False
        self._again.update()

    def _show(self, findings: Sequence[Finding]) -> None:
        levels = Counter(finding.level for finding in findings)
        self._progress.text = ", ".join(f"{levels[level]} {level.value}" for level in reversed(Level)) + "."
        self._findings.clear()
        order = sorted(findings, key=lambda finding: -list(Level).index(finding.level))
        with self._findings:
            table = Rows("findings", COLUMNS, "Nothing was looked at.")
            table.show(
                [
                    [
                        layout.state(one.level.value),
                        Cell(one.what),
                        Cell(one.found),
                        Cell(one.remedy or ""),
                        shown_by(one),
                    ]
                    for one in order
                ]
            )


def _read(database: Database) -> list[Finding]:
    return [*examine(database.url), *diagnosis.findings()]
