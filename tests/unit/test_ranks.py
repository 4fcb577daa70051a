"""How work is divided among processes that train together; what they come to, the acceptance tests say."""

import pytest

from trinity_db.errors import ConfigError
from trinity_db.trainer.distribution.ranks import join_ranks, split_by_cost


def test_items_are_dealt_out_by_what_they_cost() -> None:
    assert split_by_cost([5, 1, 1, 4, 3], ranks=2) == [[0, 1, 2], [3, 4]]
    assert split_by_cost([5, 1], ranks=3) == [[0], [1], []]
    assert split_by_cost([2, 1, 3], ranks=1) == [[0, 1, 2]]


def test_an_environment_that_names_ranks_in_part_only_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "here", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        ConfigError, match="not LOCAL_RANK, LOCAL_WORLD_SIZE: start the ranks with torchrun, or"
    ):
        join_ranks()
