"""Curves of a run, from what its trainer measured at each step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nicegui import ui

from trinity_db.page.elements import said

Point = tuple[int, float]
COLOURS = ("#4f83e8", "#e0793a", "#35a57c")  # told apart on light and dark ground, also without red or green


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
    Chart("Loss", "what the step minimised", {"loss": "loss"}),
    Chart("Gradient", "length before it is clipped", {"grad_norm": "gradient"}),
    Chart("Entropy", "nats a token", {"entropy": "entropy"}),
    Chart("Divergence", "nats a token", {"kl": "from the reference", "approx_kl": "within the step"}),
    Chart("Pairs", "share with a positive margin", {"rewards/accuracies": "accuracy"}),
    Chart("Imitation", "share of tokens that are likeliest", {"mean_token_accuracy": "accuracy"}),
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
            options = _options(chart, points)
            drawn = self._drawn.get(chart.title)
            if drawn is None and options["series"]:
                with self._grid, said("section", "", "card"):
                    with said("h3", f"{chart.title} "):
                        said("small", chart.unit)
                    self._drawn[chart.title] = ui.echart(options, renderer="svg").classes("chart")
            elif drawn is not None and options != drawn.options:
                drawn.options.clear()
                drawn.options.update(options)
                drawn.update()


def _options(chart: Chart, points: Mapping[str, Sequence[Point]]) -> dict[str, Any]:
    """What ECharts draws. No key and no text of it comes from the store."""
    named = [(called, points[name]) for name, called in chart.metrics.items() if points.get(name)]
    line = {"lineStyle": {"color": "rgba(128,128,128,0.25)"}}
    return {
        "animation": False,
        "color": list(COLOURS),
        "grid": {"left": 8, "right": 14, "top": 12, "bottom": 30 if len(named) > 1 else 8,
                 "containLabel": True},
        "xAxis": {"type": "value", "name": "", "min": "dataMin", "max": "dataMax", "minInterval": 1,
                  "splitLine": {"show": False}, "axisLine": line, "axisTick": {"show": False},
                  "axisLabel": {"hideOverlap": True}},
        "yAxis": {"type": "value", "scale": True, "splitNumber": 3, "splitLine": line},
        "legend": {"show": len(named) > 1, "bottom": 0, "itemHeight": 8, "itemWidth": 14},
        "tooltip": {"trigger": "axis", "confine": True},
        "series": [
            {"type": "line", "name": called, "data": [[step, value] for step, value in values],
             "showSymbol": len(values) == 1, "symbolSize": 5, "lineStyle": {"width": 1.8}}
            for called, values in named
        ],
    }  # fmt: skip
