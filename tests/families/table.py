"""The table of families in the documents."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "model-families.md"
_REGION = re.compile(r"(<!-- families: make test-families -->\n)(.*?)(<!-- end of families -->)", re.DOTALL)
_HEAD = "\n| `model_type` | rows are | explored | experts |\n| --- | --- | --- | --- |\n"
_EXPLORED = {"together": "yes", "alone": "one at a time", "no": "by `vllm` or `endpoint`"}


def row_of(family: str, layout: str, how: str, is_balanced: bool, is_replayed: bool) -> str:
    """The family's line of the table."""
    experts = ", ".join(["balanced"] * is_balanced + ["replayed"] * is_replayed)
    laid_out = {"packed": "packed", "padded": "padded", "alone": "one by one"}[layout]
    return f"| {family} | {laid_out} | {_EXPLORED[how]} | {experts} |"


def written(page: str, rows: Mapping[str, str], families: Sequence[str]) -> str:
    """The page with these rows. Other families keep theirs, if there still are such families."""
    region = _REGION.search(page)
    assert region is not None
    old = {line.split("|")[1].strip(): line for line in region[2].splitlines() if line.startswith("| ")}
    lines = [rows.get(family) or old.get(family) for family in families]
    table = _HEAD + "\n".join(line for line in lines if line) + "\n\n"
    return page[: region.start()] + region[1] + table + region[3] + page[region.end() :]
