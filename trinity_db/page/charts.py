"""Charts of the metrics that trainers measured at each step, of one run or of runs side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nicegui import ui

from trinity_db.page.elements import element

Point = tuple[float, float]


@dataclass(frozen=True)
class Style:
    """Style of a curve: a colour, and dashes for readers who cannot tell the colours apart."""

    colour: str
    dashes: tuple[int, ...] = ()
    """Pixels of dash and gap in turn; (): a solid line."""


STYLES = (
    Style("#4f83e8"),
    Style("#e0793a", (7, 4)),
    Style("#35a57c", (2, 3)),
    Style("#c2589f", (10, 3, 2, 3)),
    Style("#8a6fd6", (14, 5)),
    Style("#a8842a", (5, 3, 1, 3, 1, 3)),
)
"""Styles, each with a contrast of at least 3 to 1 on light and dark backgrounds."""


@dataclass(frozen=True)
class Line:
    """One curve of a chart."""

    name: str
    """Label from the code: no name from the store reaches ECharts, which renders some as HTML."""
    points: Sequence[Point]
    style: Style


@dataclass(frozen=True)
class Chart:
    """A chart, and the metrics that it shows; docs/reference/metrics.md describes them."""

    title: str
    unit: str
    metrics: Mapping[str, str]
    """Label of each curve, by the name of its metric."""


CHARTS = (
    Chart("Reward", "mean over the rows of a step", {"reward": "reward", "reward_std": "deviation"}),
    Chart(
        "Response length",
        "tokens",
        {"completions/mean_length": "mean", "completions/max_length": "longest"},
    ),
    Chart("Staleness", "policy versions", {"sample/staleness_mean": "mean", "sample/staleness_max": "max"}),
    Chart(
        "Visible update",
        "share of the update that is visible in a version's weights",
        {"publish/visible": "since version 0", "publish/visible_last_ten": "last ten versions"},
    ),
    Chart("Changed weights", "share that differs from the previous version", {"publish/changed": "changed"}),
    Chart("Rounding noise", "relative to the size of the weights", {"publish/noise": "noise"}),
    Chart(
        "Engine and trainer",
        "nats per token, difference for the same weights: about 0.03 if one of them is in bfloat16, 0.005 in "
        "float16, 3e-6 in float32; see docs/guides/precision.md",
        {"sampling/engine_logp_difference/mean": "mean", "sampling/engine_logp_difference/max": "most"},
    ),
    Chart("Loss", "minimised by the step", {"loss": "loss"}),
    Chart("Gradient", "norm before clipping", {"grad_norm": "gradient"}),
    Chart("Entropy", "nats per token", {"entropy": "entropy"}),
    Chart("Divergence", "nats per token", {"kl": "from the reference", "approx_kl": "within the step"}),
    Chart("Pairs", "share with a positive margin", {"rewards/accuracies": "accuracy"}),
    Chart("Imitation", "share of tokens that are the most likely", {"mean_token_accuracy": "accuracy"}),
    Chart("Throughput", "tokens per second and process", {"perf/throughput": "trained"}),
    Chart("Time of a step", "seconds", {"step_time": "total", "time/wait_for_batch": "waiting"}),
)
METRICS = [name for chart in CHARTS for name in chart.metrics]


class Curves:
    """The charts of one run. A chart appears once there is something to draw."""

    def __init__(self) -> None:
        self._grid = element("div", "", "charts")
        self._drawn: dict[str, ui.echart] = {}

    def show(self, points: Mapping[str, Sequence[Point]]) -> None:
        for chart in CHARTS:
            options = drawing(_lines(chart, points))
            drawn = self._drawn.get(chart.title)
            if drawn is None and options["series"]:
                with self._grid:
                    self._drawn[chart.title] = card(chart.title, chart.unit, options)
            elif drawn is not None and options != drawn.options:
                drawn.options.clear()
                drawn.options.update(options)
                drawn.update()


def draw(charts: Sequence[Chart], points: Mapping[str, Sequence[Point]]) -> None:
    """Draw charts that do not change; charts without points are left out."""
    with element("div", "", "charts"):
        for chart in charts:
            if lines := _lines(chart, points):
                card(chart.title, chart.unit, drawing(lines))


def _lines(chart: Chart, points: Mapping[str, Sequence[Point]]) -> list[Line]:
    named = [(called, points[name]) for name, called in chart.metrics.items() if points.get(name)]
    return [Line(called, values, style) for (called, values), style in zip(named, STYLES, strict=False)]


def card(title: str, unit: str, options: dict[str, Any]) -> ui.echart:
    """Draw a chart below its title."""
    with element("section", "", "card"):
        with element("h3", f"{title} "):
            element("small", unit)
        return ui.echart(options, renderer="svg").classes("chart")


def drawing(lines: Sequence[Line], *, names_at_ends: bool = False, whole: bool = True) -> dict[str, Any]:
    """Return options for ECharts, without keys or texts of the store. Points are a tuple: see elements.

    Args:
        names_at_ends: label each curve at its end instead of in a legend.
        whole: whether the x values are whole numbers.
    """
    has_legend = len(lines) > 1 and not names_at_ends
    line = {"lineStyle": {"color": "rgba(128,128,128,0.25)"}}
    return {
        "animation": False,
        "grid": {"left": 8, "right": 22 if names_at_ends else 14, "top": 12,
                 "bottom": 30 if has_legend else 8, "containLabel": True},
        "xAxis": {"type": "value", "name": "", "min": "dataMin", "max": "dataMax",
                  "minInterval": 1 if whole else 0, "splitLine": {"show": False}, "axisLine": line,
                  "axisTick": {"show": False}, "axisLabel": {"hideOverlap": True}},
        "yAxis": {"type": "value", "scale": True, "splitNumber": 3, "splitLine": line},
        "legend": {"show": has_legend, "bottom": 0, "itemHeight": 8, "itemWidth": 26},
        "tooltip": {"trigger": "axis", "confine": True},
        "series": [
            {"type": "line", "name": line.name, "data": tuple(line.points),
             "showSymbol": len(line.points) == 1, "symbolSize": 5, "color": line.style.colour,
             "endLabel": {"show": names_at_ends, "formatter": "{a}", "distance": 3},
             "labelLayout": {"moveOverlap": "shiftY"},
             "lineStyle": {"width": 1.8, "type": list(line.style.dashes) or "solid"}}
            for line in lines
        ],
    }  # fmt: skip
