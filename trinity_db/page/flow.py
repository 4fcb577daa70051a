"""How far the rows of a run are, as a flow from one state to the next, and which of its roles waits."""

from collections.abc import Mapping
from typing import Any

from nicegui.elements.mixins.text_element import TextElement

from trinity_db.inspection.status import COUNTS, RATE_SECONDS, RECENT_BATCHES, counted
from trinity_db.page import layout
from trinity_db.page.elements import Cell, Column, Rows, said

WAY = ("raw", "clean", "scored", "ready", "leased", "trained")
ENDS = ("dropped", "expired")
NO_ROWS = (
    "No experience was written yet. The first takes as long as the model takes to load: is an explorer alive?"
)


class Flow:
    """Counts of rows by state, each a link to these rows."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._counts: dict[str, TextElement] = {}
        layout.heading(
            "Experiences by state", "From left to right; what will not be trained on stands apart."
        )
        with said("div", "", "flows"):
            self._steps("on the way", WAY)
            self._steps("not trained on", ENDS)
        self._empty = said("p", NO_ROWS, "empty")

    def show(self, rows: Mapping[str, int]) -> None:
        for state, count in self._counts.items():
            count.text = f"{rows.get(state, 0):,}"
        self._empty.set_visibility(not any(rows.values()))

    def _steps(self, label: str, states: tuple[str, ...]) -> None:
        with said("ol", "", f"flow {'way' if states is WAY else 'ends'}", aria_label=label):
            for state in states:
                place = layout.place("experiences", run=self._run, state=state)
                with said("li"), said("a", "", f"state-{state}", href=place):
                    self._counts[state] = said("b", "0")
                    said("span", state)


class Balance:
    """What each role gets done, and what it waits for."""

    def __init__(self) -> None:
        layout.heading(
            "Balance",
            f"What the roles did in the last {RATE_SECONDS} s, and how much of their time they waited in the "
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


def _share(share: float | None, what: str) -> str:
    return "not measured yet" if share is None else f"{share:.0%} of its time, for {what}"
