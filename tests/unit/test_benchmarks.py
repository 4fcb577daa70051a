"""How measurements become ratios, bars and reports."""

from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from benchmarks import peer, report
from benchmarks.__main__ import main
from benchmarks.measure import OURS, Bar, Result, figure, in_turns, percentile, ratio


def test_a_ratio_of_what_was_measured_in_turns_is_taken_pair_by_pair() -> None:
    paired = ratio("m", "v", "s", [10, 100, 30], [5, 50, 10], "floor", alternated=True)
    assert (paired.median, paired.low, paired.high) == (2, 2, 3)


def test_a_ratio_of_what_was_measured_after_another_divides_by_the_median() -> None:
    after = ratio("m", "v", "s", [10, 20, 30], [1, 10, 100, 10, 10], "peer")
    assert (after.median, after.low, after.high) == (2, 1, 3)


def test_a_peer_is_compared_by_rates_or_by_latencies_where_it_was_measured() -> None:
    rates = peer.Answer("peer 1", [{"rows": 10, "seconds": 2.0}])
    (speed,) = peer.compared("m", "v", rates, [15.0], Bar(2))
    assert (speed.unit, speed.sides, speed.against, speed.median, speed.bar) == (
        *("rows/s", (15.0, 5.0)),
        *("peer 1", 3.0, Bar(2)),
    )
    waited = peer.Answer("peer 1", [{"latencies": [0.002, 0.004]}])
    (times,) = peer.compared("m", "v", waited, [1.0])
    assert (times.unit, times.median) == ("ms p50", 0.5)
    (missing,) = peer.compared("m", "v", peer.Answer("peer", note="unsupported: too old"), [1.0])
    assert (missing.median, missing.note) == (None, "unsupported: too old")


def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed() -> None:
    values = [float(value) for value in range(200, 0, -1)]
    assert percentile(values, 50) == 100
    assert percentile(values, 99) == 198
    assert percentile([7.0], 99) == 7


@pytest.mark.parametrize(
    ("bar", "value", "is_met"),
    [
        (Bar(2), 2, True),
        (Bar(2), 1.9, False),
        (Bar(2, at_most=True), 2, True),
        (Bar(2, at_most=True), 2.1, False),
    ],
)
def test_a_bar_is_met_from_its_limit_on(bar: Bar, value: float, is_met: bool) -> None:
    assert figure("m", "us", "v", "s", [value], bar).is_met is is_met


def test_another_way_comes_first_in_each_repetition() -> None:
    order: list[str] = []

    def way(name: str) -> float:
        order.append(name)
        return len(order)

    found = in_turns({"a": lambda: way("a"), "b": lambda: way("b")}, 3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert found == {"a": [1, 4, 5], "b": [2, 3, 6]}


def test_a_ratio_takes_the_place_of_its_figures() -> None:
    results = [
        figure("m", OURS, "v", "s", [1.0]),
        ratio("m", "v", "s", [1.0, 1.0], [4.0, 2.0], "peer", Bar(0.3, at_most=True), alternated=True),
        figure("m", OURS, "w", "MB", [3.0]),
    ]
    assert report.section("m", {}, results).splitlines()[4:6] == [
        "| v | s | 1 | peer | 3 | 0.375 (0.25–0.5) | ≤ 0.3 | **no** |",
        "| w | MB | 3 |  |  |  |  |  |",
    ]


def test_new_results_of_one_measure_leave_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "MARKDOWN", tmp_path / "RESULTS.md")
    for measure, variant, processor in (("draw", "old", "a"), ("claims", "kept", "a"), ("draw", "new", "b")):
        report.write(measure, {"cpu": processor}, [_result(measure, variant)])
    written = (tmp_path / "RESULTS.md").read_text()
    assert [written.count(f"| {name} |") for name in ("kept", "new", "old")] == [1, 1, 0]
    assert [line for line in written.splitlines() if line.startswith(("#", "cpu"))] == [
        *("# Results", "## draw", "cpu b.", "## claims", "cpu a."),
    ]


def test_an_unknown_measure_is_refused() -> None:
    app = Typer()
    app.command()(main)
    refused = CliRunner().invoke(app, ["--only", "nothing"])
    assert refused.exit_code == 2
    assert "no such measure" in refused.output


def _result(measure: str, variant: str) -> Result:
    return figure(measure, OURS, variant, "s", [1.0, 2.0], Bar(2, at_most=True))
