"""Of a model that sees as well, the language model is trained, and versions have all of its weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from tests.support.recipes import recipe
from tests.support.saving import save
from trinity_db.arrays.codec import Payload
from trinity_db.config.base import validate
from trinity_db.models import load_model, load_tokenizer
from trinity_db.models.lazy_weights import UnreadModel
from trinity_db.models.scratch import scratch_tokenizer
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner

TEXT = {
    "vocab_size": 20,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "head_dim": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "initializer_range": 0.2,
    "pad_token_id": 11,
    "bos_token_id": None,
    "eos_token_id": 10,
}
VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": 16,
    "num_position_embeddings": 16,
    "patch_size": 4,
}
PLACES = {f"{name}_token_id": 16 + place for place, name in enumerate(("image", "video", "vision_start"))}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sees")
    torch.manual_seed(0)
    config = transformers.Qwen3_5Config(
        text_config=TEXT, vision_config=VISION, vision_end_token_id=19, **PLACES
    )
    transformers.Qwen3_5ForConditionalGeneration(config).save_pretrained(folder)
    scratch_tokenizer("0123456789", 32).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_a_version_has_the_weights_that_see_as_they_were(start: Path, tmp_path: Path, lora: Any) -> None:
    config = validate(TrainerConfig, {"learning_rate": 1e-2, "weight_decay": 0.1, "lora": lora}, "run.yaml")
    learner = Learner(config, recipe("sft"), start, total_steps=3, device="cpu")
    rows = [Payload(np.arange(length, dtype=np.int32) % 10, np.arange(length) > 2) for length in (6, 9)]
    learner.step(Batch(rows))
    save(tmp_path / "v1", learner, load_tokenizer(start))
    before, after = (load_file(folder / "model.safetensors") for folder in (start, tmp_path / "v1"))
    assert before.keys() == after.keys()
    changed = {name for name, weight in after.items() if not torch.equal(weight, before[name])}
    assert any("language_model" in name for name in changed)
    assert not any("visual" in name for name in changed)
    again = load_model(tmp_path / "v1", "cpu")
    assert type(again) is transformers.Qwen3_5ForConditionalGeneration
    with torch.no_grad():
        tokens = torch.arange(8)[None]
        torch.testing.assert_close(
            again(input_ids=tokens).logits, learner.policy.model(input_ids=tokens).logits, atol=1e-5, rtol=0
        )


def test_ranks_that_share_the_weights_leave_those_that_see_as_they_are_too(start: Path) -> None:
    unread = UnreadModel(start)
    assert type(unread.model) is transformers.Qwen3_5ForConditionalGeneration
    assert not unread.is_whole
    trained = {name for name, weight in unread.model.named_parameters() if weight.requires_grad}
    assert trained
    assert not any("visual" in name for name in trained)
