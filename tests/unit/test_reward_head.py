"""A reward model learns from pairs, and each version of it is one to plain transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import logsigmoid
from transformers import AutoModelForSequenceClassification, GraniteConfig, GraniteForCausalLM

from tests.support.recipes import recipe
from tests.support.saving import checkpoint_of, save
from trinity_db.arrays.codec import Payload
from trinity_db.config.shared import ForwardConfig, ScratchConfig
from trinity_db.errors import ConfigError
from trinity_db.models import build_scratch, load_model, load_tokenizer
from trinity_db.models.reward_model import RewardModel
from trinity_db.trainer.checkpoints import checkpoint
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner
from trinity_db.trainer.learner.reward_head import WEIGHT

PAD = 11  # of a scratch model whose alphabet has ten digits


@pytest.fixture
def start(tmp_path: Path) -> Path:
    folder = tmp_path / "start"
    build_scratch(ScratchConfig(alphabet="0123456789", hidden_size=16, heads=2, context=32), 3, folder)
    return folder


def learner(model: Path, start: Path | None = None, algorithm: Any = None, **settings: Any) -> Learner:
    config = TrainerConfig.model_validate({"learning_rate": 1e-2, "micro_batch_size": 4, **settings})
    chosen = algorithm or recipe("reward_model")
    return Learner(config, chosen, model, total_steps=20, reference=start, device="cpu")


def pairs(number: int = 8) -> Batch:
    """Chosen rows have more of high digits. Their lengths differ, and some end in padding."""
    rng = np.random.default_rng(0)
    rows = []
    for pair in range(number):
        for low, high in ((4, 10), (0, 6)):
            tokens = rng.integers(low, high, rng.integers(5, 12)).astype(np.int32)
            if pair % 4 == 0:
                tokens[-1] = PAD
            rows.append(Payload(tokens, np.arange(len(tokens)) > 2))
    return Batch(rows, {"margins": np.repeat(np.linspace(0.0, 1.0, number), 2)})


def rewards_of(folder: Path, batch: Batch) -> list[float]:
    """What plain transformers says of each row alone."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return [
            model(input_ids=torch.from_numpy(row.token_ids.astype(np.int64))[None]).logits.item()
            for row in batch.payloads
        ]


@pytest.mark.parametrize("settings", [{}, {"lora": {"rank": 2}}, {"publish_dtype": "bfloat16"}])
def test_pairs_are_told_apart_and_a_version_says_so_to_plain_transformers(
    start: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    batch = pairs()
    one = learner(start, start, **settings)
    seen = [one.step(batch) for _ in range(12)]
    assert seen[0]["loss"] == pytest.approx(np.log(2)), "the head starts at 0"
    assert seen[-1]["loss"] < 0.3
    assert seen[-1]["rewards/accuracies"] == 1.0
    save(tmp_path / "v1", one, load_tokenizer(start))
    measured = one.evaluate(batch)
    said = rewards_of(tmp_path / "v1", batch)
    tolerance = 0.1 if settings.get("publish_dtype") else 1e-5
    assert measured["rewards/chosen"] == pytest.approx(np.mean(said[::2]), abs=tolerance)
    assert measured["rewards/rejected"] == pytest.approx(np.mean(said[1::2]), abs=tolerance)
    step = RewardModel(tmp_path / "v1", ForwardConfig(micro_batch_size=3, dtype="float32"), device="cpu")
    ours = dict(step.rewards([row.token_ids.tolist() for row in batch.payloads]))
    assert [ours[place] for place in range(len(said))] == pytest.approx(said, abs=1e-5)
    assert seen[-1]["num_tokens"] == 12 * sum(row.num_tokens for row in batch.payloads)


def test_a_step_follows_the_gradient_of_the_formula(start: Path, tmp_path: Path) -> None:
    """By one matrix of weights after another, with plain transformers and one row at a time, in float64."""
    batch = pairs(4)
    options = {"margin": 0.5, "center_coefficient": 0.3}
    one = learner(start)
    for _ in range(3):
        one.step(batch)
    save(tmp_path / "v1", one, load_tokenizer(start))
    sgd: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 1e-2, "max_grad_norm": 1e9}
    ours = learner(tmp_path / "v1", algorithm=recipe("reward_model", **options), **sgd)
    before = {name: value.detach().clone() for name, value in ours.policy.model.named_parameters()}
    head = ours.policy.value_head
    assert head is not None
    head_before = head.weight.detach().clone()
    metrics = ours.step(batch)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "v1").double().eval()
    rows = [
        model(input_ids=torch.from_numpy(row.token_ids.astype(np.int64))[None]).logits[0, 0]
        for row in batch.payloads
    ]
    chosen, rejected = torch.stack(rows[::2]), torch.stack(rows[1::2])
    margins = torch.from_numpy(batch.columns["margins"][::2])
    loss = -logsigmoid(chosen - rejected - 0.5 * margins) + 0.3 * (chosen + rejected) ** 2
    torch.autograd.backward(loss.mean())
    assert metrics["loss"] == pytest.approx(loss.mean().item(), rel=1e-5)
    for name, parameter in model.named_parameters():
        now, earlier = (
            (head.weight, head_before)
            if name == WEIGHT
            else (dict(ours.policy.model.named_parameters())[name], before[name])
        )
        torch.testing.assert_close(
            (earlier - now).detach().double() / 1e-2, parameter.grad, atol=1e-4, rtol=1e-3
        )


def test_training_goes_on_as_if_it_had_not_stopped(start: Path, tmp_path: Path) -> None:
    batch = pairs()
    steady = learner(start)
    for _ in range(2):
        steady.step(batch)
    save(tmp_path / "v2", steady, load_tokenizer(start))
    resumed = learner(tmp_path / "v2")
    checkpoint.load_state(checkpoint_of(tmp_path / "v2"), resumed)
    for _ in range(2):
        assert steady.step(batch) == resumed.step(batch)
    names = ("steady", "resumed")
    digests = [
        save(tmp_path / name, one, load_tokenizer(start))
        for name, one in zip(names, (steady, resumed), strict=True)
    ]
    assert digests[0] == digests[1]


def test_a_version_is_the_causal_language_model_too(start: Path, tmp_path: Path) -> None:
    one = learner(start)
    one.step(pairs())
    save(tmp_path / "v1", one, load_tokenizer(start))
    assert WEIGHT in load_file(tmp_path / "v1" / "model.safetensors")
    again = load_model(tmp_path / "v1", "cpu").state_dict()
    assert again.keys() == load_model(start, "cpu").state_dict().keys()
    assert all(torch.equal(again[name], value) for name, value in one.policy.model.state_dict().items())
    policy = Learner(TrainerConfig(), recipe("grpo"), tmp_path / "v1", total_steps=1, device="cpu")
    save(tmp_path / "policy", policy, load_tokenizer(start))
    with pytest.raises(ConfigError, match="is not a reward model, but Qwen2ForCausalLM"):
        RewardModel(tmp_path / "policy", ForwardConfig())


def test_a_model_that_cannot_say_rewards_is_refused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = GraniteConfig(vocab_size=16, intermediate_size=16, max_position_embeddings=32, **sizes)
    GraniteForCausalLM(config).save_pretrained(tmp_path / "granite")
    with pytest.raises(
        ConfigError, match="transformers has no sequence classification for GraniteForCausalLM"
    ):
        learner(tmp_path / "granite")


def test_a_checkpoint_without_the_head_is_refused(start: Path, tmp_path: Path) -> None:
    save(tmp_path / "v1", learner(start, algorithm=recipe("dpo")), load_tokenizer(start))
    with pytest.raises(ConfigError, match="was trained without values; start a run of its own"):
        checkpoint.load_state(checkpoint_of(tmp_path / "v1"), learner(tmp_path / "v1"))
