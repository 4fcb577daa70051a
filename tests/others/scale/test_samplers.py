"""Draws by chance: exact, also while rows change, and with known chances.

The definition is that groups are picked one after the other, each in proportion to its weight among those
that are left. Its numbers are computed here from weights alone; what draws is the trainers' statement. Seeds
are fixed, so a test holds or does not; one in a million would break it. About 10^5 picks in all.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import closing
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.rows import Scene
from trinity_db.postgres.connection import Transaction, connect
from trinity_db.store import samplers
from trinity_db.store.samplers import Sampler

UNIFORM = Sampler("uniform")
PRIORITIZED = Sampler("prioritized", alpha=0.5, beta=0.5)
BY_CHANCE = [UNIFORM, PRIORITIZED]
RARE = 1e-6


def put_groups(scene: Scene, priorities: Sequence[float]) -> list[int]:
    """Ready groups with these priorities, of one row each, by SQL alone; their ids."""
    with scene.database.transaction() as tx:
        return put(tx, scene.run.id, priorities)


def put(tx: Transaction, run_id: int, priorities: Sequence[float], version: int = 0) -> list[int]:
    rows = tx.execute(PUT, {"run_id": run_id, "priorities": list(priorities), "version": version})
    return [row["id"] for row in rows]


PUT = """
WITH started AS (
    INSERT INTO trinity.rollout_group
        (run_id, task_id, state, expected, arrived, version_min, completed_at, ready_xact, priority)
    SELECT %(run_id)s, (SELECT min(id) FROM trinity.task), 'ready', 1, 1, %(version)s, now(),
           pg_current_xact_id()::text::bigint, p
    FROM unnest(%(priorities)s::float8[]) WITH ORDINALITY AS n (p, place)
    ORDER BY place
    RETURNING id
),
attempted AS (
    INSERT INTO trinity.rollout (run_id, group_id, ordinal, attempt, state)
    SELECT %(run_id)s, id, 0, 1, 'finished' FROM started
    RETURNING id, group_id
),
written AS (
    INSERT INTO trinity.experience (run_id, group_id, rollout_id, state, version_min, version_max, reward)
    SELECT %(run_id)s, group_id, id, 'ready', %(version)s, %(version)s, 1 FROM attempted
)
SELECT id FROM started ORDER BY id
"""


class Picks:
    """What the statement picks, draw after draw; nothing is leased."""

    def __init__(self, tx: Transaction, scene: Scene, sampler: Sampler, size: int, seed: int = 0) -> None:
        self._tx = tx
        self._sampler = sampler
        self._limits = {
            "run_id": scene.run.id,
            "seed": seed,
            "size": size,
            "version": 0,
            "versions_ahead": 0,
            "max_staleness": 1,
        }

    def groups(self, step: int) -> dict[int, float]:
        """The groups of one draw, with their chances."""
        limits = samplers.DrawLimits(step=step, **self._limits)
        members = self._sampler.pick(self._tx, limits).members
        return {member["group_id"]: member["probability"] for member in members}


def weights_of(sampler: Sampler, priorities: Sequence[float]) -> NDArray[np.float64]:
    return np.asarray(priorities, float) ** sampler.alpha


def chances_of_sets(weights: Sequence[float], size: int) -> dict[frozenset[int], float]:
    """Of every set of groups the chance to be picked, in any order."""
    chances: dict[frozenset[int], float] = defaultdict(float)
    for order in permutations(range(len(weights)), size):
        chance, left = 1.0, math.fsum(weights)
        for group in order:
            chance, left = chance * weights[group] / left, left - weights[group]
        chances[frozenset(order)] += chance
    return chances


def misfit(observed: NDArray[Any], expected: NDArray[Any]) -> float:
    """The chance of counts that fit worse."""
    return tail(float(((observed - expected) ** 2 / expected).sum()), len(expected) - 1)


def tail(chi_square: float, degrees: int) -> float:
    """The chance of a larger one, by Wilson and Hilferty's approximation."""
    spread = 2 / (9 * degrees)
    z = ((chi_square / degrees) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(z / math.sqrt(2))


@pytest.fixture
def probing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Octaves of nine groups are large already, and probed."""
    monkeypatch.setattr(samplers, "MIN_FEW", 8)
    monkeypatch.setattr(samplers, "FEW_PER_GROUP", 0)


FEW_PRIORITIES = [0.2, 0.5, 0.5, 0.9, 1.0, 2.0, 7.0]


def misfit_of_sets(scene: Scene, sampler: Sampler, weights: NDArray[np.float64], num_draws: int) -> float:
    ids = put_groups(scene, FEW_PRIORITIES)
    expected = chances_of_sets(weights.tolist(), size=2)
    with closing(connect(scene.database.url)) as tx:
        picks = Picks(tx, scene, sampler, size=2)
        found = Counter(frozenset(picks.groups(step)) for step in range(num_draws))
    observed = np.array([found[frozenset(ids[place] for place in chosen)] for chosen in expected])
    assert observed.sum() == num_draws
    return misfit(observed, num_draws * np.array(list(expected.values())))


@pytest.mark.parametrize("sampler", BY_CHANCE, ids=lambda sampler: sampler.name)
def test_each_set_of_groups_comes_up_as_often_as_the_definition_says(scene: Scene, sampler: Sampler) -> None:
    weights = weights_of(sampler, FEW_PRIORITIES)
    assert misfit_of_sets(scene, sampler, weights, num_draws=12_500) > RARE


def test_a_draw_that_is_a_little_off_would_be_found_out(scene: Scene) -> None:
    wrong = weights_of(Sampler("prioritized", alpha=0.55), FEW_PRIORITIES)
    assert misfit_of_sets(scene, PRIORITIZED, wrong, num_draws=12_500) < RARE


def included(
    rng: np.random.Generator, weights: NDArray[np.float64], size: int, num_draws: int
) -> NDArray[Any]:
    """[num_draws, groups] Which groups the definition picks: those with the smallest exponential keys."""
    keys = rng.exponential(size=(num_draws, len(weights))) / weights
    return keys <= np.partition(keys, size - 1, axis=1)[:, size - 1 : size]


def misfit_of_inclusions(
    found: NDArray[np.float64], weights: NDArray[np.float64], size: int, num_draws: int
) -> float:
    """How unlikely it is to find groups so often; the counts depend on one another, and it is known how."""
    simulated = included(np.random.default_rng(0), weights, size, 200_000)
    off = found - num_draws * simulated.mean(axis=0)
    covariance = num_draws * np.cov(simulated, rowvar=False)
    return tail(float(off @ np.linalg.pinv(covariance, hermitian=True) @ off), len(weights) - 1)


@pytest.mark.usefixtures("probing")
@pytest.mark.parametrize("sampler", BY_CHANCE, ids=lambda sampler: sampler.name)
def test_probing_finds_each_group_as_often_as_the_definition_and_knows_how_likely_that_was(
    scene: Scene, sampler: Sampler
) -> None:
    priorities = [*np.linspace(0.26, 1.9, 50), 3.0, 3.5, 60.0, 0.01]
    ids = put_groups(scene, priorities)
    weights = weights_of(sampler, priorities)
    size, num_draws = 10, 2500
    found, counted = np.zeros(len(ids)), np.zeros(num_draws)
    with closing(connect(scene.database.url)) as tx:
        picks = Picks(tx, scene, sampler, size)
        for step in range(num_draws):
            chances = picks.groups(step)
            found[np.searchsorted(ids, list(chances))] += 1
            counted[step] = sum(1 / chance for chance in chances.values())
    assert found.sum() == size * num_draws
    assert misfit_of_inclusions(found, weights, size, num_draws) > RARE
    wrong = weights * np.asarray(priorities) ** 0.1
    assert misfit_of_inclusions(found, wrong, size, num_draws) < RARE
    # Horvitz and Thompson: each row stands for as many as its chance says.
    assert abs(counted.mean() - len(ids)) < 5 * counted.std() / math.sqrt(num_draws)


@pytest.mark.usefixtures("probing")
@pytest.mark.parametrize("sampler", BY_CHANCE, ids=lambda sampler: sampler.name)
def test_draws_stay_exact_while_priorities_change_and_groups_come_and_go(
    scene: Scene, sampler: Sampler
) -> None:
    put_groups(scene, np.linspace(0.3, 1.9, 40).tolist())
    rng = np.random.default_rng(1)
    places = np.zeros(2500)
    with (
        closing(connect(scene.database.url, autocommit=True)) as other,
        closing(connect(scene.database.url)) as tx,
    ):
        picks = Picks(tx, scene, sampler, size=1)
        for step in range(len(places)):
            disturb(other, scene.run.id, rng)
            eligible = tx.execute(ELIGIBLE, [scene.run.id]).fetchall()
            shares = weights_of(sampler, [group["priority"] for group in eligible])
            upto = np.cumsum(shares / shares.sum())
            [chosen] = picks.groups(step)
            place = [group["id"] for group in eligible].index(chosen)
            # Where the pick lies between 0 and 1 if groups lie side by side, as wide as they are likely.
            places[step] = upto[place] - rng.random() * shares[place] / shares.sum()
            tx.commit()
    observed = np.histogram(places, bins=20, range=(0, 1))[0]
    assert misfit(observed, np.full(20, len(places) / 20)) > RARE


ELIGIBLE = "SELECT id, priority FROM trinity.rollout_group WHERE run_id = %s AND state = 'ready' ORDER BY id"


def disturb(tx: Transaction, run_id: int, rng: np.random.Generator) -> None:
    """Some groups get other priorities, some are leased or given back, and sometimes there are new ones."""
    some = "run_id = %s AND id %% 7 = %s"
    tx.execute(
        f"UPDATE trinity.rollout_group SET priority = %s + 0.01 * (id %% 11) WHERE {some}".encode(),
        [float(rng.uniform(0.2, 4)), run_id, int(rng.integers(7))],
    )
    tx.execute(
        "UPDATE trinity.rollout_group SET state = CASE state WHEN 'ready' THEN 'leased'"
        f" ELSE 'ready' END::trinity.group_state WHERE {some} AND id %% 5 = %s".encode(),
        [run_id, int(rng.integers(7)), int(rng.integers(5))],
    )
    if rng.random() < 0.02:
        put(tx, run_id, rng.uniform(0.2, 4, size=3).tolist())
