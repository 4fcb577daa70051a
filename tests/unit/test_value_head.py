"""The value head learns beside the policy, goes with its checkpoints, and changes nothing else."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.recipes import recipe
from tests.support.saving import resume, save
from trinity_db.arrays.codec import Payload
from trinity_db.config.shared import ScratchConfig
from trinity_db.errors import ConfigError
from trinity_db.models import build_scratch, load_model, load_tokenizer
from trinity_db.trainer.config import AlgorithmConfig, TrainerConfig
from trinity_db.trainer.learner import value_head
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner

PPO = recipe("ppo", clip_high=10.0)  # so that twenty steps on one batch go on pulling
ROWS, TOKENS = 8, 7


@pytest.fixture
def start(tmp_path: Path) -> Path:
    folder = tmp_path / "start"
    build_scratch(ScratchConfig(alphabet="0123456789", hidden_size=16, heads=2, context=32), 3, folder)
    return folder


def learner(model: Path, algorithm: AlgorithmConfig = PPO, **settings: float) -> Learner:
    config = TrainerConfig.model_validate({"learning_rate": 1e-2, **settings})
    return Learner(config, algorithm, model, total_steps=20, device="cpu")


def batch(model: Path) -> Batch:
    """Half of the rows end in a 7 and are rewarded; the model itself has sampled all of them."""
    tokens = np.random.default_rng(0).integers(0, 7, (ROWS, TOKENS)).astype(np.int32)
    rewarded = np.arange(ROWS) % 2 == 0
    tokens[rewarded, 4:] = 7
    mask = np.arange(TOKENS) > 2
    bare = [Payload(row, mask) for row in tokens]
    logprobs = learner(model).policy.logprobs(bare).numpy().astype(np.float32)
    payloads = [
        Payload(one.token_ids, mask, row, np.zeros(len(row), np.int32))
        for one, row in zip(bare, logprobs, strict=True)
    ]
    return Batch(payloads, {"rewards": rewarded.astype(np.float64)})


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_values_approach_what_is_earned_and_rewarded_rows_become_likelier(start: Path, name: str) -> None:
    rows = batch(start)
    rewarded = rows.columns["rewards"] > 0
    one = learner(start, PPO if name == "ppo" else recipe(name))
    before = one.policy.logprobs(rows.payloads).sum(dim=1)
    seen = [one.step(rows) for _ in range(20)]
    rise = one.policy.logprobs(rows.payloads).sum(dim=1) - before
    # Nothing is expected at first: half the squared reward of half the rows.
    assert seen[0]["value_loss"] == pytest.approx(0.25)
    assert seen[0]["values/mean"] == seen[0]["explained_variance"] == 0.0
    assert seen[0]["returns/mean"] == pytest.approx(0.5)
    assert seen[-1]["value_loss"] < 0.6 * seen[0]["value_loss"]
    assert seen[-1]["explained_variance"] > 0.1
    assert rise[rewarded].min() > rise[~rewarded].max()
    assert rise[rewarded].mean() > 0
    assert {one["value_clip_ratio"] for one in seen} == {0.0}


def test_the_first_step_moves_the_trunk_as_without_values(start: Path) -> None:
    """The head is zero: what it is taught reaches no further. Its advantages are the rewards."""
    rows = batch(start)
    with_values = learner(start, recipe("ppo", whiten=False), learning_rate=1e-3, max_grad_norm=1e9)
    without = learner(
        start, recipe("policy_gradient", advantage="reward"), learning_rate=1e-3, max_grad_norm=1e9
    )
    with_values.step(rows)
    without.step(Batch(rows.payloads, {"advantages": rows.columns["rewards"]}))
    pairs = zip(with_values.policy.model.parameters(), without.policy.model.parameters(), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs)
    assert with_values.policy.value_head is not None
    assert with_values.policy.value_head.weight.abs().max() > 0


def test_rows_without_rewards_are_refused(start: Path) -> None:
    rows = Batch(batch(start).payloads, {"advantages": np.ones(ROWS)})
    with pytest.raises(ConfigError, match=r"The rows have no rewards \(.*\), which value 'gae' needs"):
        learner(start).step(rows)


def test_values_go_on_as_if_training_had_not_stopped(start: Path, tmp_path: Path) -> None:
    rows = batch(start)
    steady = learner(start)
    for _ in range(2):
        steady.step(rows)
    save(tmp_path / "v2", steady, load_tokenizer(start))
    resumed = learner(tmp_path / "v2")
    resume(tmp_path / "v2", resumed)
    for _ in range(2):
        assert steady.step(rows) == resumed.step(rows)
    digests = [
        save(tmp_path / name, one, load_tokenizer(start))
        for name, one in (("steady", steady), ("resumed", resumed))
    ]
    assert digests[0] == digests[1]


def test_a_checkpoint_with_values_is_a_model_folder_to_all_others(start: Path, tmp_path: Path) -> None:
    trained = learner(start)
    trained.step(batch(start))
    save(tmp_path / "v1", trained, load_tokenizer(start))
    assert (tmp_path / "v1" / value_head.FILE).is_file()
    model = load_model(tmp_path / "v1", "cpu")
    assert model.state_dict().keys() == load_model(start, "cpu").state_dict().keys()
    save(tmp_path / "without", learner(tmp_path / "v1", recipe("grpo")), load_tokenizer(start))
    assert not (tmp_path / "without" / value_head.FILE).exists()


def test_a_run_that_starts_from_another_takes_its_values_or_new_ones(start: Path, tmp_path: Path) -> None:
    trained = learner(start)
    trained.step(batch(start))
    save(tmp_path / "v1", trained, load_tokenizer(start))
    heads = [learner(folder).policy.value_head for folder in (tmp_path / "v1", start)]
    taken, new = [head.weight for head in heads if head is not None]
    assert trained.policy.value_head is not None
    assert torch.equal(taken, trained.policy.value_head.weight)
    assert not new.any()


def test_going_on_without_values_that_were_trained_is_refused(start: Path, tmp_path: Path) -> None:
    save(tmp_path / "v1", learner(start, recipe("grpo")), load_tokenizer(start))
    with pytest.raises(ConfigError, match=r"was trained without values; start a run of its own"):
        resume(tmp_path / "v1", learner(tmp_path / "v1"))
