"""Causal language models: load one, build a small one, and ask it about rows. Knows no role and no store.

libraries          torch and transformers, imported when they are needed
loading            models and tokenizers on disk
scratch            small models with random weights
forward            from payloads to what losses read of each trained token
attention          sequences end to end in one row
chunked_logprobs   log-probabilities without the logits of all tokens at once
layers             the layers of a model: recompute them, share their weights among ranks
frozen_model       a model that is only asked
"""

from trinity_db.models.libraries import check_libraries, default_device
from trinity_db.models.loading import (
    check_source,
    context_length,
    context_of,
    load_model,
    load_tokenizer,
    other_token,
    source_tokenizer,
)
from trinity_db.models.scratch import build_scratch

__all__ = [
    "build_scratch",
    "check_libraries",
    "check_source",
    "context_length",
    "context_of",
    "default_device",
    "load_model",
    "load_tokenizer",
    "other_token",
    "source_tokenizer",
]
