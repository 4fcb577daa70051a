"""Counts of a run's rows from one state to the next, and which of its roles waits."""

from collections.abc import Mapping
from typing import Any

from nicegui.elements.mixins.text_element import TextElement

from trinity_db.insight.status import COUNTS, RATE_SECONDS, RECENT_BATCHES, counted
from trinity_db.page import layout
from trinity_db.page.elements import Cell, Column, Rows, element

WAY = ("raw", "clean", "scored", "ready", "leased", "trained")
ENDS = ("dropped", "expired")
NO_ROWS = "No experiences yet. The first one appears once the model has loaded: is an explorer alive?"


class Flow:
    """Counts of rows by state, each a link to the rows."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._counts: dict[str, TextElement] = {}
        layout.heading(
            "Experiences by state", "From left to right; rows that are not trained on are separate."
        )
        with element("div", "", "flows"):
            self._steps("on the way", WAY)
            self._steps("not trained on", ENDS)
        self._empty = element("p", NO_ROWS, "empty")

    def show(self, rows: Mapping[str, int]) -> None:
        for state, count in self._counts.items():
            count.text = f"{rows.get(state, 0):,}"
        self._empty.set_visibility(not any(rows.values()))

    def _steps(self, label: str, states: tuple[str, ...]) -> None:
        with element("ol", "", f"flow {'way' if states is WAY else 'ends'}", aria_label=label):
            for state in states:
                link = layout.link("experiences", run=self._run, state=state)
                with element("li"), element("a", "", f"state-{state}", href=link):
                    self._counts[state] = element("b", "0")
                    element("span", state)


class Balance:
    """What each role achieves, and what it waits for."""

    def __init__(self) -> None:
        layout.heading(
            "Balance",
            f"Throughput of each role in the last {RATE_SECONDS} s, and the share of time it waited in the "
            f"last {RECENT_BATCHES} steps.",
        )
        columns = [Column("role"), Column("does", "number"), Column("waits")]
        self._table = Rows("balance", columns, "")

    def show(self, run: Mapping[str, Any]) -> None:
        rates, waits, rows = run["rates"], run["waiting"], counted(run)
        behind = sum(rows.get(state, 0) for state in COUNTS["waiting"])
        self._table.show(
            [
                [
                    Cell("explore"),
                    Cell(f"{rates['rollouts_per_second']:g} rollouts/s"),
                    Cell(_share(waits["explorers"], "training")),
                ],
                [Cell("process"), Cell(""), Cell(f"{layout.count(behind, 'row waits', 'rows wait')} for it")],
                [
                    Cell("train"),
                    Cell(f"{rates['trained_rows_per_second']:g} rows/s"),
                    Cell(_share(waits["trainer"], "rollouts")),
                ],
            ]
        )


def _share(share: float | None, work: str) -> str:
    return "not measured yet" if share is None else f"{share:.0%} of its time, for {work}"
