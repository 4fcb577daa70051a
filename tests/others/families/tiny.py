"""A tiny model with random weights of each family that transformers knows as a causal language model."""

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from trinity_db.models import context_of
from trinity_db.models.families import ENCODERS
from trinity_db.models.scratch import scratch_tokenizer

VOCABULARY, CONTEXT, WINDOW = 61, 64, 8
KNOWN = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)

SIZES: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "ngram_vocab_size_base"), VOCABULARY),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "lru_width", "dim_model"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "dff", "dim_ff"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks"), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), CONTEXT),
    **dict.fromkeys(("initializer_range", "init_std"), 0.2),  # so that attention and logits matter
    **dict.fromkeys(
        ("moe_intermediate_size", "shared_expert_intermediate_size", "ffn_intermediate_size"), 16
    ),
    **dict.fromkeys(("moe_shared_expert_intermediate_size", "shared_intermediate_size"), 16),
    **dict.fromkeys(
        ("moe_ffn_hidden_size", "expert_ffn_hidden_size", "shared_experts_intermediate_size"), 16
    ),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_top_k", "moe_topk"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "moe_num_shared_experts"), 1),
    **dict.fromkeys(("first_k_dense_replace", "num_dense_layers"), 1),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "o_lora_rank", "qk_head_dim", "index_head_dim"), 16),
    **dict.fromkeys(("head_dim", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(
        ("sliding_window", "attention_chunk_size", "attention_window_size", "window_size"), WINDOW
    ),
    **dict.fromkeys(
        ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "mamba_d_head", "mamba_head_dim"), 8
    ),
    **dict.fromkeys(("mamba_d_state", "ssm_state_size", "state_size"), 8),
    **dict.fromkeys(("mamba_n_groups", "mamba_ngroups", "n_groups"), 1),
    **dict.fromkeys(("mamba_chunk_size", "chunk_size", "block_size"), 16),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "linear_head_dim"), 8),
    **dict.fromkeys(("linear_num_value_heads", "linear_num_heads"), 4),
    **dict.fromkeys(("hidden_size_per_layer_input", "laurel_rank", "index_topk"), 8),
    "intermediate_size_mlp": 48,
    "mamba_d_ssm": 64,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_dt_rank": 4,
    "linear_num_key_heads": 2,
    "index_n_heads": 2,
    "num_kv_shared_layers": 0,
    "use_mamba_kernels": False,
    "rotary_dim": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""What each family's configuration takes of these by its own names. Four layers, so that each kind occurs."""

_LATENT = {"num_key_value_heads": 4}  # heads are made of one compressed state, so none is shared
_WINDOWED = {"layer_types": ["sliding_attention", "full_attention"] * 2}
_LINEAR = {"layer_types": ["linear_attention", "full_attention"] * 2}
_CONVOLVED = {"layer_types": ["conv", "full_attention"] * 2}
OWN: dict[str, dict[str, Any]] = {
    "bailing_hybrid": _LINEAR,
    "bloom": {"max_position_embeddings": CONTEXT},
    "recurrent_gemma": {"max_position_embeddings": CONTEXT},
    "mpt": {"max_position_embeddings": CONTEXT},
    "bamba": {"attn_layer_indices": [1, 3]},
    "dots3_note_text": _LATENT,
    "gemma3_text": _WINDOWED,
    "gemma3n_text": _WINDOWED,
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": _LINEAR,
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": _LINEAR,
    "laguna": _WINDOWED,
    "lfm2": _CONVOLVED,
    "lfm2_moe": _CONVOLVED,
    "mellum": _WINDOWED,
    "qwen2": {"use_sliding_window": True, **_WINDOWED},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
}
"""Where the sizes alone would make a model without some kind of layer, or none."""

_HALF = "the decoder of an encoder-decoder, of an image or a sound"
_TEXT = "takes images or sounds too; its language model is a family of its own here"
_ALIAS = "another name of a family that is here"
_HELPER = "drafts tokens for another model"
_BUILD = "transformers does not build it so small, or not at all"
_STATE = "keeps a state alone: its configuration names no longest sequence, and it is not sampled from"
_NAMELESS = "its layers have numbers for names, by which no adapter is placed"
LEFT_OUT: dict[str, str] = {
    **dict.fromkeys(ENCODERS, "an encoder: its tokens see those after them"),
    **dict.fromkeys(("bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart"), _HALF),
    **dict.fromkeys(("mvp", "pegasus", "plbart", "prophetnet", "trocr", "whisper", "mllama", "git"), _HALF),
    **dict.fromkeys(("moshi", "musicgen", "musicgen_melody", "fuyu", "got_ocr2", "emu3"), _HALF),
    **dict.fromkeys(("moss_transcribe_diarize", "phi4_multimodal", "blt", "cohere_compass_text"), _HALF),
    **dict.fromkeys(("gemma3", "gemma3n", "gemma4", "gemma4_unified", "dots3_note", "llama4"), _TEXT),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe", "qwen4_exp"), _TEXT),
    **dict.fromkeys(("gpt-sw3", "internlm3", "iquestcoder"), _ALIAS),
    **dict.fromkeys(("gemma4_assistant", "gemma4_unified_assistant"), _HELPER),
    **dict.fromkeys(("dbrx", "qwen4_exp_text", "zamba", "reformer"), _BUILD),
    **dict.fromkeys(("mamba2", "falcon_mamba", "mamba", "rwkv", "xlstm"), _STATE),
    "ctrl": _NAMELESS,
}
"""Families without a row in the table, and why."""

FAMILIES = [name for name in KNOWN if name not in LEFT_OUT]


def build(family: str) -> Any:
    """A model of the family, in float32 and in evaluation mode."""
    kind = transformers.CONFIG_MAPPING[family]
    names = {name for one in kind.__mro__ for name in getattr(one, "__annotations__", ())}
    sizes = {name: size for name, size in SIZES.items() if name in names}
    config = kind(**sizes | (_LATENT if "kv_lora_rank" in names else {}) | OWN.get(family, {}))
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def save(family: str, folder: Path) -> int:
    """Write a model of the family with a tokenizer, and return the longest sequence that it takes."""
    model = build(family)
    model.save_pretrained(folder)
    scratch_tokenizer("".join(map(chr, range(48, 48 + VOCABULARY - 2))), CONTEXT).save_pretrained(folder)
    return context_of(model.config)
