"""Comparison of runs: curves of any metrics, last figures, settings that differ. The link holds the state."""

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
    Selection,
    comparison_query,
)
from trinity_db.page.elements import Cell, Column, Rows, element
from trinity_db.page.reader import Reader
from trinity_db.page.settings import cut, value

LETTERS = "ABCDEF"  # names of runs may be long, and ECharts gets no text from the store
UNITS = {name: chart.unit for chart in CHARTS for name in chart.metrics}
TIMES = (("hours", 3600.0, 2 * 3600.0), ("minutes", 60.0, 120.0), ("seconds", 1.0, 0.0))
"""Units of a time axis: name, seconds, and the duration from which the unit is used."""
NAME = 40  # characters of a run's name in a column header
NOTHING = "No run has measured this yet, or it cannot be drawn over this axis."
NO_CURVES = "These runs have no metrics yet. Curves appear after the first step: are the trainers alive?"
EQUAL = "All settings are equal, and none has changed."


def register(reader: Reader) -> None:
    """Add the page."""

    @ui.page("/compare", response_timeout=layout.RESPONSE_SECONDS)
    async def compare_page(request: Request) -> None:
        with layout.frame("Compare runs"):
            try:
                selection = read_link(request.query_params)
            except ConfigError as error:
                element("p", str(error), "notice", role="alert")
                element("a", "All runs", "button", href="/")
                return
            await layout.once(
                reader, comparison_query(selection), lambda compared: _show(selection, compared)
            ).look()


def read_link(parameters: QueryParams) -> Selection:
    """Parse a link into the comparison to show.

    Raises:
        ConfigError: if it names no run, too many runs or metrics, or an unknown axis.
    """
    runs, metrics = (
        tuple(dict.fromkeys(layout.text(text) for text in parameters.getlist(name) if text.strip()))
        for name in ("run", "metric")
    )
    over = parameters.get("over", "step")
    if not 1 <= len(runs) <= MAX_RUNS:
        raise ConfigError(f"{len(runs)} runs are selected: tick 2 to {MAX_RUNS} on the page of all runs.")
    if len(metrics) > MAX_METRICS:
        raise ConfigError(f"{len(metrics)} metrics are selected: select at most {MAX_METRICS}.")
    if over not in OVER:
        raise ConfigError(f"'{over[:40]}' is not an axis; use one of {', '.join(OVER)}.")
    return Selection(runs, metrics, over)


def _show(selection: Selection, compared: Comparison) -> None:
    _legend(compared.runs)
    _form(selection, compared)
    if compared.metrics:
        _charts(selection, compared)
    else:
        element("p", NO_CURVES, "empty")
    _last(compared)
    _settings(compared.runs)


def _legend(runs: Sequence[Compared]) -> None:
    """Show the letter, colour and dashes of each run."""
    with element("ul", "", "runs", aria_label="Runs"):
        for letter, style, run in zip(LETTERS, STYLES, runs, strict=False):
            with element("li"):
                _sample(style)
                element("b", letter)
                element("a", run.row["name"], href=layout.link("run", run.row["name"]))


def _sample(style: Style) -> None:
    with element("svg", "", "sample", viewBox="0 0 46 8", aria_hidden="true"):
        dashes = " ".join(map(str, style.dashes))
        line = element("line", x1="0", y1="4", x2="46", y2="4", stroke=style.colour, stroke_width="2.5")
        if dashes:
            line.props["stroke-dasharray"] = dashes


def _form(selection: Selection, compared: Comparison) -> None:
    """Show a plain HTML form: it works by keyboard, and its fields become the link."""
    with element("form", "", "filters", action="/compare", method="get", aria_label="What to draw"):
        for run in selection.runs:
            element("input", type="hidden", name="run", value=run)
        with element("label", "over"), element("select", name="over", aria_label="over"):
            for over, text in OVER.items():
                option = element("option", text, value=over)
                if over == selection.over:
                    option.props["selected"] = True
        with element("details", "", "choices"):
            element("summary", f"Metrics: {len(compared.metrics)} of {len(compared.names)}")
            with element("div"):
                for name in dict.fromkeys([*compared.metrics, *compared.names]):
                    with element("label"):
                        box = element("input", type="checkbox", name="metric", value=name)
                        element("span", name)
                    if name in compared.metrics:
                        box.props["checked"] = True
        element("button", "Show", "main", type="submit")


def _charts(selection: Selection, compared: Comparison) -> None:
    unit, length = _axis(selection.over, compared)
    layout.heading(
        "Curves", f"Over {OVER[selection.over]}{unit}. With many steps, a point is the mean of several."
    )
    with element("div", "", "charts"):
        for name in compared.metrics:
            lines = [
                Line(letter, _divided(run.curves.get(name, ()), length), style)
                for letter, style, run in zip(LETTERS, STYLES, compared.runs, strict=False)
                if run.curves.get(name)
            ]
            if lines:
                card(
                    name,
                    UNITS.get(name, ""),
                    drawing(lines, names_at_ends=True, whole=selection.over != "time"),
                )
            else:
                with element("section", "", "card"):
                    element("h3", name)
                    element("p", NOTHING, "muted")


def _axis(over: str, compared: Comparison) -> tuple[str, float]:
    """Unit of the axis as text, and its length in seconds; "" and 1 unless the axis is time."""
    if over != "time":
        return "", 1.0
    longest = max((points[-1][0] for run in compared.runs for points in run.curves.values()), default=0.0)
    unit, length = next((unit, length) for unit, length, least in TIMES if longest >= least)
    return f", in {unit}", length


def _divided(points: Sequence[Point], length: float) -> Sequence[Point]:
    return points if length == 1.0 else [(x / length, value) for x, value in points]


def _last(compared: Comparison) -> None:
    layout.heading("Last figures", "The last measured value of each metric.")
    table = Rows("last figures", [Column("figure"), *_columns(compared.runs, "number")], "")
    runs = compared.runs
    table.show(
        [
            [Cell("state"), *(Cell(run.row["state"]) for run in runs)],
            [Cell("created"), *(Cell(f"{run.row['created_at']:%Y-%m-%d %H:%M %Z}") for run in runs)],
            [Cell("time, in hours"), *(Cell(f"{run.row['seconds'] / 3600:,.2f}") for run in runs)],
            [Cell("policy version"), *(Cell(layout.number(run.row["version"])) for run in runs)],
            [Cell("trainer step"), *(Cell(layout.number(run.row["step"])) for run in runs)],
            [Cell("trained tokens"), *(Cell(_figure(run.last.get(TOKENS))) for run in runs)],
            *(
                [Cell(name), *(Cell(_figure(run.last.get(name))) for run in runs)]
                for name in compared.metrics
            ),
        ]
    )


def _settings(runs: Sequence[Compared]) -> None:
    layout.heading(
        "Settings", "By dotted keys. Earlier values are below the current one, with the time of the change."
    )
    equal: list[str] = []
    differ: list[str] = []
    for key in sorted({key for run in runs for key in (*run.settings, *run.changes)} - {"name"}):
        values = {value(run.settings.get(key)) for run in runs}
        (equal if len(values) == 1 and not any(key in run.changes for run in runs) else differ).append(key)
    columns = [Column("setting"), *_columns(runs, "long")]
    Rows("settings that differ", columns, EQUAL).show([_setting(key, runs) for key in differ])
    if equal:
        with element("details", "", "equal"):
            element("summary", f"{layout.count(len(equal), 'setting is', 'settings are')} equal")
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
    """Current value, and below it the earlier values with the time of each change, newest first."""
    lines = [value(settings.get(key)) if key in settings else "not set"]
    for change in reversed(changes):
        since = "" if change.since_step is None else f", before step {change.since_step:,}"
        lines.append(f"{value(change.before)} until {change.changed_at:%Y-%m-%d %H:%M %Z}{since}")
    return "\n".join(lines)


def _figure(measured: float | None) -> str:
    """Format a number: whole if it is large, so that figures can be compared."""
    if measured is None:
        return ""
    return f"{measured:,.0f}" if abs(measured) >= 10_000 else f"{measured:.4g}"
