"""Draws by parts: exact shares over many steps, whole batches, and chances that brute force confirms."""

import itertools
import math
from collections import Counter, defaultdict

import numpy as np
import pytest

from trinity_db.shares import Offer, Part, apportion, draw


def offers(weights: dict[str, list[float]], random: np.random.Generator | None = None) -> list[Offer]:
    """Groups of parts with these weights, numbered from 0 on."""
    numbers = itertools.count()
    return [
        Offer(next(numbers), weight, part, 1.0 if random is None else random.exponential())
        for part, all_of in weights.items()
        for weight in all_of
    ]


@pytest.mark.parametrize(
    ("shares", "size"),
    [([1, 2], 10), ([0.7, 0.2, 0.1], 3), ([1] * 7, 4), ([1e-6, 1e6], 8), ([2], 5)],
)
def test_each_batch_is_whole_and_each_part_next_to_its_share(shares: list[float], size: int) -> None:
    steps = 400
    counts = np.array([apportion(shares, size, step) for step in range(1, steps + 1)])
    exact = size * np.array(shares) / sum(shares)
    assert (counts.sum(axis=1) == size).all()
    assert (np.abs(counts - exact) < 1).all()
    # Chance would be off by about the root of the steps, 20; this is off by a few groups at any time.
    behind = counts.cumsum(axis=0) - exact * np.arange(1, steps + 1)[:, None]
    assert np.abs(behind).max() < 4


def test_shares_that_divide_the_batch_are_exact_in_each_step() -> None:
    assert {tuple(apportion([3, 1], 16, step)) for step in range(1, 60)} == {(12, 4)}
    assert {tuple(apportion([0.1, 0.2, 0.7], 10, step)) for step in range(1, 60)} == {(1, 2, 7)}


def test_what_a_part_lacks_the_others_give_by_their_shares() -> None:
    parts = [Part("a", 2), Part("b", 1), Part("c", 1)]
    offered = offers({"a": [1] * 50, "b": [1] * 50, "c": [1]})
    drawn = draw(parts, offered, 16, step=1, fill=True)
    counts = {part: len(ids) for part, ids in drawn.by_part().items()}
    assert counts == {"a": 10, "b": 5, "c": 1}
    assert not drawn.missing


def test_without_filling_a_short_part_holds_the_draw_up_and_says_so() -> None:
    parts = [Part("a", 3), Part("b", 1)]
    drawn = draw(parts, offers({"a": [1] * 50, "b": [1]}), 16, step=1, fill=False)
    assert (drawn.groups, drawn.missing) == ({}, {"b": 3})
    assert draw(parts, offers({"a": [1] * 12, "b": [1] * 4}), 16, step=1, fill=False).missing == {}


def test_too_few_groups_in_all_parts_are_no_batch() -> None:
    parts = [Part("a", 1), Part("b", 1)]
    assert draw(parts, offers({"a": [1] * 5, "b": [1]}), 8, step=1, fill=True).missing == {"b": 3}
    assert draw([], offers({"a": [1] * 5, "b": [1]}), 8, step=1, fill=True).missing == {"all": 2}
    assert draw([], [], 8, step=1, fill=True).missing == {"all": 8}


def test_parts_that_the_offers_name_have_equal_shares() -> None:
    offered = offers({"easy": [1] * 90, "hard": [1] * 6, "mean": [1] * 4})
    drawn = draw([], offered, 12, step=1, fill=True)
    assert {part: len(ids) for part, ids in drawn.by_part().items()} == {"easy": 4, "hard": 4, "mean": 4}
    counted: Counter[str] = Counter()
    for step in range(1, 121):
        counted.update(pick.part for pick in draw([], offered, 2, step, fill=True).groups.values())
    assert all(abs(count - 80) < 3 for count in counted.values())


def test_ordered_parts_take_the_oldest_or_the_newest() -> None:
    offered = offers({"a": [1] * 5, "b": [1] * 5})
    drawn = draw([Part("a", 1, "oldest"), Part("b", 1, "newest")], offered, 4, step=1, fill=True)
    assert drawn.by_part() == {"a": [0, 1], "b": [8, 9]}
    assert {(pick.probability, pick.weight) for pick in drawn.groups.values()} == {(None, 1.0)}


def test_by_chance_each_set_has_the_chance_that_its_definition_says() -> None:
    """4,000 draws of 2 among 4 and 1 among 2: picked one after another in proportion to the weights left."""
    weights = {"a": [1.0, 2.0, 3.0, 6.0], "b": [1.0, 3.0]}
    expected: dict[tuple[int, ...], float] = defaultdict(float)
    for first, second in itertools.permutations(range(4), 2):
        of = weights["a"]
        chance = of[first] / 12 * of[second] / (12 - of[first])
        for third, weight in enumerate(weights["b"]):
            expected[(*sorted((first, second)), 4 + third)] += chance * weight / 4
    random = np.random.default_rng(5)
    draws = 4_000
    seen: Counter[tuple[int, ...]] = Counter()
    total = 0.0
    for step in range(draws):
        drawn = draw([Part("a", 2), Part("b", 1)], offers(weights, random), 3, step, fill=True)
        seen[tuple(sorted(drawn.groups))] += 1
        total += sum(1 / (pick.probability or math.nan) for pick in drawn.groups.values())
    chi_square = sum((seen[ids] - draws * p) ** 2 / (draws * p) for ids, p in expected.items())
    assert chi_square < 40  # 11 degrees of freedom: one seed in 20,000 is above
    assert total / draws == pytest.approx(6, rel=0.05), "1 / chance counts all groups that were offered"


def test_weights_in_the_loss_make_up_for_chances_within_a_part() -> None:
    offered = [
        Offer(1, 8.0, "a", 0.1),
        Offer(2, 2.0, "a", 0.1),
        Offer(3, 1.0, "a", 5.0),
        Offer(4, 1.0, "b", 1.0),
    ]
    drawn = draw([Part("a", 2, beta=0.5), Part("b", 1)], offered, 3, step=1, fill=True)
    likely, rare = (1 - math.exp(-weight * 5.0) for weight in (8.0, 2.0))
    assert drawn.groups[1].probability == pytest.approx(likely)
    assert drawn.groups[2].probability == pytest.approx(rare)
    assert drawn.groups[1].weight == pytest.approx((rare / likely) ** 0.5)
    assert (drawn.groups[2].weight, drawn.groups[4].weight, drawn.groups[4].probability) == (1, 1, 1)
