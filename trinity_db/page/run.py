"""One run: its curves, its rows, its processes, why rows were dropped."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from nicegui import ui

from trinity_db.inspection import status
from trinity_db.page import layout, questions
from trinity_db.page.alerts import Alerts
from trinity_db.page.answers import Answers
from trinity_db.page.charts import CHARTS, Curves
from trinity_db.page.elements import Cell, Column, Fact, Facts, Rows, said
from trinity_db.page.events import Events
from trinity_db.page.flow import Balance, Flow
from trinity_db.page.layout import Look
from trinity_db.page.manager import Manager
from trinity_db.page.managing import Managing
from trinity_db.page.reader import Reader
from trinity_db.page.rights import Right, may

TABLED = {"run", "workers", "drops", "experiences", "rewards", "rates", "waiting"}
"""What stands in a part of its own, or in the head."""
REWARDS = (
    "Of the newest versions, as at training and as they are now; means of at most the "
    f"{questions.REWARD_ROWS:,} newest rows of each. trinity-db status takes all."
)
LINKS = (("Its experiences", "experiences"), ("Its tasks", "tasks"), ("Its evaluation", "evaluation"))
NO_CURVES = "No step was trained yet. Curves appear with the first one: is the trainer alive?"


def register(reader: Reader, manager: Manager | None) -> None:
    """Add the page."""
    answers = Answers(reader)

    @ui.page("/run/{name:path}", response_timeout=layout.RESPONSE_SECONDS)
    async def run_page(name: str) -> None:
        with layout.frame(f"Run {name}"):
            page = _Run(answers, layout.text(name), manager if may(Right.MANAGE) else None)
            await page.look.look()


class _Run:
    def __init__(self, answers: Answers, name: str, manager: Manager | None) -> None:
        read = partial(questions.run_in_full, name=name)
        self.look = Look(answers, read, self.show, self.empty, follows=True)
        self._name = name
        self._content = said("div")
        with self._content:
            self._facts = Facts()
            with said("p", "", "more"):
                links = [
                    said("a", words, "button", href=layout.place(place, run=name)) for words, place in LINKS
                ]
            self._of_policy = links[1:]  # a data set has none
            self._managing = None if manager is None else Managing(manager, name, self.look.soon)
            layout.heading("Alerts")
            self._alerts = Alerts()
            self._flow = Flow(name)
            self._training = said("div")
            with self._training:
                self._balance = Balance()
                layout.heading(
                    "Curves", "By trainer step. A point is the mean over its steps, if there are many."
                )
                self._no_curves = said("p", NO_CURVES, "empty")
                self._curves = Curves()
            self._tables()

    def _tables(self) -> None:
        with said("div", "", "halves"):
            with said("section"):
                self._drops = _drops()
            self._of_roles = said("section"), said("section")
            with self._of_roles[0]:
                self._rewards = _rewards()
            with self._of_roles[1]:
                self._workers = _workers(self._name)
        self._events = Events(self._name)

    def show(self, run: dict[str, Any]) -> None:
        said_of = {name: text for name, text in status.words(run).items() if name not in TABLED}
        is_data = run["kind"] != "train"
        for part in (self._training, *self._of_roles, *self._of_policy):
            part.set_visibility(not is_data)
        if self._managing is not None and not is_data:
            self._managing.show(run)
        facts = [Fact("state", status.state(run))]
        self._facts.show([*facts, *(Fact(name, text or "") for name, text in said_of.items())])
        drawn = any(name in run["curves"] for chart in CHARTS for name in chart.metrics)
        self._no_curves.set_visibility(not drawn)
        self._curves.show(run["curves"])
        self._flow.show(run["experiences"])
        self._balance.show(run)
        self._rewards.show([_version(one) for one in run["rewards"]])
        self._drops.show([_drop(self._name, one) for one in run["drops"]])
        self._workers.show([_worker(one) for one in run["workers"]])
        self._alerts.show(run["alerts"])
        self._events.show(run["events"])

    def empty(self) -> None:
        self._content.clear()
        with self._content:
            said("a", "All runs", "button", href="/")


def _drops() -> Rows:
    layout.heading("Drops", "Rows, groups and pairs that will not be trained on.")
    columns = [
        Column("reason"),
        Column("stage"),
        Column("step"),
        Column("experiences", "number"),
        Column("groups", "number"),
        Column("pairs", "number"),
    ]
    return Rows("drops", columns, "Nothing was dropped.")


def _rewards() -> Rows:
    layout.heading("Rewards by policy version", REWARDS)
    columns = [
        Column("version"),
        Column("step", "number", "trainer step after which it was published"),
        Column("experiences", "number", "rows whose oldest token it wrote"),
        Column("reward", "number", "mean, as it was at training"),
        Column("reward now", "number", "mean, with what was said since"),
        Column("loss", "number", "of that step"),
    ]
    return Rows("rewards by policy version", columns, "No policy version was published yet.")


def _workers(name: str) -> Rows:
    layout.heading("Processes", "Workers that have not stopped.")
    columns = [Column("role"), Column("host"), Column("pid", "number"), Column("life")]
    empty = f"No process works on this run. trinity-db run CONFIG starts the roles of '{name}' again."
    return Rows("processes", columns, empty)


def _version(one: Mapping[str, Any]) -> list[Cell]:
    return [
        Cell(str(one["version"])),
        Cell(layout.number(one["step"])),
        Cell(layout.number(one["experiences"])),
        Cell(layout.number(one["reward"])),
        Cell(layout.number(one["reward_now"])),
        Cell("" if one["loss"] is None else f"{one['loss']:.4g}"),
    ]


def _drop(run: str, one: Mapping[str, Any]) -> list[Cell]:
    return [
        Cell(one["reason"], layout.place("experiences", run=run, reason=one["reason"])),
        Cell(one["stage"]),
        Cell(one["step"] or ""),
        *(Cell(f"{one[kind]:,}" if one[kind] else "") for kind in ("experiences", "groups", "preferences")),
    ]


def _worker(one: Mapping[str, Any]) -> list[Cell]:
    life = "alive" if one["alive"] else f"silent for {one['silent_seconds']:,.0f} s"
    kind = "alive" if one["alive"] else "silent"
    return [Cell(one["role"]), Cell(one["host"]), Cell(str(one["pid"])), Cell(life, kind=kind)]
