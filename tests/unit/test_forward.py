"""Packed, padded and computed in parts: all of it equals the model's own logits, sequence by sequence."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trinity_db.arrays.codec import Payload
from trinity_db.config.shared import ScratchConfig
from trinity_db.errors import ConfigError
from trinity_db.models import build_scratch, chunked_logprobs, load_model
from trinity_db.models.forward import Forward, trained_mask, trained_values
from trinity_db.models.layers import recompute
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.learner.value_head import ValueHead

VOCABULARY = 61
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,  # of a random model, so that attention and logits matter
}
TOKENS = (5, 17, 9, 30, 2)
TEMPERATURE = 0.7


def scratch(folder: Path) -> Any:
    """The project's own small model."""
    config = ScratchConfig(alphabet="0123456789", hidden_size=16, heads=2, context=32)
    build_scratch(config, 0, folder)
    return load_model(folder, "cpu").double()


def of(kind: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES | changes)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).double().eval()
    if "num_local_experts" in changes:
        model.set_experts_implementation("eager")  # the grouped product knows no float64
    return model


def llama4() -> Any:
    torch.manual_seed(0)
    sizes = SIZES | EXPERTS | {"head_dim": 8, "intermediate_size_mlp": 48, "attention_chunk_size": 6}
    return transformers.Llama4ForCausalLM(transformers.Llama4TextConfig(**sizes)).double().eval()


EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
MODELS = {
    # name: how it is made, whether it packs, whether its logits are plain
    "scratch": (scratch, True, True),
    "qwen2": (lambda _: of("Qwen2", tie_word_embeddings=False), True, True),
    "qwen2 tied": (lambda _: of("Qwen2", tie_word_embeddings=True), True, True),
    "llama": (lambda _: of("Llama"), True, True),
    "a window of 6": (lambda _: of("Mistral", sliding_window=6), True, True),
    "a mixture of experts": (lambda _: of("Mixtral", sliding_window=6, **EXPERTS), True, True),
    "a window that is in the mask only": (lambda _: of("Phimoe", sliding_window=6, **EXPERTS), False, True),
    "chunks that are in the mask only": (lambda _: llama4(), False, True),
    "a head with bias": (lambda _: of("Phi"), True, True),
    "scaled logits": (lambda _: of("Granite", logits_scaling=3.0), True, False),
    "soft-capped": (lambda _: of("Gemma2", head_dim=8), False, False),
    "biased by distance": (lambda _: of("Bloom", n_layer=2, n_head=4), False, True),
}


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits of at most 7 tokens at a time, so that there are several parts."""
    monkeypatch.setattr(chunked_logprobs, "CPU_PART_BYTES", 7 * 4 * VOCABULARY)


def payloads(vocabulary: int = VOCABULARY) -> list[Payload]:
    rng = np.random.default_rng(0)
    made = []
    for number, num_tokens in enumerate(TOKENS):
        mask = rng.random(num_tokens) < 0.6
        mask[0], mask[-1] = number == 1, True
        made.append(Payload(rng.integers(0, vocabulary, num_tokens).astype(np.int32), mask))
    return made


def tempered(rows: list[Payload]) -> list[Payload]:
    """The same, each second one with a temperature of its own for each trained token."""
    rng = np.random.default_rng(1)
    found = []
    for number, row in enumerate(rows):
        values = rng.uniform(0.3, 3, row.num_trained).astype(np.float32)
        found.append(replace(row, temperatures=None if number % 2 else values))
    return found


def plainly(model: Any, rows: list[Payload]) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probability, entropy and hit of each trained token, sequence by sequence, from whole logits."""
    found = []
    for row in rows:
        tokens = torch.from_numpy(row.token_ids).long()
        temperatures = torch.full((len(tokens), 1), TEMPERATURE, dtype=torch.float64)
        if row.temperatures is not None:  # of a token that is predicted from the place before it
            temperatures[np.flatnonzero(row.action_mask) - 1, 0] = torch.from_numpy(row.temperatures).double()
        logits = model(input_ids=tokens[None]).logits[0]
        log_p = (logits / temperatures.to(logits.dtype)).log_softmax(-1)[:-1]
        log_p, targets = log_p[row.action_mask[1:]], tokens[1:][row.action_mask[1:]]
        chosen = log_p.gather(1, targets[:, None])[:, 0]
        found.append((chosen, -(log_p.exp() * log_p).sum(-1), log_p.argmax(-1) == targets))
    logprobs, entropy, hits = (torch.cat(values) for values in zip(*found, strict=True))
    return logprobs, entropy, hits


def gradient(model: Any, logprobs: Tensor, entropy: Tensor | None = None) -> Tensor:
    """Of a sum that weighs each token differently."""
    weights = torch.linspace(-1, 2, len(logprobs), dtype=logprobs.dtype)
    total = (weights * logprobs).sum()
    if entropy is not None:
        total = total + (weights.flip(0) * entropy).sum()
    model.zero_grad()
    torch.autograd.backward(total)
    return torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])


@pytest.mark.parametrize(
    ("name", "has_temperatures"),
    [
        *((name, False) for name in MODELS),
        ("a head with bias", True),
        ("soft-capped", True),
    ],
)
def test_values_and_gradients_are_those_of_the_models_whole_logits(
    name: str, has_temperatures: bool, tmp_path: Path
) -> None:
    make, packs, is_plain = MODELS[name]
    model = make(tmp_path)
    rows = payloads(model.config.vocab_size)
    rows = tempered(rows) if has_temperatures else rows
    logprobs, entropy, hits = plainly(model, rows)
    expected = gradient(model, logprobs, entropy), gradient(model, plainly(model, rows)[0])
    # Models compute some of their parts in float32, whatever their weights are, and round there.
    rtol, atol = (1e-6, 1e-7) if packs else (1e-5, 2e-5)
    forward = Forward(model, TrainerConfig(), temperature=TEMPERATURE)
    assert (forward.layout == "packed", forward._plain) == (packs, is_plain)
    scored = forward(rows, entropy_gradient=True)
    torch.testing.assert_close(scored.logprobs[scored.mask], logprobs, rtol=rtol, atol=atol)
    torch.testing.assert_close(scored.entropy[scored.mask], entropy, rtol=rtol, atol=atol)
    assert torch.equal(scored.correct[scored.mask], hits)
    assert not scored.logprobs[~scored.mask].any()
    both = gradient(model, scored.logprobs[scored.mask], scored.entropy[scored.mask])
    torch.testing.assert_close(both, expected[0], rtol=rtol, atol=atol)
    scored = forward(rows)
    torch.testing.assert_close(scored.entropy[scored.mask].detach(), entropy, rtol=rtol, atol=atol)
    torch.testing.assert_close(
        gradient(model, scored.logprobs[scored.mask]), expected[1], rtol=rtol, atol=atol
    )
    torch.testing.assert_close(forward.logprobs(rows), scored.logprobs.detach(), rtol=rtol, atol=atol)
    assert not forward.logprobs(rows).requires_grad


@pytest.mark.parametrize("name", MODELS)
def test_values_are_read_off_the_states_that_predict_the_trained_tokens(name: str, tmp_path: Path) -> None:
    make, packs, _ = MODELS[name]
    model = make(tmp_path)
    rows = payloads(model.config.vocab_size)
    value_head = ValueHead(model.config.hidden_size).double()
    torch.nn.init.normal_(value_head.weight, generator=torch.Generator().manual_seed(0))
    torch.nn.init.constant_(value_head.bias, 0.5)
    found = []
    for row in rows:
        tokens = torch.from_numpy(row.token_ids).long()[None]
        states = model(input_ids=tokens, output_hidden_states=True).hidden_states[-1][0, :-1]
        found.append(states[row.action_mask[1:]] @ value_head.weight[0] + value_head.bias)
    expected = torch.cat(found)
    expected_gradient = gradient(model, plainly(model, rows)[0], expected)
    rtol, atol = (1e-6, 1e-7) if packs else (1e-5, 2e-5)
    forward = Forward(model, TrainerConfig(), temperature=TEMPERATURE, value_head=value_head)
    scored = forward(rows)
    assert scored.values is not None
    torch.testing.assert_close(scored.values[scored.mask], expected, rtol=rtol, atol=atol)
    assert not scored.values[~scored.mask].any()
    both = gradient(model, scored.logprobs[scored.mask], scored.values[scored.mask])
    largest = float(expected_gradient.abs().max())
    torch.testing.assert_close(both, expected_gradient, rtol=rtol, atol=rtol * largest)
    alone = forward.values(rows)
    assert not alone.requires_grad
    torch.testing.assert_close(alone, scored.values.detach(), rtol=rtol, atol=atol)


def test_values_need_no_logits_and_without_a_head_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = of("Llama"), payloads()
    assert Forward(model, TrainerConfig())(rows).values is None
    forward = Forward(model, TrainerConfig(), value_head=ValueHead(32).double())
    monkeypatch.setattr(model.lm_head, "forward", None)
    monkeypatch.setattr(chunked_logprobs, "from_logits", None)
    assert forward.values(rows).shape == trained_mask(rows).shape


def test_values_are_float32_where_the_model_computes_in_bfloat16() -> None:
    model, rows = of("Qwen2", initializer_range=0.05).float(), payloads()
    one = ValueHead(32)
    torch.nn.init.normal_(one.weight, generator=torch.Generator().manual_seed(0))
    exact = Forward(model, TrainerConfig(), value_head=one).values(rows)
    found = Forward(model, TrainerConfig(dtype="bfloat16"), value_head=one).values(rows)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact, atol=0.3, rtol=0)
    assert not torch.equal(found, exact)


def test_without_a_bonus_entropy_has_no_gradient() -> None:
    scored = Forward(of("Llama"), TrainerConfig())(payloads())
    assert scored.logprobs.requires_grad
    weights = torch.where(scored.mask, 1.0, 0.0)
    alone, with_entropy = (
        torch.autograd.grad((total * weights).sum(), scored.logprobs, retain_graph=True)[0]
        for total in (scored.logprobs, scored.logprobs + scored.entropy)
    )
    assert torch.equal(alone, with_entropy)


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The most elements that anything computed had."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **kwargs or {})
        sizes = [leaf.numel() for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]
        self.elements = max(self.elements, *sizes, 0)
        return found


def test_logits_of_all_tokens_never_exist_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = of("Llama", vocab_size=997)
    monkeypatch.setattr(chunked_logprobs, "CPU_PART_BYTES", 7 * 4 * 997)
    forward, rows = Forward(model, TrainerConfig()), payloads()
    with Largest() as largest:  # type: ignore[no-untyped-call]
        torch.autograd.backward(forward(rows).logprobs.sum())
    assert largest.elements == 32 * 997  # the head's own weight
    assert trained_mask(rows).sum() > 34


def test_layers_that_are_computed_again_change_nothing_but_how_often() -> None:
    model, rows = of("Qwen2"), payloads()
    calls: list[int] = []
    layer = model.model.layers[0].mlp
    layer.register_forward_pre_hook(lambda *_: calls.append(1))
    expected = gradient(
        model, Forward(model, TrainerConfig())(rows).logprobs[torch.from_numpy(trained_mask(rows))]
    )
    calls.clear()
    recompute(model)
    scored = Forward(model, TrainerConfig())(rows)
    before = len(calls)
    found = gradient(model, scored.logprobs[scored.mask])
    torch.testing.assert_close(found, expected)
    assert len(calls) == before + 1


def test_a_model_that_cannot_compute_its_layers_again_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.modeling_layers.GradientCheckpointingLayer", transformers.Trainer)
    with pytest.raises(ConfigError, match=r"trainer.gradient_checkpointing: Qwen2ForCausalLM cannot"):
        recompute(of("Qwen2"))


@pytest.mark.parametrize(("dtype", "limit"), [("bfloat16", 0.05), ("float16", 0.006)])
@pytest.mark.parametrize("kind", ["Qwen2", "Granite", "Bloom"])
def test_16_bits_are_near_and_their_results_and_gradients_are_float32(
    kind: str, dtype: Literal["bfloat16", "float16"], limit: float
) -> None:
    model = of(kind, initializer_range=0.05).float()
    logprobs, entropy, _ = plainly(model, payloads())
    expected = gradient(model, logprobs)
    scored = Forward(model, TrainerConfig(dtype=dtype), temperature=TEMPERATURE)(payloads())
    found = scored.logprobs[scored.mask]
    assert found.dtype == scored.entropy.dtype == torch.float32
    torch.testing.assert_close(found, logprobs, atol=limit, rtol=0)
    torch.testing.assert_close(scored.entropy[scored.mask].detach(), entropy, atol=limit, rtol=0)
    assert not torch.equal(found, logprobs)
    changed = gradient(model, found)
    assert torch.nn.functional.cosine_similarity(changed, expected, dim=0) > 0.999


def linear_layers(model: Any) -> list[torch.nn.Linear]:
    return [module for module in model.modules() if isinstance(module, torch.nn.Linear)]


@pytest.mark.parametrize("kind", ["Qwen2", "Granite", "Phi"])
def test_a_frozen_model_whose_products_are_stored_in_bfloat16_gives_the_same_bits(kind: str) -> None:
    model = of(kind, tie_word_embeddings=False).float().requires_grad_(False)
    config = TrainerConfig(dtype="bfloat16")
    before = Forward(model, config, temperature=TEMPERATURE).logprobs(payloads())
    forward = Forward(model, config, temperature=TEMPERATURE, frozen=True)
    assert all(layer.weight.dtype == torch.bfloat16 for layer in linear_layers(model))
    assert model.get_input_embeddings().weight.dtype == torch.float32
    assert torch.equal(forward.logprobs(payloads()), before)


def test_a_model_that_cannot_pack_keeps_its_own_attention(caplog: pytest.LogCaptureFixture) -> None:
    model = of("Gemma2", head_dim=8)
    before = model.config._attn_implementation
    Forward(model, TrainerConfig())
    assert model.config._attn_implementation == before
    assert "Gemma2ForCausalLM cannot take sequences end to end" in caplog.text


class Sized(torch.nn.Module):
    """Adds to each embedding how long the rows of the call are, as a model whose positions depend on it."""

    def __init__(self, embedding: Any) -> None:
        super().__init__()
        self.embedding = embedding
        self.num_embeddings = embedding.num_embeddings

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.embedding(tokens)
        return found + tokens.shape[1] / 10


def test_a_model_whose_results_depend_on_the_length_of_the_call_gets_one_for_each_sequence() -> None:
    model, rows = of("Qwen2", tie_word_embeddings=False), payloads()
    model.set_input_embeddings(Sized(model.get_input_embeddings()))
    logprobs, entropy, hits = plainly(model, rows)
    expected = gradient(model, logprobs, entropy)
    forward = Forward(model, TrainerConfig(), temperature=TEMPERATURE, value_head=ValueHead(32).double())
    assert forward.layout == "alone"
    scored = forward(rows, entropy_gradient=True)
    torch.testing.assert_close(scored.logprobs[scored.mask], logprobs)
    assert torch.equal(scored.correct[scored.mask], hits)
    found = gradient(model, scored.logprobs[scored.mask], scored.entropy[scored.mask])
    torch.testing.assert_close(found, expected)
    assert forward.values(rows).shape == scored.mask.shape
    # Sharded ranks call the model together, so each micro-batch has equally many calls.
    assert forward.micro_batches(rows[:4], width=2) == [[2, 3], [0, 1]]


def test_a_model_whose_tokens_see_those_after_them_is_refused() -> None:
    sizes = {name: size for name, size in SIZES.items() if name != "num_key_value_heads"}
    model = transformers.BertLMHeadModel(transformers.BertConfig(**sizes)).eval()
    with pytest.raises(ConfigError, match=r"BertLMHeadModel lets tokens attend to later ones; take a causal"):
        Forward(model, TrainerConfig())


def test_a_model_that_packs_is_saved_as_any_other(tmp_path: Path) -> None:
    model = scratch(tmp_path / "before")
    Forward(model, TrainerConfig())
    model.save_pretrained(tmp_path / "after")
    assert load_model(tmp_path / "after", "cpu").config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    ("kind", "tokens", "sequences", "expected"),
    [
        ("Llama", 100, 32, [[3, 1, 2, 0, 4]]),
        ("Llama", 47, 32, [[3, 1], [2, 0, 4]]),
        ("Llama", 100, 2, [[3, 1], [2, 0], [4]]),
        ("Llama", 1, 32, [[3], [1], [2], [0], [4]]),
        ("Bloom", 60, 32, [[3, 1], [2, 0, 4]]),  # padded to 30 + 30, and to 9 + 9 + 9
        ("Bloom", 59, 32, [[3], [1, 2, 0], [4]]),
    ],
)
def test_micro_batches_hold_so_many_tokens_and_sequences(
    kind: str, tokens: int, sequences: int, expected: list[list[int]]
) -> None:
    config = TrainerConfig(micro_batch_tokens=tokens, micro_batch_size=sequences)
    assert Forward(of(kind), config).micro_batches(payloads()) == expected


def test_micro_batches_never_part_a_pair() -> None:
    rows = payloads()[:4]  # 5 and 17 tokens, 9 and 30
    for tokens, expected in ((61, [[2, 3, 0, 1]]), (60, [[2, 3], [0, 1]]), (1, [[2, 3], [0, 1]])):
        config = TrainerConfig(micro_batch_tokens=tokens)
        assert Forward(of("Llama"), config).micro_batches(rows, width=2) == expected


def test_stored_values_stand_where_their_tokens_scores_stand() -> None:
    first = Payload(
        np.arange(4, dtype=np.int32),
        np.array([True, False, True, True]),
        np.array([-1.0, -2.0, -3.0], np.float32),
        np.array([1, 2, 3], np.int32),
    )
    other = Payload(np.arange(3, dtype=np.int32), np.array([False, True, False]))
    assert trained_mask([first, other]).tolist() == [[True, True], [True, False]]
    assert trained_values([first, other], "logprobs").tolist() == [[-2, -3], [0, 0]]
    assert trained_values([first, other], "versions").tolist() == [[2, 3], [0, 0]]


def test_a_model_says_what_it_computes_with() -> None:
    assert (
        str(Forward(of("Qwen2"), TrainerConfig()).computing) == "cpu, float64, rows packed, attention plain"
    )
    found = Forward(of("Gemma2", head_dim=8), TrainerConfig(dtype="bfloat16")).computing
    assert (found.dtype, found.layout, found.attention) == ("bfloat16", "padded", ("eager",))
