"""The first page: every run, its progress, and what it waits for."""

from collections.abc import Mapping
from typing import Any

from nicegui import ui

from trinity_db.insight.checks.finding import Finding
from trinity_db.insight.status import COUNTS, counted
from trinity_db.page import layout, questions
from trinity_db.page.alerts import Alerts
from trinity_db.page.answers import Answers
from trinity_db.page.comparison import MAX_RUNS
from trinity_db.page.elements import Cell, Column, Rows, element
from trinity_db.page.layout import Look
from trinity_db.page.manager import Manager
from trinity_db.page.reader import Reader
from trinity_db.page.rights import Right, may

STATES = (
    "active: a worker is alive; stopped: all workers signed off; crashed: a worker ended without signing "
    "off; new: no worker has started yet"
)
COLUMNS = (
    Column("run"),
    Column("state", hint=STATES),
    Column("alive", hint="roles whose heartbeat is within the lease"),
    Column("version", "number", "latest policy version"),
    Column("step", "number", "last committed step, of the planned number"),
    Column("reward", "number", "mean over the rows of the last step"),
    Column("staleness", "number", "maximum in the last step, in policy versions"),
    Column("waiting", "number", "experiences (or pairs) that processors still have to handle"),
    Column("ready", "number", "experiences (or pairs) that may be drawn"),
    Column("leased", "number", "experiences (or pairs) in the batch that is being trained on"),
    Column("trained", "number", "experiences (or pairs) that were trained on"),
    Column("gone", "number", "experiences (or pairs) that were dropped or expired"),
    Column("waits for", "long", "shares of time over the last steps"),
)
EMPTY = (
    "There are no runs in this store yet.\n"
    "trinity-db demo makes one in two minutes; trinity-db run my-run.yaml starts your own."
)
CHOOSER = "compare"


def register(reader: Reader, manager: Manager | None) -> None:
    """Add the page."""
    answers = Answers(reader)

    @ui.page("/", response_timeout=layout.RESPONSE_SECONDS)
    async def runs_page() -> None:
        with layout.frame("Runs", "Runs"):
            if manager is not None and may(Right.MANAGE):
                with element("p", "", "more begin"):
                    element("a", "Start a run", "button", href="/start")
            page = _Runs(answers)
            await page.look.look()


class _Runs:
    def __init__(self, answers: Answers) -> None:
        self.look = Look(answers, questions.runs_and_alerts, self.show, lambda: None, follows=True)
        self._table = Rows("runs", COLUMNS, EMPTY)
        _chooser()
        layout.heading("Alerts", "Problems that trinity-db doctor finds in active runs.")
        self._alerts = Alerts()

    def show(self, content: tuple[list[dict[str, Any]], list[Finding]]) -> None:
        rows, alerts = content
        self._table.show([_row(row) for row in rows])
        self._alerts.show(alerts)


def _chooser() -> None:
    """Form that opens the comparison of the ticked runs."""
    attributes = {"id_": CHOOSER, "action": "/compare", "method": "get", "aria_label": "Compare runs"}
    with element("form", "", "filters chooser", **attributes):
        element("span", f"Tick up to {MAX_RUNS} runs above to see their curves and settings side by side.")
        element("button", "Compare", "main", type="submit")


def _row(run: Mapping[str, Any]) -> list[Cell]:
    last, rows = run["last"], counted(run)
    alive = sorted({worker["role"] for worker in run["workers"] if worker["alive"]})
    return [
        Cell(run["run"], layout.link("run", run["run"]), ticks=CHOOSER if run["kind"] == "train" else None),
        layout.state(run["state"]) if run["kind"] == "train" else Cell(run["state"], kind="data"),
        Cell(", ".join(alive), kind="alive" if alive else ""),
        Cell(layout.number(run["policy_version"])),
        Cell(_step(last)),
        Cell(layout.number(last.get("reward"))),
        Cell(layout.number(last.get("staleness"))),
        *(Cell(f"{sum(rows.get(state, 0) for state in states):,}") for states in COUNTS.values()),
        Cell(run["waiting"] or ""),
    ]


def _step(last: Mapping[str, Any]) -> str:
    step, steps = last.get("step"), last.get("steps")
    if steps is None:
        return layout.number(step)
    return f"{step or 0:,} of {int(steps):,}"
