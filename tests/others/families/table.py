"""The table of families in the documents: a line for each way in which rows are taken, with its families."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "model-families.md"
_REGION = re.compile(r"(<!-- families: make test-families -->\n)(.*?)(<!-- end of families -->)", re.DOTALL)
_HEAD = "\n| rows are | explored | experts | `model_type` |\n| --- | --- | --- | --- |\n"
_LAYOUTS = {"packed": "packed", "padded": "padded", "alone": "one by one"}
_EXPLORED = {"together": "yes", "alone": "one at a time", "no": "by `vllm` or `endpoint`"}
_EXPERTS = ["", "balanced", "replayed", "balanced, replayed"]

Group = tuple[str, str, str]
"""The first three cells of a line."""


def group_of(layout: str, how: str, is_balanced: bool, is_replayed: bool) -> Group:
    """The line of the table to which a family belongs."""
    return _LAYOUTS[layout], _EXPLORED[how], _EXPERTS[is_balanced + 2 * is_replayed]


def written(page: str, groups: Mapping[str, Group], families: Sequence[str]) -> str:
    """The page with these families in their groups. Other families keep theirs, if they still exist."""
    region = _REGION.search(page)
    assert region is not None
    now = {**listed(page), **groups}
    members: dict[Group, list[str]] = {}
    for family in families:
        if family in now:
            members.setdefault(now[family], []).append(family)
    lines = [
        f"| {' | '.join(group)} | {', '.join(members[group])} |\n" for group in sorted(members, key=_order)
    ]
    table = _HEAD + "".join(lines) + "\n"
    return page[: region.start()] + region[1] + table + region[3] + page[region.end() :]


def listed(page: str) -> dict[str, Group]:
    """The group of each family in the table of the page."""
    region = _REGION.search(page)
    assert region is not None
    groups: dict[str, Group] = {}
    for line in region[2].splitlines():
        if line.startswith("| ") and not line.startswith(("| ---", "| rows are")):
            layout, explored, experts, names = (cell.strip() for cell in line.strip("|").split("|"))
            groups.update(dict.fromkeys(names.split(", "), (layout, explored, experts)))
    return groups


def _order(group: Group) -> tuple[int, int, int]:
    layout, explored, experts = group
    return (
        list(_LAYOUTS.values()).index(layout),
        list(_EXPLORED.values()).index(explored),
        _EXPERTS.index(experts),
    )
