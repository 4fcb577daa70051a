"""The newest events of a run: changed settings, setbacks, drops, workers that start and end."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from psycopg.rows import DictRow

from trinity_db.insight.words import moment
from trinity_db.page import layout
from trinity_db.page.elements import Cell, Column, Rows
from trinity_db.page.settings import changed, cut, value
from trinity_db.postgres.connection import Transaction
from trinity_db.schema.queries import query
from trinity_db.store.lost_commits import describe

EVENTS = 20  # events on a run's page
DROPS = 2_000  # newest drops, which are grouped into events: a few ms
CHARACTERS = 400  # characters of a settings change


def newest(tx: Transaction, run_id: int) -> list[dict[str, Any]]:
    """Return the newest events of a run, newest first, each with its time, kind and details."""
    values = {"run_id": run_id, "limit": EVENTS, "drops": DROPS}
    happened: list[dict[str, Any]] = list(tx.execute(query("events_newest"), values))
    settings = tx.execute(query("events_settings"), values).fetchall()
    for before, after in pairwise(settings):
        changes = changed(before["config"], after["config"])
        happened.append(
            {"at": after["created_at"], "kind": "settings", "by": after["created_by"], "changed": changes}
        )
    return sorted(happened, key=lambda event: event["at"], reverse=True)[:EVENTS]


class Events:
    """A table of events."""

    def __init__(self, run: str) -> None:
        self._run = run
        layout.heading(
            "Events", f"The {EVENTS} newest: settings, setbacks, drops, workers that start and end."
        )
        columns = [Column("time"), Column("event"), Column("what", "long")]
        self._table = Rows("events", columns, "No events yet: trinity-db run starts the roles.")

    def show(self, events: Sequence[DictRow]) -> None:
        self._table.show([self._row(event) for event in events])

    def _row(self, event: DictRow) -> list[Cell]:
        time = Cell(moment(event["at"]))
        match event["kind"]:
            case "settings":
                keys = "\n".join(
                    f"{key}: {value(before)} → {value(after)}"
                    for key, (before, after) in event["changed"].items()
                )
                by = f" by {event['by']}" if event["by"] else ""
                return [time, Cell(f"settings changed{by}"), Cell(cut(keys, CHARACTERS))]
            case "setback":
                return [time, Cell("server lost", kind="silent"), Cell(describe(event["setback"]))]
            case "drop":
                rows = layout.count(event["rows"], "drop", "drops")
                link = layout.link("experiences", run=self._run, reason=event["reason"])
                return [time, Cell(rows, link), Cell(event["reason"])]
        verb = "starts" if event["kind"] == "start" else "ends"
        return [time, Cell(f"{event['role']} {verb}"), Cell(f"on {event['host']}, pid {event['pid']}")]
