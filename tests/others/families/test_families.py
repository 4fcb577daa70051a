"""Each family of decoders trains, publishes, has adapters and explores, or the table says what not."""

from pathlib import Path

import pytest

from tests.others.families import checks
from tests.others.families.table import PAGE, group_of, written
from tests.others.families.tiny import FAMILIES, KNOWN, LEFT_OUT, save
from trinity_db.models.families import NOT_DECODED

FOUND: dict[str, tuple[str, str, bool, bool]] = {}
"""Layout, how rows are decoded, whether experts are balanced, and whether an engine's choice of them can be
replayed, of the families that were tried."""


def test_every_family_is_tried_or_named_with_a_reason() -> None:
    assert not LEFT_OUT.keys() - set(KNOWN)
    assert FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_trains_publishes_and_explores(family: str, tmp_path: Path) -> None:
    start = tmp_path / "start"
    context = save(family, start)
    checks.check_read_in_parts(start)
    layout = checks.check_forward(start, context)
    checks.check_trained(start, context, tmp_path / "whole")
    everywhere = {"targets": "all-linear"}
    checks.check_trained(start, context, tmp_path / "merged", everywhere, "merged")
    checks.check_trained(start, context, tmp_path / "adapter", everywhere, "adapter")
    attention = {"targets": checks.attention_layers(start)}
    checks.check_trained(start, context, tmp_path / "attention", attention)
    how = "no" if family in NOT_DECODED else checks.check_explored(start, context)
    assert (how == "no") == (family in NOT_DECODED)
    is_balanced = checks.check_router_loss(start, context)
    FOUND[family] = (layout, how, is_balanced, checks.check_replayed(start, context))


def test_the_table_in_the_documents_is_what_was_found(request: pytest.FixtureRequest) -> None:
    """After the others: a family that failed keeps its place."""
    groups = {family: group_of(*found) for family, found in FOUND.items()}
    page = PAGE.read_text()
    now = written(page, groups, FAMILIES)
    if request.config.getoption("--write"):
        PAGE.write_text(now)
    assert now == page or request.config.getoption("--write")
