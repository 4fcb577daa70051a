"""Results on disk: `RESULTS.md`, a section for each measure, ratios and bars first."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import Result

MARKDOWN = Path(__file__).parent / "RESULTS.md"
INTRODUCTION = """\
# Results

Made by `make bench`; [README.md](README.md) says what is measured and how to read it. Each figure is the
median of its repetitions, with the lowest and the highest. A run of one measure replaces its section.
"""
_SECTION = re.compile(r"^## (?P<measure>\S+)\n.*?(?=^## |\Z)", re.M | re.S)


def write(measure: str, facts: Mapping[str, Any], results: Sequence[Result]) -> None:
    """Put new results of one measure in place of the old ones; those of others stay."""
    text = MARKDOWN.read_text(encoding="utf-8") if MARKDOWN.exists() else ""
    sections = {found["measure"]: found[0].rstrip() for found in _SECTION.finditer(text)}
    sections[measure] = section(measure, facts, results).rstrip()
    _write(MARKDOWN, "\n\n".join([INTRODUCTION.rstrip(), *sections.values()]) + "\n")


def section(measure: str, facts: Mapping[str, Any], results: Sequence[Result]) -> str:
    """The results of one measure for people, and the machine that it ran on."""
    compared = [result for result in results if result.against or result.bar]
    figures = [result for result in results if not result.against]
    parts = [
        f"## {measure}\n",
        _comparisons(compared) if compared else "",
        _figures(figures),
        "".join(_notes(figures)),
        facts_line(facts),
    ]
    return "\n".join(part for part in parts if part)


def _comparisons(results: Sequence[Result]) -> str:
    rows = [
        (
            result.variant,
            result.against or "–",
            f"**{number(result.median)}**{_unit(result.unit)}",
            _spread(result),
            str(result.bar or ""),
            {None: "", True: "yes", False: "**no**"}[result.is_met],
        )
        for result in sorted(results, key=lambda result: result.bar is None)
    ]
    return table(("variant", "trinity-db against", "figure", "spread", "bar", "met"), rows)


def _figures(results: Sequence[Result]) -> str:
    """One line for each variant and unit, one column for each store that was measured."""
    measured = list(dict.fromkeys(result.who for result in results if result.median is not None))
    cells = {(result.variant, result.unit, result.who): result for result in results}
    lines = list(dict.fromkeys((result.variant, result.unit) for result in results if result.unit))
    rows = []
    for variant, unit in lines:
        found = [cells.get((variant, unit, who)) for who in measured]
        rows.append((variant, unit, *(_cell(result) if result else "–" for result in found)))
    return table(("variant", "unit", *measured), rows)


def _notes(results: Sequence[Result]) -> list[str]:
    """Notes about the peers that were measured, and why others were not; each once."""
    lines: dict[str, list[str]] = {}
    for result in results:
        if result.note:
            variants = lines.setdefault(f"{result.who}: {result.note}", [])
            if result.median is None and result.variant not in variants:
                variants.append(result.variant)
    return [f"- {line}{_aside(variants)}\n" for line, variants in lines.items()]


def _aside(variants: Sequence[str]) -> str:
    return f" ({'; '.join(variants)})" if variants else ""


def facts_line(facts: Mapping[str, Any]) -> str:
    """The machine in one line."""
    return f"{', '.join(f'{name} {value}' for name, value in facts.items())}.\n"


def _cell(result: Result) -> str:
    return f"{number(result.median)} ({_spread(result)})"


def _spread(result: Result) -> str:
    return f"{number(result.low)}–{number(result.high)}"


def _unit(unit: str) -> str:
    return f" {unit}" if unit else ""


def number(value: float | None) -> str:
    """Three digits that count, and all of those before the point."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _write(path: Path, text: str) -> None:
    unfinished = path.with_suffix(".part")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
