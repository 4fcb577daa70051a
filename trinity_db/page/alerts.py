"""Alerts: what `trinity-db doctor` finds wrong with runs, each with a way to what shows it."""

from collections.abc import Sequence

from trinity_db.diagnosis.finding import Finding
from trinity_db.page import layout
from trinity_db.page.elements import Cell, Column, Rows

SHOWN_BY = Column("shown by", hint="the rows, the group or the curve that show it")
COLUMNS = (Column("alert"), Column("found", "long"), Column("remedy", "long"), SHOWN_BY)
NONE = "No alerts: the checks of trinity-db doctor find nothing wrong."


class Alerts:
    """A table of alerts."""

    def __init__(self) -> None:
        self._table = Rows("alerts", COLUMNS, NONE)

    def show(self, alerts: Sequence[Finding]) -> None:
        self._table.show(
            [[Cell(one.what), Cell(one.found), Cell(one.remedy or ""), shown_by(one)] for one in alerts]
        )


def shown_by(alert: Finding) -> Cell:
    """The way to what shows it; nothing for what no page shows."""
    match alert.shown:
        case None:
            return Cell()
        case {"metric": name}:
            return Cell(f"curve of {name}", layout.place("compare", run=alert.run, metric=name))
        case {"group": number}:
            return Cell(f"group {number}", layout.place("group", number))
        case filters:
            return Cell("experiences", layout.place("experiences", run=alert.run, **filters))
