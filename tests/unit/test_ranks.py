"""How work is divided among processes that train together; what they come to, the acceptance tests say."""

from trinity_db.trainer.distribution.ranks import split_by_cost


def test_items_are_dealt_out_by_what_they_cost() -> None:
    assert split_by_cost([5, 1, 1, 4, 3], ranks=2) == [[0, 1, 2], [3, 4]]
    assert split_by_cost([5, 1], ranks=3) == [[0], [1], []]
    assert split_by_cost([2, 1, 3], ranks=1) == [[0, 1, 2]]
