"""Which families of models are refused before a run has a name, by the `model_type` of their config.json.

Trials at the start of trainer and engine refuse others of the kind, which are not known here (`layout.py` and
`explorer/engines/trial.py`). `make test-families` tries each family that transformers knows.
"""

import json
from pathlib import Path

from trinity_db.errors import ConfigError

ENCODERS = {
    *("bert", "bert-generation", "big_bird", "camembert", "cpmant", "data2vec-text", "electra", "ernie"),
    *("megatron-bert", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm"),
    *("xlm-roberta", "xlm-roberta-xl", "xlnet", "xmod"),
}
"""Their tokens see those after them, unless `is_decoder` says otherwise."""
NOT_DECODED = {
    *("falcon_mamba", "mamba", "mamba2", "minimax", "rwkv", "xlstm"),  # caches of another kind
    "deepseek_v4",  # prompts that are shorter than a compressed block lose their first tokens
    "openai-gpt",  # no cache
    "recurrent_gemma",  # beyond its window, rows of other lengths beside a row change it
}
"""Families that the engine `transformers` does not sample from."""

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""The names by which a config.json says how many experts a mixture has."""


def check_experts(folder: Path) -> None:
    """Refuse a model that is no mixture of experts.

    Raises:
        ConfigError: it has no routers, whose choice could be recorded.
    """
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except ValueError:  # loading it says what is wrong
        return
    parts = [config, *(part for part in config.values() if isinstance(part, dict))]
    if not any(part.get(name) for part in parts for name in EXPERTS):
        raise ConfigError(
            f"explorer.record_routing: {folder}: {config.get('model_type')} is no mixture of experts; "
            "leave it out."
        )


def check_family(folder: Path, is_decoded: bool) -> None:
    """Refuse the model in a folder by its family.

    Args:
        is_decoded: whether the engine `transformers` is to sample from it.

    Raises:
        ConfigError: it cannot be a policy, or not with this engine.
    """
    try:
        config = json.loads((folder / "config.json").read_bytes())
        family = config.get("model_type")
    except (ValueError, AttributeError):  # loading it says what is wrong
        return
    if family in ENCODERS and not config.get("is_decoder"):
        raise ConfigError(
            f"{folder}: {family} is an encoder, whose tokens see those after them; "
            "take a causal language model."
        )
    if is_decoded and family in NOT_DECODED:
        raise ConfigError(
            f"{folder}: transformers does not sample rightly from {family}, several rows at a time; name "
            "another engine, as in explorer: {engine: vllm}."
        )
