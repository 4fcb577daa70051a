"""What other models said of rows, in a step: in place of asking the reference, and what a teacher changes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.recipes import recipe
from trinity_db.arrays.codec import Payload
from trinity_db.config.shared import ModelConfig, ScratchConfig
from trinity_db.errors import ConfigError
from trinity_db.models import build_scratch, load_tokenizer, other_token, source_tokenizer
from trinity_db.models.frozen_model import FrozenModel
from trinity_db.trainer.config import AlgorithmConfig, TrainerConfig
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner

DIGITS = ScratchConfig(alphabet="0123456789", hidden_size=16, heads=2, context=32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    build_scratch(DIGITS, 3, folder)
    return folder


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("other")
    build_scratch(DIGITS, 4, folder)
    return folder


def payload(rng: np.random.Generator, num_tokens: int, first_trains: bool = False) -> Payload:
    mask = np.zeros(num_tokens, np.bool_)
    mask[2:3] = mask[num_tokens // 2 :] = True
    mask[0] = first_trains
    tokens = rng.integers(0, 10, num_tokens).astype(np.int32)
    logprobs = rng.normal(-2.3, 0.3, int(mask.sum())).astype(np.float32)
    return Payload(tokens, mask, logprobs, np.zeros(int(mask.sum()), np.int32))


@pytest.fixture
def rows() -> list[Payload]:
    rng = np.random.default_rng(0)
    return [payload(rng, length, first_trains=length == 9) for length in (6, 13, 9, 5, 8, 11)]


def scores(folder: Path, rows: list[Payload], **settings: float) -> list[np.ndarray]:
    config = TrainerConfig.model_validate({"micro_batch_size": 2, **settings})
    return [
        one
        for _, one in sorted(
            FrozenModel(folder, config, device="cpu").scores(rows), key=lambda answer: answer[0]
        )
    ]


def learner(model: Path, algorithm: AlgorithmConfig, start: Path, **settings: object) -> Learner:
    config = TrainerConfig.model_validate({"learning_rate": 1e-2, "micro_batch_size": 4, **settings})
    return Learner(config, algorithm, model, reference=start, total_steps=10, device="cpu")


def weights(one: Learner) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in one.policy.model.parameters()])


@pytest.mark.parametrize("name", ["dpo", "ipo"])
def test_a_precomputed_reference_makes_the_step_of_one_that_is_asked(
    model: Path, other: Path, rows: list[Payload], name: str
) -> None:
    algorithm = recipe("dpo", loss="ipo") if name == "ipo" else recipe("dpo")
    asked = learner(model, algorithm, other)
    stored = learner(model, algorithm, other, reference="precomputed")
    said = Batch(rows, scores={"reference": scores(other, rows)})
    for _ in range(3):
        assert stored.step(said) == pytest.approx(asked.step(Batch(rows)), rel=1e-5, abs=1e-6)
    # A hundredth of one step: Adam divides by the size of a gradient, so rounding errors of tiny ones grow,
    # by how much depends on the processor.
    torch.testing.assert_close(weights(stored), weights(asked), atol=1e-4, rtol=0)
    assert (weights(stored) - weights(learner(model, algorithm, other))).abs().max() > 1e-3


def test_a_model_says_the_same_of_a_row_whatever_stands_beside_it(other: Path, rows: list[Payload]) -> None:
    alone = [scores(other, [row])[0] for row in rows]
    for one, together in zip(alone, scores(other, rows), strict=True):
        np.testing.assert_allclose(one, together, atol=1e-6)
    assert [len(one) for one in alone] == [row.num_predicted for row in rows]


def test_of_a_row_without_a_trained_token_nothing_is_said(other: Path, rows: list[Payload]) -> None:
    first_alone = Payload(np.arange(3, dtype=np.int32), np.array([True, False, False]))
    said = scores(other, [rows[0], first_alone])
    assert [len(one) for one in said] == [rows[0].num_predicted, 0]
    assert [len(one) for one in scores(other, [first_alone])] == [0]


def test_the_size_of_a_micro_batch_changes_nothing_of_what_a_teacher_teaches(
    model: Path, other: Path, rows: list[Payload]
) -> None:
    algorithm = recipe("on_policy_distillation", distillation="jsd", whiten=True)
    batch = Batch(rows, {"advantages": np.zeros(6)}, {"teacher": scores(other, rows)})
    seen = [learner(model, algorithm, model, micro_batch_size=size).step(batch) for size in (1, 4, 100)]
    assert seen[1] == pytest.approx(seen[0], abs=1e-5)
    assert seen[2] == pytest.approx(seen[0], abs=1e-5)
    assert seen[0]["grad_norm"] > 0


def test_a_policy_comes_nearer_to_its_teacher(model: Path, other: Path, rows: list[Payload]) -> None:
    one = learner(model, recipe("on_policy_distillation"), model, learning_rate=3e-3)
    teacher = scores(other, rows)

    def distance() -> float:
        said = one.policy.logprobs(rows).numpy()
        return float(np.mean([abs(s[: len(t)] - t).mean() for s, t in zip(said, teacher, strict=True)]))

    before = distance()
    for _ in range(30):
        now = one.policy.logprobs(rows).numpy()
        sampled = [
            replace(row, logprobs=np.concatenate([row.logprobs[: row.num_trained - len(t)], s[: len(t)]]))
            for row, s, t in zip(rows, now, teacher, strict=True)
            if row.logprobs is not None
        ]
        one.step(Batch(sampled, {"advantages": np.zeros(6)}, {"teacher": teacher}))
    assert distance() < 0.5 * before


def test_rows_of_which_no_teacher_was_asked_are_refused(model: Path, rows: list[Payload]) -> None:
    one = learner(model, recipe("on_policy_distillation"), model)
    with pytest.raises(ConfigError, match=r"no teacher \(.*\), which distillation 'reverse_kl' needs"):
        one.step(Batch(rows, {"advantages": np.zeros(6)}))


def test_tokens_are_the_same_where_each_has_its_number_in_both(other: Path, tmp_path: Path) -> None:
    ours = source_tokenizer(ModelConfig(scratch=DIGITS))
    assert other_token(ours, load_tokenizer(other)) is None
    build_scratch(DIGITS.model_copy(update={"alphabet": "0123456789+"}), 0, tmp_path / "more")
    more = source_tokenizer(ModelConfig(path=tmp_path / "more"))
    # What comes after the digits has another number, and so it is the first that differs.
    assert other_token(ours, more) == ours.convert_ids_to_tokens(10)
    shifted = source_tokenizer(ModelConfig(scratch=DIGITS.model_copy(update={"alphabet": "1234567890"})))
    assert other_token(ours, shifted) == "0"
