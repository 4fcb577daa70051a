"""What GRPO teaches in the demo the other algorithms teach too, by the same roles as processes."""

import pytest

from tests.acceptance.command import Store
from tests.others.learning import task

STEPS = 250  # the demo takes 400; the differences between algorithms show before
OF_GRPO = 0.8  # of GRPO's accuracy after as many steps

pytestmark = pytest.mark.timeout(2 * task.RUN_SECONDS)


def learned(store: Store, algorithm: str) -> float:
    config = {
        **task.GRPO,
        "name": algorithm,
        "seed": 0,
        "model": {"run": task.WARM_START, "prompt_template": task.TEMPLATE},
        "algorithm": algorithm,
        "trainer": {**task.GRPO["trainer"], "steps": STEPS},
    }
    task.train(store, "run", config)
    return task.accuracy(task.checkpoint(store, algorithm))


@pytest.fixture(scope="module")
def before(store: Store) -> float:
    return task.accuracy(task.checkpoint(store, task.WARM_START))


@pytest.fixture(scope="module")
def by_grpo(store: Store) -> float:
    return learned(store, "grpo")


def test_grpo_learns(before: float, by_grpo: float, results: list[str]) -> None:
    results.append(f"warm start  {before:.3f}")
    results.append(f"grpo        {by_grpo:.3f} after {STEPS} steps")
    assert by_grpo > before + 0.2


@pytest.mark.parametrize("name", ["rloo", "reinforce_plus_plus", "cispo", "gspo", "dapo", "ppo"])
def test_others_learn_as_well(name: str, store: Store, by_grpo: float, results: list[str]) -> None:
    found = learned(store, name)
    results.append(f"{name:20} {found:.3f}, {found / by_grpo:.2f} of GRPO's")
    assert found >= OF_GRPO * by_grpo
