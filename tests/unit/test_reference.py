"""What the policy is compared with: the starting model, or a model that follows the policy."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.support.recipes import recipe
from tests.support.saving import resume, save, save_checkpoint
from trinity_db.arrays.codec import Payload
from trinity_db.config.base import validate
from trinity_db.config.shared import ModelConfig, ScratchConfig
from trinity_db.errors import ConfigError
from trinity_db.models import build_scratch, load_tokenizer
from trinity_db.models.frozen_model import FrozenModel
from trinity_db.trainer.checkpoints import checkpoint
from trinity_db.trainer.config import AlgorithmConfig, SynchronisedReference, TrainerConfig
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner
from trinity_db.trainer.loop.setup import TrainerSetup

FOLLOWS = {"name": "synchronised", "sync_every": 2, "mix": 0.6}
SCRATCH = ScratchConfig(alphabet="0123456789", hidden_size=16, heads=2, context=32)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start")
    build_scratch(SCRATCH, 3, folder)
    return folder


def learner(model: Path, start: Path | None = None, reference: Any = FOLLOWS) -> Learner:
    config = validate(TrainerConfig, {"learning_rate": 1e-2, "reference": reference}, "run.yaml")
    return Learner(config, recipe("dpo"), model, reference=start, total_steps=10, device="cpu")


def batch(seed: int = 0) -> Batch:
    tokens = np.random.default_rng(seed).integers(0, 10, (4, 8)).astype(np.int32)
    return Batch([Payload(row, np.arange(8) > 3) for row in tokens])


def says(learner: Learner) -> Tensor:
    """What the reference says of some rows."""
    return learner.policy.reference_logprobs(batch().payloads)


def test_the_starting_model_stays_what_the_policy_is_compared_with(start: Path) -> None:
    one = learner(start, reference="start")
    before = says(one)
    for seed in range(3):
        one.step(batch(seed))
    assert torch.equal(says(one), before)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("name", "changes", "needs"),
    [
        ("dpo", {}, ()),
        ("kto", {}, ("rewards", "mismatched")),
        ("grpo", {"kl": "k3"}, ("advantages",)),
        ("reinforce_plus_plus", {}, ("advantages", "rewards", "groups")),
    ],
)
def test_a_reference_in_bfloat16_gives_steps_near_those_of_float32(
    start: Path, tmp_path: Path, name: str, changes: dict[str, Any], needs: tuple[str, ...], tied: bool
) -> None:
    folder = start if tied else untied(start, tmp_path / "untied")
    values = {
        "advantages": np.array([1.0, -1.0, 0.5, -0.5]),
        "rewards": np.array([1.0, 0.0, 1.0, 0.0]),
        "groups": np.array([0, 0, 1, 1]),
        "mismatched": np.zeros(4),
    }
    norms = []
    for dtype in ("float32", "bfloat16"):
        config = TrainerConfig.model_validate({"reference": "start", "dtype": dtype})
        made = Learner(
            config, recipe(name, **changes), folder, reference=folder, total_steps=10, device="cpu"
        )
        payloads = [with_behaviour(payload) for payload in batch().payloads]
        norms.append(made.step(Batch(payloads, {column: values[column] for column in needs}))["grad_norm"])
    assert norms[1] == pytest.approx(norms[0], rel=0.05)


@pytest.mark.parametrize("tied", [True, False])
def test_a_teacher_in_bfloat16_scores_near_float32(start: Path, tmp_path: Path, tied: bool) -> None:
    folder = start if tied else untied(start, tmp_path / "untied")
    exact, rounded = (
        dict(
            FrozenModel(folder, TrainerConfig.model_validate({"dtype": dtype}), device="cpu").scores(
                batch().payloads
            )
        )
        for dtype in ("float32", "bfloat16")
    )
    for row, scores in exact.items():
        np.testing.assert_allclose(rounded[row], scores, atol=0.1)
        assert not np.array_equal(rounded[row], scores)


def untied(start: Path, folder: Path) -> Path:
    """A copy of a model whose head has weights of its own, which are not those of the embeddings."""
    model = AutoModelForCausalLM.from_pretrained(start, tie_word_embeddings=False)
    model.lm_head.weight = torch.nn.Parameter(model.get_input_embeddings().weight.detach() * 1.5)
    model.save_pretrained(folder)
    load_tokenizer(start).save_pretrained(folder)
    return folder


def with_behaviour(payload: Payload) -> Payload:
    trained = int(payload.action_mask.sum())
    return replace(payload, logprobs=np.full(trained, -2.3, np.float32), versions=np.zeros(trained, np.int32))


def test_a_reference_that_follows_is_mixed_with_the_policy_after_every_so_many_steps(
    start: Path, tmp_path: Path
) -> None:
    one = learner(start)
    expected = [weight.clone() for weight in one.policy.model.parameters()]
    for step in range(1, 5):
        before = says(one)
        one.step(batch(step))
        if step % 2:
            assert torch.equal(says(one), before)
            continue
        policy = [weight.detach() for weight in one.policy.model.parameters()]
        expected = [0.6 * new + 0.4 * old for new, old in zip(policy, expected, strict=True)]
        save_checkpoint(tmp_path / str(step), one)
        saved = load_file(tmp_path / str(step) / checkpoint.TENSORS_FILE)
        for (name, _), weight in zip(one.policy.model.named_parameters(), expected, strict=True):
            torch.testing.assert_close(saved[f"reference.{name}"], weight, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("stopped_after", [1, 2, 3])
def test_training_goes_on_as_if_it_had_not_stopped(start: Path, tmp_path: Path, stopped_after: int) -> None:
    tokenizer = load_tokenizer(start)
    steady = learner(start)
    for seed in range(stopped_after):
        steady.step(batch(seed))
    save(tmp_path / "middle", steady, tokenizer)
    resumed = learner(tmp_path / "middle", start)
    resume(tmp_path / "middle", resumed)
    for seed in range(stopped_after, 5):
        assert steady.step(batch(seed)) == resumed.step(batch(seed))
    digests = [
        save(tmp_path / name, one, tokenizer) for name, one in (("steady", steady), ("resumed", resumed))
    ]
    assert digests[0] == digests[1]


def test_a_starting_model_that_is_a_checkpoint_is_compared_with_itself(start: Path, tmp_path: Path) -> None:
    """Not with what its own run was compared with, which lies in it."""
    other = learner(start)
    for seed in range(2):
        other.step(batch(seed))
    save(tmp_path / "v2", other, load_tokenizer(start))
    one = learner(tmp_path / "v2")
    assert torch.equal(says(one), one.policy.logprobs(batch().payloads))


@pytest.mark.parametrize("algorithm", [recipe("sft"), recipe("orpo"), recipe("grpo")])
def test_a_reference_is_refused_where_an_algorithm_has_none(algorithm: AlgorithmConfig) -> None:
    def setup(**settings: Any) -> TrainerSetup:
        return TrainerSetup(
            trainer=TrainerConfig(**settings),
            algorithm=algorithm,
            model=ModelConfig(scratch=SCRATCH),
            seed=0,
            max_staleness=None,
            temperature=1.0,
            checkpoints=Path("checkpoints"),
        )

    assert not setup().needs_first_model
    with pytest.raises(ConfigError, match=f"trainer.reference: algorithm {algorithm.name} with these parts"):
        setup(reference=SynchronisedReference()).check()
