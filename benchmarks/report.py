"""Results on disk: `results.json`, and `RESULTS.md` made from it, ratios and bars first."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import Result

FOLDER = Path(__file__).parent
JSON = FOLDER / "results.json"
MARKDOWN = FOLDER / "RESULTS.md"
INTRODUCTION = """\
# Results

Made by `make bench`; [README.md](README.md) says what is measured and how to read it. Each figure is the
median of its repetitions, with the lowest and the highest.
"""


@dataclass(frozen=True)
class Report:
    """All that is known: of each measure the results of its last run, and the machine it ran on."""

    facts: Mapping[str, Mapping[str, Any]]
    """By measure, since a run of only some keeps the others as they were."""
    results: Sequence[Result]

    def replace(self, measure: str, facts: Mapping[str, Any], results: Iterable[Result]) -> "Report":
        """The report with new results of one measure."""
        kept = [result for result in self.results if result.measure != measure]
        return Report({**self.facts, measure: facts}, [*kept, *results])

    def write(self) -> None:
        """Write both files, each as a whole."""
        stored = {"facts": self.facts, "results": [result.to_json() for result in self.results]}
        _write(JSON, json.dumps(stored, indent=1, ensure_ascii=False) + "\n")
        _write(MARKDOWN, markdown(self))


def load() -> Report:
    """What the last runs left; empty before the first."""
    if not JSON.exists():
        return Report({}, [])
    stored = json.loads(JSON.read_text())
    return Report(stored["facts"], [Result.from_json(result) for result in stored["results"]])


def markdown(report: Report) -> str:
    """The report for people."""
    compared = [result for result in report.results if result.against or result.bar]
    parts = [INTRODUCTION, "## Ratios and bars\n", _comparisons(compared)]
    for measure in dict.fromkeys(result.measure for result in report.results):
        own = [result for result in report.results if result.measure == measure and not result.against]
        notes = "".join(_notes(own))
        parts += [f"## {measure}\n", _figures(own), notes, _facts(report.facts[measure])]
    return "\n".join(part for part in parts if part)


def _comparisons(results: Sequence[Result]) -> str:
    rows = [
        (
            result.measure,
            result.variant,
            result.against or "–",
            f"**{_number(result.median)}**{_unit(result.unit)}",
            _spread(result),
            str(result.bar or ""),
            {None: "", True: "yes", False: "**no**"}[result.is_met],
        )
        for result in sorted(results, key=lambda result: result.bar is None)
    ]
    return _table(("measure", "variant", "trinity-db against", "figure", "spread", "bar", "met"), rows)


def _figures(results: Sequence[Result]) -> str:
    """One line for each variant and unit, one column for each of those who were measured."""
    everybody = list(dict.fromkeys(result.who for result in results if result.median is not None))
    cells = {(result.variant, result.unit, result.who): result for result in results}
    lines = list(dict.fromkeys((result.variant, result.unit) for result in results if result.unit))
    rows = []
    for variant, unit in lines:
        found = [cells.get((variant, unit, who)) for who in everybody]
        rows.append((variant, unit, *(_cell(result) if result else "–" for result in found)))
    return _table(("variant", "unit", *everybody), rows)


def _notes(results: Sequence[Result]) -> list[str]:
    """What has to be known of those who were measured, and why others were not; each once."""
    lines: dict[str, list[str]] = {}
    for result in results:
        if result.note:
            variants = lines.setdefault(f"{result.who}: {result.note}", [])
            if result.median is None and result.variant not in variants:
                variants.append(result.variant)
    return [f"- {line}{_aside(variants)}\n" for line, variants in lines.items()]


def _aside(variants: Sequence[str]) -> str:
    return f" ({'; '.join(variants)})" if variants else ""


def _facts(facts: Mapping[str, Any]) -> str:
    return f"{', '.join(f'{name} {value}' for name, value in facts.items())}.\n"


def _cell(result: Result) -> str:
    return f"{_number(result.median)} ({_spread(result)})"


def _spread(result: Result) -> str:
    return f"{_number(result.low)}–{_number(result.high)}"


def _unit(unit: str) -> str:
    return f" {unit}" if unit else ""


def _number(value: float | None) -> str:
    """Three digits that count, and all of those before the point."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _write(path: Path, text: str) -> None:
    unfinished = path.with_suffix(".part")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
