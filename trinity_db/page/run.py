"""The page of a run: curves, rows, processes, drops."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from nicegui import ui

from trinity_db.insight import status
from trinity_db.page import layout, questions
from trinity_db.page.alerts import Alerts
from trinity_db.page.answers import Answers
from trinity_db.page.charts import CHARTS, Curves
from trinity_db.page.elements import Cell, Column, Fact, Facts, Rows, element
from trinity_db.page.events import Events
from trinity_db.page.flow import Balance, Flow
from trinity_db.page.layout import Look
from trinity_db.page.manager import Manager
from trinity_db.page.managing import Managing
from trinity_db.page.reader import Reader
from trinity_db.page.rights import Right, may

TABLED = {"run", "workers", "drops", "experiences", "rewards", "rates", "waiting"}
"""Keys shown in separate sections or in the head."""
REWARDS = (
    "Of the newest versions, at training and now; means of at most the "
    f"{questions.REWARD_ROWS:,} newest rows of each. trinity-db status uses all rows."
)
LINKS = (("Its experiences", "experiences"), ("Its tasks", "tasks"), ("Its evaluation", "evaluation"))
NO_CURVES = "No training step yet. Curves appear after the first one: is the trainer alive?"


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
        self._content = element("div")
        with self._content:
            self._facts = Facts()
            with element("p", "", "more"):
                links = [
                    element("a", words, "button", href=layout.link(path, run=name)) for words, path in LINKS
                ]
            self._of_policy = links[1:]  # a data set has no policy
            self._managing = None if manager is None else Managing(manager, name, self.look.soon)
            layout.heading("Alerts")
            self._alerts = Alerts()
            self._flow = Flow(name)
            self._training = element("div")
            with self._training:
                self._balance = Balance()
                layout.heading("Curves", "By trainer step. With many steps, a point is the mean of several.")
                self._no_curves = element("p", NO_CURVES, "empty")
                self._curves = Curves()
            self._tables()

    def _tables(self) -> None:
        with element("div", "", "halves"):
            with element("section"):
                self._drops = _drops()
            self._of_roles = element("section"), element("section")
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
        self._rewards.show([_version(row) for row in run["rewards"]])
        self._drops.show([_drop(self._name, row) for row in run["drops"]])
        self._workers.show([_worker(row) for row in run["workers"]])
        self._alerts.show(run["alerts"])
        self._events.show(run["events"])

    def empty(self) -> None:
        self._content.clear()
        with self._content:
            element("a", "All runs", "button", href="/")


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
    return Rows("drops", columns, "No drops.")


def _rewards() -> Rows:
    layout.heading("Rewards by policy version", REWARDS)
    columns = [
        Column("version"),
        Column("step", "number", "trainer step after which it was published"),
        Column("experiences", "number", "rows whose oldest token it sampled"),
        Column("reward", "number", "mean at training"),
        Column("reward now", "number", "mean including later rewards"),
        Column("loss", "number", "loss of that step"),
    ]
    return Rows("rewards by policy version", columns, "No policy version has been published yet.")


def _workers(name: str) -> Rows:
    layout.heading("Processes", "Workers that have not signed off.")
    columns = [Column("role"), Column("host"), Column("pid", "number"), Column("life")]
    empty = f"No process works on this run. trinity-db run CONFIG restarts the roles of '{name}'."
    return Rows("processes", columns, empty)


def _version(row: Mapping[str, Any]) -> list[Cell]:
    return [
        Cell(str(row["version"])),
        Cell(layout.number(row["step"])),
        Cell(layout.number(row["experiences"])),
        Cell(layout.number(row["reward"])),
        Cell(layout.number(row["reward_now"])),
        Cell("" if row["loss"] is None else f"{row['loss']:.4g}"),
    ]


def _drop(run: str, row: Mapping[str, Any]) -> list[Cell]:
    return [
        Cell(row["reason"], layout.link("experiences", run=run, reason=row["reason"])),
        Cell(row["stage"]),
        Cell(row["step"] or ""),
        *(Cell(f"{row[kind]:,}" if row[kind] else "") for kind in ("experiences", "groups", "preferences")),
    ]


def _worker(row: Mapping[str, Any]) -> list[Cell]:
    life = "alive" if row["alive"] else f"silent for {row['silent_seconds']:,.0f} s"
    kind = "alive" if row["alive"] else "silent"
    return [Cell(row["role"]), Cell(row["host"]), Cell(str(row["pid"])), Cell(life, kind=kind)]
