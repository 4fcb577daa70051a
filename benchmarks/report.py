"""Write results to `RESULTS.md`: one section with one table per measure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import OURS, Result

MARKDOWN = Path(__file__).parent / "RESULTS.md"
INTRODUCTION = """\
# Results

Written by `make bench`; [README.md](README.md) describes the measures. Figures are medians. A ratio is
trinity-db divided by the peer or floor, with the lowest and highest. Running a measure replaces its section.
"""
_SECTION = re.compile(r"^## (?P<measure>\S+)\n.*?(?=^## |\Z)", re.M | re.S)


def write(measure: str, facts: Mapping[str, Any], results: Sequence[Result]) -> None:
    """Replace the section of one measure; keep those of the others."""
    text = MARKDOWN.read_text(encoding="utf-8") if MARKDOWN.exists() else ""
    sections = {match["measure"]: match[0].rstrip() for match in _SECTION.finditer(text)}
    sections[measure] = section(measure, facts, results).rstrip()
    written = "\n\n".join([INTRODUCTION.rstrip(), *sections.values()]) + "\n"
    unfinished = MARKDOWN.with_suffix(".part")
    unfinished.write_text(written, encoding="utf-8")
    unfinished.replace(MARKDOWN)


def section(measure: str, facts: Mapping[str, Any], results: Sequence[Result]) -> str:
    """Format the results of one measure: ratios, figures of ours that are in no ratio, and the machine."""
    compared = {(result.variant, result.unit) for result in results if result.against}
    rows = [
        _row(result)
        for result in sorted(results, key=lambda result: result.bar is None)
        if result.median is not None
        and (result.against or (result.who == OURS and (result.variant, result.unit) not in compared))
    ]
    head = ("what", "unit", "trinity-db", "compared with", "its figure", "ratio", "bar", "met")
    missing = {f"- {result.who}, {result.variant}: {result.note}\n" for result in results if result.note}
    parts = [f"## {measure}\n", table(head, rows), "".join(sorted(missing)), facts_line(facts)]
    return "\n".join(part for part in parts if part)


def _row(result: Result) -> tuple[str, ...]:
    spread = f"({number(result.low)}–{number(result.high)})" if result.low != result.high else ""
    bar, met = str(result.bar or ""), {None: "", True: "yes", False: "**no**"}[result.is_met]
    figure = f"{number(result.median)} {spread}".rstrip()
    if result.sides is None:
        return (result.variant, result.unit, figure, "", "", "", bar, met)
    ours, theirs = map(number, result.sides)
    return (result.variant, result.unit, ours, result.against, theirs, figure, bar, met)


def facts_line(facts: Mapping[str, Any]) -> str:
    """Format the facts about the machine as one line."""
    return f"{', '.join(f'{name} {value}' for name, value in facts.items())}.\n"


def number(value: float | None) -> str:
    """Format with three significant digits, or all digits before the decimal point."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
