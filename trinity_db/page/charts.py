"""Curves: of a run, from what its trainer measured at each step, and of runs side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nicegui import ui

from trinity_db.page.elements import said

Point = tuple[float, float]


@dataclass(frozen=True)
class Style:
    """How a curve is drawn: told apart by its colour, and without colours by its dashes."""

    colour: str
    dashes: tuple[int, ...] = ()
    """Pixels of line and gap in turn; (): a whole line."""


STYLES = (
    Style("#4f83e8"),
    Style("#e0793a", (7, 4)),
    Style("#35a57c", (2, 3)),
    Style("#c2589f", (10, 3, 2, 3)),
    Style("#8a6fd6", (14, 5)),
    Style("#a8842a", (5, 3, 1, 3, 1, 3)),
)
"""Each with a contrast of at least 3 to 1 on light and on dark ground."""


@dataclass(frozen=True)
class Line:
    """One curve of a chart."""

    name: str
    """Ours: no name of the store reaches ECharts, which makes HTML of some."""
    points: Sequence[Point]
    style: Style


@dataclass(frozen=True)
class Chart:
    """A chart, and the metrics that it draws; docs/reference/metrics.md has their meaning."""

    title: str
    unit: str
    metrics: Mapping[str, str]
    """What each curve is called, by the name of its metric."""


CHARTS = (
    Chart("Reward", "mean of the rows of a step", {"reward": "reward", "reward_std": "deviation"}),
    Chart(
        "Response length",
        "tokens",
        {"completions/mean_length": "mean", "completions/max_length": "longest"},
    ),
    Chart("Staleness", "policy versions", {"sample/staleness_mean": "mean", "sample/staleness_max": "most"}),
    Chart(
        "Visible update",
        "share of the update that the weights of a version show",
        {"publish/visible": "since version 0", "publish/visible_last_ten": "last ten versions"},
    ),
    Chart("Changed weights", "share that differs from the version before", {"publish/changed": "changed"}),
    Chart("Rounding noise", "share of the size of the weights", {"publish/noise": "noise"}),
    Chart(
        "Engine and trainer",
        "nats a token, difference for the same weights: about 0.03 if one of them is in bfloat16, 0.005 in "
        "float16, 3e-6 in float32; see docs/guides/precision.md",
        {"sampling/engine_logp_difference/mean": "mean", "sampling/engine_logp_difference/max": "most"},
    ),
    Chart("Loss", "what the step minimised", {"loss": "loss"}),
    Chart("Gradient", "length before it is clipped", {"grad_norm": "gradient"}),
    Chart("Entropy", "nats a token", {"entropy": "entropy"}),
    Chart("Divergence", "nats a token", {"kl": "from the reference", "approx_kl": "within the step"}),
    Chart("Pairs", "share with a positive margin", {"rewards/accuracies": "accuracy"}),
    Chart("Imitation", "share of tokens that are likeliest", {"mean_token_accuracy": "accuracy"}),
    Chart("Throughput", "tokens a second of each process", {"perf/throughput": "trained"}),
    Chart("Time of a step", "seconds", {"step_time": "all of it", "time/wait_for_batch": "waiting"}),
)
METRICS = [name for chart in CHARTS for name in chart.metrics]


class Curves:
    """The charts of one run. A chart appears once there is something to draw."""

    def __init__(self) -> None:
        self._grid = said("div", "", "charts")
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
    """Charts that stay as they are: those that have something to draw."""
    with said("div", "", "charts"):
        for chart in charts:
            if lines := _lines(chart, points):
                card(chart.title, chart.unit, drawing(lines))


def _lines(chart: Chart, points: Mapping[str, Sequence[Point]]) -> list[Line]:
    named = [(called, points[name]) for name, called in chart.metrics.items() if points.get(name)]
    return [Line(called, values, style) for (called, values), style in zip(named, STYLES, strict=False)]


def card(title: str, unit: str, options: dict[str, Any]) -> ui.echart:
    """A chart under its title."""
    with said("section", "", "card"):
        with said("h3", f"{title} "):
            said("small", unit)
        return ui.echart(options, renderer="svg").classes("chart")


def drawing(lines: Sequence[Line], *, names_at_ends: bool = False, whole: bool = True) -> dict[str, Any]:
    """What ECharts draws. No key and no text of it comes from the store. Points are a tuple: see elements.

    Args:
        names_at_ends: each curve's name stands at its end, and not below the chart.
        whole: whether points stand at whole numbers.
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
            {"type": "line", "name": one.name, "data": tuple(one.points),
             "showSymbol": len(one.points) == 1, "symbolSize": 5, "color": one.style.colour,
             "endLabel": {"show": names_at_ends, "formatter": "{a}", "distance": 3},
             "labelLayout": {"moveOverlap": "shiftY"},
             "lineStyle": {"width": 1.8, "type": list(one.style.dashes) or "solid"}}
            for one in lines
        ],
    }  # fmt: skip
