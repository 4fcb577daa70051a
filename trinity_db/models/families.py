"""Refuses unsuitable model families by the `model_type` in config.json, before the run is created.

Trials at the start of trainer and engine refuse unsuitable models of families not listed here (`layout.py`
and `explorer/engines/trial.py`). `make test-families` tests every family of transformers.
"""

import json
from pathlib import Path

from trinity_db.errors import ConfigError

ENCODERS = {
    *("bert", "bert-generation", "big_bird", "camembert", "cpmant", "data2vec-text", "electra", "ernie"),
    *("megatron-bert", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm"),
    *("xlm-roberta", "xlm-roberta-xl", "xlnet", "xmod"),
}
"""Encoders, whose tokens attend to later ones unless `is_decoder` is set."""
NOT_DECODED = {
    *("falcon_mamba", "mamba", "mamba2", "minimax", "rwkv", "xlstm"),  # other kinds of caches
    "deepseek_v4",  # prompts shorter than a compressed block lose their first tokens
    "openai-gpt",  # no cache
    "recurrent_gemma",  # beyond its window, results depend on the other rows of a batch
}
"""Families that the engine `transformers` cannot sample from."""

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Keys of config.json for the number of experts."""


def check_experts(folder: Path) -> None:
    """Refuse a model that is not a mixture of experts.

    Raises:
        ConfigError: if it has no routers whose choices could be recorded.
    """
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except ValueError:  # loading it reports the cause
        return
    parts = [config, *(part for part in config.values() if isinstance(part, dict))]
    if not any(part.get(name) for part in parts for name in EXPERTS):
        raise ConfigError(
            f"explorer.record_routing: {folder}: {config.get('model_type')} is not a mixture of experts; "
            "leave it out."
        )


def check_family(folder: Path, is_decoded: bool) -> None:
    """Refuse the model in a folder if its family is unsuitable.

    Args:
        is_decoded: whether the engine `transformers` samples from it.

    Raises:
        ConfigError: if it cannot be a policy, or not with this engine.
    """
    try:
        config = json.loads((folder / "config.json").read_bytes())
        family = config.get("model_type")
    except (ValueError, AttributeError):  # loading it reports the cause
        return
    if family in ENCODERS and not config.get("is_decoder"):
        raise ConfigError(
            f"{folder}: {family} is an encoder, whose tokens attend to later ones; "
            "take a causal language model."
        )
    if is_decoded and family in NOT_DECODED:
        raise ConfigError(
            f"{folder}: transformers does not sample correctly from {family} with several rows at a time; "
            f"name "
            "another engine, for example explorer: {engine: vllm}."
        )
