"""Three families as examples of all, which `make test-families` tries; and none is forgotten."""

from pathlib import Path

import pytest

from tests.others.families import checks
from tests.others.families.table import PAGE, group_of, listed
from tests.others.families.tiny import FAMILIES, KNOWN, LEFT_OUT, OWN, save
from trinity_db.models.families import ENCODERS, NOT_DECODED


@pytest.mark.parametrize(
    ("family", "layout"), [("qwen3_moe", "packed"), ("phimoe", "padded"), ("qwen3_5_text", "padded")]
)
def test_rows_are_scored_and_sampled_as_each_alone_by_plain_transformers(
    family: str, layout: str, tmp_path: Path
) -> None:
    context = save(family, tmp_path)
    assert checks.check_forward(tmp_path, context) == layout
    assert checks.check_explored(tmp_path, context) == "together"
    is_balanced = checks.check_router_loss(tmp_path, context)
    is_replayed = checks.check_replayed(tmp_path, context)
    group = group_of(layout, "together", is_balanced, is_replayed)
    assert listed(PAGE.read_text())[family] == group


def test_each_family_that_transformers_knows_is_in_the_table_or_named_with_a_reason() -> None:
    assert sorted(listed(PAGE.read_text())) == sorted(FAMILIES)
    assert LEFT_OUT.keys() | OWN.keys() | ENCODERS | NOT_DECODED <= set(KNOWN)
