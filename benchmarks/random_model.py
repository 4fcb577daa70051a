"""Models with random weights and realistic sizes, with a tokenizer because peers require one."""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from trinity_db.config.shared import ScratchConfig
from trinity_db.models import build_scratch


@dataclass(frozen=True)
class Size:
    """Dimensions of a Qwen2."""

    vocabulary: int
    width: int
    feed_forward: int
    layers: int
    heads: int
    key_value_heads: int
    tied: bool = True
    """Whether the output layer shares the weights of the input."""


TINY = Size(1000, 64, 176, 2, 2, 1)
TEN_MILLION = Size(32_000, 256, 704, 4, 4, 2)
HALF_BILLION = Size(151_936, 896, 4864, 24, 14, 2)
"""Dimensions of Qwen2.5-0.5B."""
SEVEN_BILLION = Size(152_064, 3584, 18_944, 28, 28, 4, tied=False)
"""Dimensions of Qwen2.5-7B."""


def build(folder: Path, size: Size, device: str = "cpu", dtype: str = "float32") -> int:
    """Write the model. Returns its number of parameters."""
    build_scratch(ScratchConfig(hidden_size=16, heads=1, layers=1), 0, folder)  # for its tokenizer
    torch.manual_seed(0)
    settings = Qwen2Config(
        vocab_size=size.vocabulary,
        hidden_size=size.width,
        intermediate_size=size.feed_forward,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_value_heads,
        max_position_embeddings=2048,
        tie_word_embeddings=size.tied,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
    )
    with torch.device(device):
        model = Qwen2ForCausalLM(settings).to(getattr(torch, dtype))
    for leftover in folder.glob("*.safetensors"):
        leftover.unlink()
    model.save_pretrained(folder)
    return int(sum(parameter.numel() for parameter in model.parameters()))
