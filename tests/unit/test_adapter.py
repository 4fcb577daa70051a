"""LoRA: what is trained, what it is compared with, and what a checkpoint of it is worth."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from tests.support.recipes import recipe
from tests.support.saving import resume, save
from trinity_db.arrays.codec import Payload
from trinity_db.config.base import validate
from trinity_db.config.shared import ScratchConfig
from trinity_db.errors import ConfigError, MissingExtra
from trinity_db.models import build_scratch, folder_digest, load_model, load_tokenizer
from trinity_db.models.folder_digest import verify
from trinity_db.models.scratch import scratch_tokenizer
from trinity_db.trainer.config import LoraConfig, TrainerConfig
from trinity_db.trainer.learner.adapter import Adapter
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner
from trinity_db.trainer.learner.policy import Policy

LORA = {"rank": 4, "alpha": 8}
TOKENS = torch.arange(8)[None]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start")
    build_scratch(ScratchConfig(alphabet="0123456789", hidden_size=16, heads=2, context=32), 3, folder)
    return folder


def learner(
    model: Path, algorithm: str = "sft", start: Path | None = None, lora: Any = LORA, **settings: Any
) -> Learner:
    """With random weights that are the same whenever it is made."""
    torch.manual_seed(5)
    config = validate(TrainerConfig, {"learning_rate": 1e-2, "lora": lora, **settings}, "run.yaml")
    return Learner(config, recipe(algorithm), model, reference=start, total_steps=10, device="cpu")


def batch(seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    rows = [rng.integers(0, 10, length).astype(np.int32) for length in (8, 5, 9, 6)]
    return Batch([Payload(row, np.arange(len(row)) > 2) for row in rows])


def weights(learner: Learner) -> dict[str, Tensor]:
    return {name: one.clone() for name, one in learner.policy.model.state_dict().items()}


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(TOKENS).logits
    return found


def test_the_adapter_is_trained_and_nothing_else(start: Path) -> None:
    one = learner(start)
    before = weights(one)
    for seed in range(3):
        one.step(batch(seed))
    changed = {name for name, weight in weights(one).items() if not torch.equal(weight, before[name])}
    # Both matrices of the seven linear layers of two blocks.
    assert len(changed) == len(one.policy.parameters()) == 2 * 7 * 2
    assert all(".lora_" in name for name in changed)
    state = one.optimizer.state_dict()["state"]
    assert sum(entry["exp_avg"].numel() for entry in state.values()) == sum(
        parameter.numel() for parameter in one.policy.parameters()
    )


def test_at_first_an_adapter_changes_nothing(start: Path) -> None:
    rows = batch().payloads
    whole = Policy(start, TrainerConfig(), device="cpu")
    assert torch.equal(learner(start).policy.logprobs(rows), whole.logprobs(rows))


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_its_gradient_is_that_of_the_weights_that_it_makes(
    start: Path, tmp_path: Path, gradient_checkpointing: bool
) -> None:
    """With W = W0 + s·B·A: ∂L/∂B = s · ∂L/∂W · Aᵀ and ∂L/∂A = s · Bᵀ · ∂L/∂W."""
    settings: dict[str, Any] = {"gradient_checkpointing": gradient_checkpointing, "max_grad_norm": 1e9}
    one = learner(start, **settings)
    one.step(batch(1))
    folder_digest.complete(tmp_path / "merged", one.policy.save(tmp_path / "merged"))
    merged = learner(tmp_path / "merged", lora=None, **settings)
    matrices = {name: one.clone() for name, one in weights(one).items() if ".lora_" in name}
    losses = [each.step(batch(2))["loss"] for each in (one, merged)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    by_weight = {name: parameter.grad for name, parameter in merged.policy.model.named_parameters()}
    for name, parameter in one.policy.model.named_parameters():
        layer, _, matrix = name.partition(".lora_")
        if not matrix:
            assert parameter.grad is None
            continue
        by_layer = by_weight[f"{layer}.weight"]
        a, b = (matrices[f"{layer}.lora_{side}.default.weight"] for side in "AB")
        expected = 2.0 * (b.T @ by_layer if matrix.startswith("A") else by_layer @ a.T)
        torch.testing.assert_close(parameter.grad, expected, atol=1e-6, rtol=1e-4)


def test_bfloat16_computes_about_the_same(start: Path) -> None:
    losses = [learner(start, dtype=dtype).step(batch())["loss"] for dtype in ("float32", "bfloat16")]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


def test_the_reference_is_the_model_without_its_adapter(start: Path) -> None:
    one = learner(start, "dpo")
    before = Policy(start, TrainerConfig(), device="cpu").logprobs(batch().payloads)
    metrics = [one.step(batch()) for _ in range(4)]
    assert metrics[0]["rewards/margins"] == 0.0
    assert metrics[-1]["rewards/margins"] > 0.01
    assert torch.equal(one.policy.reference_logprobs(batch().payloads), before)
    assert not torch.allclose(one.policy.logprobs(batch().payloads), before, atol=1e-3)


def test_a_checkpoint_is_the_model_with_its_adapter_in_it(start: Path, tmp_path: Path) -> None:
    one = learner(start)
    one.step(batch())
    before = weights(one)
    save(tmp_path / "v1", one, load_tokenizer(start))
    seen = logits(load_model(tmp_path / "v1", "cpu"))
    torch.testing.assert_close(seen, logits(one.policy.model), atol=1e-5, rtol=0)
    assert not torch.allclose(seen, logits(load_model(start, "cpu")), atol=1e-3)
    # Nothing in it but the names that any checkpoint has, and saving has touched nothing.
    names = [set(load_file(folder / "model.safetensors")) for folder in (start, tmp_path / "v1")]
    assert names[0] == names[1]
    assert all(torch.equal(weight, before[name]) for name, weight in weights(one).items())
    targets = json.loads((tmp_path / "v1" / "adapter" / "adapter_config.json").read_text())["target_modules"]
    assert targets == sorted(targets)  # as in every process, whatever its sets are like
    assert len(targets) == 2 * 7


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own
def test_peft_loads_the_adapter_of_a_checkpoint(start: Path, tmp_path: Path) -> None:
    one = learner(start, lora={**LORA, "targets": ["q_proj", "v_proj"]})
    one.step(batch())
    save(tmp_path / "v1", one, load_tokenizer(start))
    theirs = peft.PeftModel.from_pretrained(load_model(start, "cpu"), str(tmp_path / "v1" / "adapter")).eval()
    assert torch.equal(logits(theirs), logits(one.policy.model))


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture of experts, whose weights are one parameter for all of a layer."""
    folder = tmp_path_factory.mktemp("experts")
    sizes = {"vocab_size": 12, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "initializer_range": 0.2,
    }
    torch.manual_seed(0)
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, **heads))
    model.save_pretrained(folder)
    scratch_tokenizer("0123456789", 32).save_pretrained(folder)
    return folder


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # these are peft's own
@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning")
def test_fused_experts_have_an_adapter_that_is_saved_merged_and_resumed(
    experts: Path, tmp_path: Path
) -> None:
    tokenizer, steady = load_tokenizer(experts), learner(experts)
    adapted = {name.partition(".lora_")[0] for name in weights(steady) if ".lora_" in name}
    assert "model.layers.0.mlp.experts" in adapted
    steady.step(batch(0))
    save(tmp_path / "v1", steady, tokenizer)
    live = logits(steady.policy.model)
    torch.testing.assert_close(logits(load_model(tmp_path / "v1", "cpu")), live, atol=1e-5, rtol=0)
    assert not torch.allclose(live, logits(load_model(experts, "cpu")), atol=1e-3)
    names = [set(load_file(folder / "model.safetensors")) for folder in (experts, tmp_path / "v1")]
    assert names[0] == names[1]
    theirs = peft.PeftModel.from_pretrained(load_model(experts, "cpu"), str(tmp_path / "v1" / "adapter"))
    torch.testing.assert_close(logits(theirs.eval()), live, atol=1e-6, rtol=0)
    resumed = learner(tmp_path / "v1", start=experts)
    resume(tmp_path / "v1", resumed)
    assert steady.step(batch(1)) == resumed.step(batch(1))


def test_layers_that_kernels_read_past_an_adapter_have_none(tmp_path: Path) -> None:
    sizes = {"vocab_size": 12, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 32}
    mamba = {
        "mamba_d_ssm": 16,
        "mamba_n_heads": 2,
        "mamba_d_head": 8,
        "mamba_d_state": 8,
        "mamba_chunk_size": 8,
    }
    config = transformers.FalconH1Config(**sizes, **heads, **mamba)
    transformers.FalconH1ForCausalLM(config).save_pretrained(tmp_path)
    adapted = {name.partition(".lora_")[0] for name in weights(learner(tmp_path)) if ".lora_" in name}
    assert {name.rpartition(".")[2] for name in adapted} >= {"in_proj", "q_proj", "down_proj"}
    assert "model.layers.0.mamba.out_proj" not in adapted
    with pytest.raises(ConfigError, match=r"targets: 'out_proj' of FalconH1ForCausalLM is read by more than"):
        learner(tmp_path, lora={"targets": ["q_proj", "out_proj"]})


def test_a_model_without_a_layer_for_an_adapter_is_refused(start: Path, tmp_path: Path) -> None:
    class Own(torch.nn.Linear):
        """A kind of layer that computes something else."""

    model = load_model(start, "cpu")
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            module.__class__ = Own
    with pytest.raises(ConfigError, match=r"targets: peft puts no adapter on Qwen2ForCausalLM \(No modules"):
        Adapter(model, LoraConfig())


def test_training_goes_on_as_if_it_had_not_stopped(start: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(start)
    steady = learner(start, "dpo")
    for seed in range(2):
        steady.step(batch(seed))
    save(tmp_path / "v2", steady, tokenizer)
    resumed = learner(tmp_path / "v2", "dpo", start)
    resume(tmp_path / "v2", resumed)
    for seed in range(2, 5):
        assert steady.step(batch(seed)) == resumed.step(batch(seed))
    digests = [
        save(tmp_path / name, one, tokenizer) for name, one in (("steady", steady), ("resumed", resumed))
    ]
    assert digests[0] == digests[1]


def test_the_adapter_is_among_what_is_verified(start: Path, tmp_path: Path) -> None:
    digest = save(tmp_path / "v1", learner(start), load_tokenizer(start)).version
    assert verify(tmp_path / "v1", digest)
    (tmp_path / "v1" / "adapter" / "adapter_model.safetensors").unlink()
    assert not verify(tmp_path / "v1", digest)


def test_a_run_that_starts_from_a_checkpoint_lays_its_own_adapter_on_it(start: Path, tmp_path: Path) -> None:
    one = learner(start)
    one.step(batch())
    save(tmp_path / "v1", one, load_tokenizer(start))
    rows = batch().payloads
    whole = Policy(tmp_path / "v1", TrainerConfig(), device="cpu")
    assert torch.equal(learner(tmp_path / "v1").policy.logprobs(rows), whole.logprobs(rows))


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (
            ["lm_head"],
            "targets: 'lm_head' is the output embedding, which cannot have an adapter; remove it",
        ),
        (["q_porj"], "targets: Qwen2ForCausalLM has no linear layer 'q_porj'; did you mean 'q_proj'"),
        (["embed_tokens"], "no linear layer 'embed_tokens'; known: down_proj, gate_proj, k_proj"),
    ],
)
def test_layers_that_cannot_have_an_adapter_are_refused(
    start: Path, targets: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        learner(start, lora={"targets": targets})


def test_without_peft_the_extra_is_named(start: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"peft.*trinity-db\[train\]"):
        learner(start)
