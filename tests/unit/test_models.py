"""Small models are built the same from the same seed, and what is no model is refused."""

import json
import pickle
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.others.families import tiny
from trinity_db import models
from trinity_db.config.base import validate
from trinity_db.config.shared import ModelConfig, ScratchConfig
from trinity_db.errors import ConfigError, MissingExtra
from trinity_db.models import computing_dtype
from trinity_db.models.chat.prompts import UntokenizableText, prompt_ids
from trinity_db.models.embedding import EmbeddingModel
from trinity_db.models.reward_model import check_reward_model

SMALL = ScratchConfig(alphabet="0123 >\n", hidden_size=16, layers=1, heads=2, context=24)


def test_the_same_seed_builds_the_same_files(tmp_path: Path) -> None:
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        models.build_scratch(SMALL, seed, tmp_path / folder)
    files = {path.name for path in (tmp_path / "a").iterdir()}
    assert files >= {"config.json", "model.safetensors", "tokenizer.json"}
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    weights = [(tmp_path / folder / "model.safetensors").read_bytes() for folder in "ac"]
    assert weights[0] != weights[1]


def test_an_alphabet_gives_one_token_per_character_and_no_other_character(tmp_path: Path) -> None:
    models.build_scratch(SMALL, 0, tmp_path)
    tokenizer = models.load_tokenizer(tmp_path)
    ids = prompt_ids("01 3>\n", tokenizer)
    assert len(ids) == 6
    assert tokenizer.decode(ids) == "01 3>\n"
    for text in ("014", "é"):
        with pytest.raises(UntokenizableText, match="cannot encode"):
            prompt_ids(text, tokenizer)


def test_bytes_spell_every_text(tmp_path: Path) -> None:
    models.build_scratch(ScratchConfig(hidden_size=16, layers=1, heads=2), 0, tmp_path)
    tokenizer = models.load_tokenizer(tmp_path)
    text = "#### 42\n\tdon't, 世界 🙂"
    ids = prompt_ids(text, tokenizer)
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text
    assert models.load_model(tmp_path).config.vocab_size == len(tokenizer) == 258


def test_the_model_has_the_asked_shape(tmp_path: Path) -> None:
    models.build_scratch(SMALL, 0, tmp_path)
    config = models.load_model(tmp_path, "cpu").config
    assert config.model_type == "qwen2"
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (16, 1, 2)
    assert (config.intermediate_size, config.max_position_embeddings) == (48, 24)
    assert config.tie_word_embeddings


@pytest.mark.parametrize("alphabet", ["01=", None])
@pytest.mark.parametrize("intermediate_size", [5, None])
def test_the_parameters_of_a_scratch_model_are_counted_before_it_is_built(
    tmp_path: Path, alphabet: str | None, intermediate_size: int | None
) -> None:
    config = ScratchConfig(
        alphabet=alphabet, hidden_size=16, layers=3, heads=2, intermediate_size=intermediate_size
    )
    models.build_scratch(config, 0, tmp_path)
    built = sum(weight.numel() for weight in models.load_model(tmp_path, "cpu").parameters())
    assert config.num_parameters == built


@pytest.mark.parametrize(
    "dimensions",
    [
        {"hidden_size": 16_384, "layers": 1},
        {"hidden_size": 4096, "layers": 1000},
        {"intermediate_size": 131_072, "layers": 1000},
        {"hidden_size": 8192, "layers": 1, "intermediate_size": 131_072},
    ],
)
def test_a_scratch_model_that_no_memory_holds_is_refused_before_it_is_built(
    dimensions: dict[str, int],
) -> None:
    with pytest.raises(ConfigError, match=r"scratch: .*parameters") as caught:
        validate(ModelConfig, {"scratch": dimensions}, "run.yaml")
    said = str(caught.value)
    assert all(key in said for key in ("hidden_size", "layers", "intermediate_size"))
    assert "at most 1,000,000,000 are built" in said
    assert len(said.splitlines()) == 1


def test_a_folder_without_a_model_is_named_in_one_line(tmp_path: Path) -> None:
    models.build_scratch(SMALL, 0, tmp_path / "cut")
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    for folder, message in (
        ("none", "no such model folder"),
        ("empty", "has no config.json"),
        ("odd", "is not a causal language model"),
        ("cut", "is not a causal language model"),
    ):
        with pytest.raises(ConfigError, match=message) as caught:
            models.load_model(tmp_path / folder)
        assert str(tmp_path / folder) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_missing_library_names_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"torch.*trinity-db\[train\]"):
        models.load_model(tmp_path)


def test_a_model_that_sees_as_well_takes_as_many_tokens_as_its_language_model(tmp_path: Path) -> None:
    import transformers

    config = transformers.Gemma3Config(text_config={"max_position_embeddings": 24})
    assert not hasattr(config, "max_position_embeddings")
    config.save_pretrained(tmp_path)
    assert models.context_length(tmp_path) == 24


def test_a_model_that_does_not_say_how_many_tokens_it_takes_is_told_where_to(tmp_path: Path) -> None:
    import transformers

    transformers.BloomConfig().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"add max_position_embeddings there, with what this bloom takes"):
        models.context_length(tmp_path)
    transformers.BloomConfig(max_position_embeddings=24).save_pretrained(tmp_path)
    assert models.context_length(tmp_path) == 24


def test_a_context_ends_where_a_token_would_depend_on_how_many_follow(tmp_path: Path) -> None:
    import transformers

    rope = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "rope_type": "longrope", "rope_theta": 1e4}
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "max_position_embeddings": 64, "pad_token_id": 0}
    config = transformers.Phi3Config(
        **sizes, original_max_position_embeddings=32, rope_parameters=rope | {"factor": 2.0}
    )
    config.save_pretrained(tmp_path)
    assert models.context_length(tmp_path) == 32
    transformers.DeepseekV32Config(max_position_embeddings=64, index_topk=16).save_pretrained(tmp_path)
    assert models.context_length(tmp_path) == 16


@pytest.mark.parametrize(
    ("name", "device", "has_it", "expected"),
    [
        ("auto", "cpu", True, torch.float32),
        ("auto", "cuda", True, torch.bfloat16),
        ("auto", "cuda", False, torch.float32),
        ("bfloat16", "cpu", False, torch.bfloat16),
        ("float32", "cuda:1", True, torch.float32),
    ],
)
def test_bfloat16_is_chosen_where_a_gpu_computes_in_it(
    name: str, device: str, has_it: bool, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_it)
    assert computing_dtype(name, device) == expected


def test_families_that_cannot_be_a_policy_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    config, model = tmp_path / "config.json", ModelConfig(path=tmp_path)
    config.write_text('{"model_type": "bert"}')
    with pytest.raises(ConfigError, match="bert is an encoder, whose tokens attend to later ones"):
        models.check_source(model)
    config.write_text('{"model_type": "bert", "is_decoder": true}')
    models.check_source(model, is_decoded=True)
    config.write_text('{"model_type": "minimax"}')
    models.check_source(model)
    with pytest.raises(ConfigError, match=r"does not sample correctly from minimax.*another engine"):
        models.check_source(model, is_decoded=True)


def test_the_row_of_the_padding_token_is_read_as_it_is_in_the_file(tmp_path: Path) -> None:
    tiny.save("youtu", tmp_path)
    model = tiny.build("youtu")
    with torch.no_grad():
        model.get_input_embeddings().weight[0] = 3.0
    model.save_pretrained(tmp_path)
    embeddings = models.load_model(tmp_path, "cpu").get_input_embeddings()
    assert torch.equal(embeddings.weight, model.get_input_embeddings().weight)
    assert embeddings.padding_idx == 0


TRAP = """
from pathlib import Path
from transformers import LlamaForCausalLM, PretrainedConfig, PreTrainedTokenizerFast
Path(__file__).with_name("ran").touch()
class Config(PretrainedConfig):
    model_type = "unknown"
class Model(LlamaForCausalLM):
    config_class = Config
class Tokenizer(PreTrainedTokenizerFast):
    pass
"""


def test_code_in_the_folder_of_a_model_is_not_run_and_nobody_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def agree(text: str) -> str:
        asked.append(text)
        return "y"

    monkeypatch.setattr("builtins.input", agree)
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "model"
    models.build_scratch(
        ScratchConfig(alphabet="01", hidden_size=16, layers=1, heads=2, context=16), 0, folder
    )
    (folder / "trap.py").write_text(TRAP)
    own = {"AutoConfig": "trap.Config", "AutoModel": "trap.Model", "AutoModelForCausalLM": "trap.Model"}
    for name, changed in (
        ("config.json", {"model_type": "unknown", "auto_map": own}),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": [None, "trap.Tokenizer"]}}),
    ):
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_bytes()) | changed))
    for load in (models.load_model, models.context_length, EmbeddingModel, check_reward_model):
        with pytest.raises(ConfigError, match=r"custom code"):
            load(folder)
    with suppress(ConfigError):  # a tokenizer is also read without its class
        models.load_tokenizer(folder)
    assert asked == []
    assert list(tmp_path.rglob("ran")) == []


class Trap:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def test_pickled_weights_run_nothing(tmp_path: Path) -> None:
    folder = scratch_in(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    for content in (pickle.dumps({"weight": Trap(tmp_path / "ran")}, protocol=2), None):
        if content is None:
            torch.save({"weight": Trap(tmp_path / "ran")}, folder / "pytorch_model.bin")
        else:
            (folder / "pytorch_model.bin").write_bytes(content)
        with pytest.raises(ConfigError, match="is not a causal language model: Weights only load failed"):
            models.load_model(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "changed",
    [
        {"quantization_config": {"quant_method": "quanto"}},
        {"attn_implementation": "owner/kernel"},
        {"model_type": ["llama"]},
        {"num_hidden_layers": 3},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_configuration_that_transformers_cannot_follow_is_told_in_one_line(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    folder = scratch_in(tmp_path / "model")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | changed))
    with pytest.raises(ConfigError, match=r"model: is not a causal language model: .") as refused:
        models.load_model(folder, "cpu")
    assert "\n" not in str(refused.value)


def scratch_in(folder: Path) -> Path:
    models.build_scratch(
        ScratchConfig(alphabet="01", hidden_size=16, layers=1, heads=2, context=16), 0, folder
    )
    return folder
