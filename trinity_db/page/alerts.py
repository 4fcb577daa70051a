"""Alerts: problems of runs that `trinity-db doctor` finds, each with a link to the evidence."""

from collections.abc import Sequence

from trinity_db.insight.checks.finding import Finding
from trinity_db.page import layout
from trinity_db.page.elements import Cell, Column, Rows

SHOWN_BY = Column("shown by", hint="rows, group or curve that show the problem")
COLUMNS = (Column("alert"), Column("found", "long"), Column("remedy", "long"), SHOWN_BY)
NONE = "No alerts: the checks of trinity-db doctor found no problems."


class Alerts:
    """A table of alerts."""

    def __init__(self) -> None:
        self._table = Rows("alerts", COLUMNS, NONE)

    def show(self, alerts: Sequence[Finding]) -> None:
        self._table.show(
            [
                [Cell(alert.what), Cell(alert.found), Cell(alert.remedy or ""), shown_by(alert)]
                for alert in alerts
            ]
        )


def shown_by(alert: Finding) -> Cell:
    """Link to the rows, group or curve behind an alert; empty if no page shows it."""
    match alert.shown:
        case None:
            return Cell()
        case {"metric": name}:
            return Cell(f"curve of {name}", layout.link("compare", run=alert.run, metric=name))
        case {"group": number}:
            return Cell(f"group {number}", layout.link("group", number))
        case filters:
            return Cell("experiences", layout.link("experiences", run=alert.run, **filters))
