"""A model that is read module by module is the model that is read at once."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from trinity_db.config.shared import ScratchConfig
from trinity_db.errors import ConfigError
from trinity_db.models import build_scratch, load_model
from trinity_db.models.layers import layers_of
from trinity_db.models.lazy_weights import UnreadModel

TINY = ScratchConfig(alphabet="0123456789", hidden_size=16, heads=2, context=32)
SIZES = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 12}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build_scratch(TINY, 0, tmp_path / "model")
    return tmp_path / "model"


def read(unread: UnreadModel) -> Any:
    """All of it, its layers first."""
    for layer in layers_of(unread.model):
        unread.read(layer, "cpu")
    unread.read(unread.model, "cpu")
    return unread.model


def assert_same(found: Any, expected: Any) -> None:
    """The same weights, buffers, settings, and results."""
    mine, theirs = found.state_dict(), expected.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], weight) for name, weight in theirs.items())
    assert found.config.to_dict() == expected.config.to_dict()
    assert found.generation_config.to_dict() == expected.generation_config.to_dict()
    tokens = torch.arange(10)[None]
    with torch.no_grad():
        assert torch.equal(found(input_ids=tokens).logits, expected(input_ids=tokens).logits)


def test_what_is_read_layer_by_layer_is_the_model_and_takes_no_memory_before(folder: Path) -> None:
    unread = UnreadModel(folder)
    assert not unread.is_whole
    assert {one.untyped_storage().nbytes() for one in unread.model.parameters()} == {4}
    assert_same(read(unread), load_model(folder, "cpu"))
    assert unread.model.lm_head.weight is unread.model.model.embed_tokens.weight


def test_several_files_are_read_through_their_index(folder: Path) -> None:
    whole = load_model(folder, "cpu")
    (folder / "model.safetensors").unlink()
    whole.save_pretrained(folder, max_shard_size="10KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    unread = UnreadModel(folder)
    assert not unread.is_whole
    assert_same(read(unread), whole)


def test_experts_that_lie_apart_are_read_layer_by_layer_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(
        **SIZES, num_hidden_layers=2, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8
    )
    transformers.Qwen3MoeForCausalLM(config).save_pretrained(tmp_path)  # each expert apart
    unread = UnreadModel(tmp_path)
    assert not unread.is_whole
    assert_same(read(unread), load_model(tmp_path, "cpu"))
    unread.model.save_pretrained(tmp_path / "again")
    names = load_file(tmp_path / "model.safetensors").keys()
    assert load_file(tmp_path / "again" / "model.safetensors").keys() == names


def test_a_weight_of_another_shape_is_said(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 24}))
    with pytest.raises(ConfigError, match=r"mlp.*weight has the shape .* by config.json"):
        read(UnreadModel(folder))
    with pytest.raises(ConfigError, match="no such model folder"):
        UnreadModel(folder / "nowhere")
