"""Algorithms in a trainer of this process, over live groups: recipes, and parts that users write."""

from pathlib import Path

import pytest
import torch

from tests.support.bench import setup_of
from tests.support.recipes import recipe
from tests.support.rows import Scene, rollout
from trinity_db.errors import ConfigError
from trinity_db.trainer.config import AlgorithmConfig, TrainerConfig
from trinity_db.trainer.service import Trainer

METRICS = "SELECT name, value FROM trinity.metric WHERE run_id = %s AND step = 1"
ADVANTAGES = """
SELECT i.advantage FROM trinity.batch_item i JOIN trinity.batch b ON b.id = i.batch_id
WHERE b.run_id = %s ORDER BY i.ordinal
"""
LOSS = '''
def mine(logprobs, behaviour, advantages, mask, *, scale: float = 1.0):
    """REINFORCE, weighed by the probability ratio."""
    ratio = (logprobs - behaviour).masked_fill(~mask, 0.0).exp()
    return {"loss": -scale * advantages * ratio}
'''


class Bench:
    """A run that explores, and its trainer: two steps of two groups."""

    def __init__(self, scene: Scene, checkpoints: Path) -> None:
        self.scene = scene.beside("live")
        self._checkpoints = checkpoints

    def start(self, algorithm: AlgorithmConfig) -> Trainer:
        setup = setup_of(
            TrainerConfig(steps=2, batch_size=2, learning_rate=0.1),
            algorithm,
            self._checkpoints,
        )
        trainer = Trainer(self.scene.database, self.scene.run, setup)
        trainer.worker_id = self.scene.trainer
        trainer.start()
        return trainer

    def explore(self) -> None:
        """Two groups of a good and a bad response."""
        for group in self.scene.claim(2):
            self.scene.write(
                [
                    rollout(group, member, reward)
                    for member, reward in zip(group.members, ("1.0", "0.0"), strict=True)
                ]
            )
        self.scene.process()

    def metrics(self) -> dict[str, float]:
        return dict(self.scene.rows(METRICS, self.scene.run.id))


@pytest.fixture
def bench(scene: Scene, tmp_path: Path) -> Bench:
    return Bench(scene, tmp_path / "checkpoints")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "losses.py"
    file.write_text(LOSS)
    return file


def test_a_loss_of_the_users_own_trains(bench: Bench, own: Path) -> None:
    loss = {"name": f"{own}:mine", "scale": 0.5}
    trainer = bench.start(recipe("policy_gradient", advantage="reward", loss=loss))
    bench.explore()
    assert trainer.work()
    found = bench.metrics()
    # Half of the tokens have an advantage of 1; the loss is -0.5 times the mean of their ratios, and 0.
    assert found["loss"] == found["policy_loss"] == pytest.approx(-0.25 * found["ratio_mean"])
    assert found["grad_norm"] > 0
    assert bench.scene.values(ADVANTAGES, bench.scene.run.id) == [1.0, 0.0, 1.0, 0.0]
    trainer.release()
    assert bench.scene.values(
        "SELECT max(version) FROM trinity.policy_version WHERE run_id = %s", bench.scene.run.id
    ) == [1]


def test_a_loss_of_the_users_own_that_cannot_be_called_stops_the_trainer_at_its_start(
    bench: Bench, own: Path
) -> None:
    with pytest.raises(ConfigError, match="unknown key 'scael'; did you mean 'scale'"):
        bench.start(recipe("grpo", loss={"name": f"{own}:mine", "scael": 0.5}))


@pytest.mark.parametrize(
    ("algorithm", "metric"),
    [
        (recipe("reinforce_plus_plus"), "kl"),
        (recipe("grpo", correction="m2po"), "sampling/importance_sampling_ratio/mean"),
        (recipe("raft", reward_above=0.5), "mean_token_accuracy"),
        (recipe("ppo", kl="k1"), "value_loss"),
        (recipe("a2c"), "values/mean"),
    ],
    ids=lambda one: getattr(one, "name", None),
)
def test_a_step_over_live_groups_is_committed_with_its_metrics(
    bench: Bench, algorithm: AlgorithmConfig, metric: str
) -> None:
    trainer = bench.start(algorithm)
    bench.explore()
    assert trainer.work()
    assert bench.metrics().keys() > {"loss", "grad_norm", "learning_rate", "entropy", metric}


def test_with_values_the_reward_is_recorded_and_a_version_has_the_values(bench: Bench) -> None:
    trainer = bench.start(recipe("ppo"))
    bench.explore()
    assert trainer.work()
    assert bench.scene.values(ADVANTAGES, bench.scene.run.id) == [1.0, 0.0, 1.0, 0.0]
    assert bench.metrics()["returns/mean"] == pytest.approx(0.5)
    trainer.release()
    again = bench.start(recipe("ppo"))  # goes on from version 1
    heads = [one._learner.policy.value_head for one in (trainer, again)]
    trained, found = [head.weight for head in heads if head is not None]
    assert torch.equal(trained, found)
    assert trained.any()
