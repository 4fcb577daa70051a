"""Runs side by side: curves of any metrics, last figures, settings that differ. The link is the state."""

from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui
from starlette.datastructures import QueryParams
from starlette.requests import Request

from trinity_db.errors import ConfigError
from trinity_db.page import layout
from trinity_db.page.charts import CHARTS, STYLES, Line, Point, Style, card, drawing
from trinity_db.page.comparison import (
    MAX_METRICS,
    MAX_RUNS,
    OVER,
    TOKENS,
    Change,
    Compared,
    Comparison,
    Wanted,
    comparison,
)
from trinity_db.page.elements import Cell, Column, Rows, said
from trinity_db.page.reader import Reader
from trinity_db.page.settings import cut, value

LETTERS = "ABCDEF"  # a run's name may be long, and ECharts is given no text of the store
UNITS = {name: chart.unit for chart in CHARTS for name in chart.metrics}
TIMES = (("hours", 3600.0, 2 * 3600.0), ("minutes", 60.0, 120.0), ("seconds", 1.0, 0.0))
"""What an axis of time is in, the seconds of one, and from how many seconds on."""
NAME = 40  # characters of a run's name at the head of a column
NOTHING = "No run has measured this yet, or not where it can be drawn over this."
NO_CURVES = "These runs have measured nothing yet. Curves appear with the first step: are the trainers alive?"
EQUAL = "All settings are equal, and none was changed."


def register(reader: Reader) -> None:
    """Add the page."""

    @ui.page("/compare", response_timeout=layout.RESPONSE_SECONDS)
    async def compare_page(request: Request) -> None:
        with layout.frame("Compare runs"):
            try:
                wanted = read_link(request.query_params)
            except ConfigError as error:
                said("p", str(error), "notice", role="alert")
                said("a", "All runs", "button", href="/")
                return
            await layout.once(reader, comparison(wanted), lambda found: _show(wanted, found)).look()


def read_link(given: QueryParams) -> Wanted:
    """What a link asks to be compared.

    Raises:
        ConfigError: it names no run, too many runs or metrics, or something else to draw over.
    """
    runs, metrics = (
        tuple(dict.fromkeys(layout.text(one) for one in given.getlist(name) if one.strip()))
        for name in ("run", "metric")
    )
    over = given.get("over", "step")
    if not 1 <= len(runs) <= MAX_RUNS:
        raise ConfigError(f"{len(runs)} runs are chosen: tick 2 to {MAX_RUNS} on the page of all runs.")
    if len(metrics) > MAX_METRICS:
        raise ConfigError(f"{len(metrics)} metrics are chosen: choose {MAX_METRICS} at most.")
    if over not in OVER:
        raise ConfigError(f"'{over[:40]}' is nothing to draw over; give one of {', '.join(OVER)}.")
    return Wanted(runs, metrics, over)


def _show(wanted: Wanted, found: Comparison) -> None:
    _legend(found.runs)
    _form(wanted, found)
    if found.metrics:
        _charts(wanted, found)
    else:
        said("p", NO_CURVES, "empty")
    _last(found)
    _settings(found.runs)


def _legend(runs: Sequence[Compared]) -> None:
    """Which letter, colour and dashes stand for which run."""
    with said("ul", "", "runs", aria_label="Runs"):
        for letter, style, run in zip(LETTERS, STYLES, runs, strict=False):
            with said("li"):
                _sample(style)
                said("b", letter)
                said("a", run.row["name"], href=layout.place("run", run.row["name"]))


def _sample(style: Style) -> None:
    with said("svg", "", "sample", viewBox="0 0 46 8", aria_hidden="true"):
        dashes = " ".join(map(str, style.dashes))
        line = said("line", x1="0", y1="4", x2="46", y2="4", stroke=style.colour, stroke_width="2.5")
        if dashes:
            line.props["stroke-dasharray"] = dashes


def _form(wanted: Wanted, found: Comparison) -> None:
    """A plain form: it works by keyboard, and its fields become the link."""
    with said("form", "", "filters", action="/compare", method="get", aria_label="What to draw"):
        for run in wanted.runs:
            said("input", type="hidden", name="run", value=run)
        with said("label", "over"), said("select", name="over", aria_label="over"):
            for over, text in OVER.items():
                option = said("option", text, value=over)
                if over == wanted.over:
                    option.props["selected"] = True
        with said("details", "", "choices"):
            said("summary", f"Metrics: {len(found.metrics)} chosen of {len(found.names)}")
            with said("div"):
                for name in dict.fromkeys([*found.metrics, *found.names]):
                    with said("label"):
                        box = said("input", type="checkbox", name="metric", value=name)
                        said("span", name)
                    if name in found.metrics:
                        box.props["checked"] = True
        said("button", "Show", "main", type="submit")


def _charts(wanted: Wanted, found: Comparison) -> None:
    unit, length = _axis(wanted.over, found)
    layout.heading(
        "Curves", f"Over {OVER[wanted.over]}{unit}. A point is the mean over its steps, if there are many."
    )
    with said("div", "", "charts"):
        for name in found.metrics:
            lines = [
                Line(letter, _divided(run.curves.get(name, ()), length), style)
                for letter, style, run in zip(LETTERS, STYLES, found.runs, strict=False)
                if run.curves.get(name)
            ]
            if lines:
                card(
                    name, UNITS.get(name, ""), drawing(lines, names_at_ends=True, whole=wanted.over != "time")
                )
            else:
                with said("section", "", "card"):
                    said("h3", name)
                    said("p", NOTHING, "muted")


def _axis(over: str, found: Comparison) -> tuple[str, float]:
    """What the axis counts, if that is time, and how much of it is one."""
    if over != "time":
        return "", 1.0
    longest = max((points[-1][0] for run in found.runs for points in run.curves.values()), default=0.0)
    unit, length = next((unit, length) for unit, length, least in TIMES if longest >= least)
    return f", in {unit}", length


def _divided(points: Sequence[Point], length: float) -> Sequence[Point]:
    return points if length == 1.0 else [(place / length, value) for place, value in points]


def _last(found: Comparison) -> None:
    layout.heading("Last figures", "Of each metric what was measured last.")
    table = Rows("last figures", [Column("figure"), *_columns(found.runs, "number")], "")
    runs = found.runs
    table.show(
        [
            [Cell("state"), *(Cell(run.row["state"]) for run in runs)],
            [Cell("made"), *(Cell(f"{run.row['created_at']:%Y-%m-%d %H:%M %Z}") for run in runs)],
            [Cell("time, in hours"), *(Cell(f"{run.row['seconds'] / 3600:,.2f}") for run in runs)],
            [Cell("policy version"), *(Cell(layout.number(run.row["version"])) for run in runs)],
            [Cell("trainer step"), *(Cell(layout.number(run.row["step"])) for run in runs)],
            [Cell("trained tokens"), *(Cell(_figure(run.last.get(TOKENS))) for run in runs)],
            *([Cell(name), *(Cell(_figure(run.last.get(name))) for run in runs)] for name in found.metrics),
        ]
    )


def _settings(runs: Sequence[Compared]) -> None:
    layout.heading(
        "Settings", "By dotted keys. What a run had before stands below, with the time of the change."
    )
    equal: list[str] = []
    differ: list[str] = []
    for key in sorted({key for run in runs for key in (*run.settings, *run.changes)} - {"name"}):
        values = {value(run.settings.get(key)) for run in runs}
        (equal if len(values) == 1 and not any(key in run.changes for run in runs) else differ).append(key)
    columns = [Column("setting"), *_columns(runs, "long")]
    Rows("settings that differ", columns, EQUAL).show([_setting(key, runs) for key in differ])
    if equal:
        with said("details", "", "equal"):
            said("summary", f"{layout.count(len(equal), 'setting is', 'settings are')} equal")
            shared = [Column("setting"), Column("value", "long")]
            Rows("equal settings", shared, "").show(
                [[Cell(key), Cell(value(runs[0].settings.get(key)))] for key in equal]
            )


def _columns(runs: Sequence[Compared], kind: Any) -> list[Column]:
    return [
        Column(f"{letter}: {cut(run.row['name'], NAME)}", kind)
        for letter, run in zip(LETTERS, runs, strict=False)
    ]


def _setting(key: str, runs: Sequence[Compared]) -> list[Cell]:
    return [Cell(key), *(Cell(_history(run.settings, run.changes.get(key, ()), key)) for run in runs)]


def _history(settings: Mapping[str, Any], changes: Sequence[Change], key: str) -> str:
    """The value, and below it what it was before each change, newest first."""
    lines = [value(settings.get(key)) if key in settings else "not set"]
    for change in reversed(changes):
        since = "" if change.since_step is None else f", before step {change.since_step:,}"
        lines.append(f"{value(change.before)} until {change.changed_at:%Y-%m-%d %H:%M %Z}{since}")
    return "\n".join(lines)


def _figure(measured: float | None) -> str:
    """A measured number, whole where it is large, so that figures can be compared."""
    if measured is None:
        return ""
    return f"{measured:,.0f}" if abs(measured) >= 10_000 else f"{measured:.4g}"
