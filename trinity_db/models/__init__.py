"""Causal language models: load them, build small ones, and score rows. Imports no role and no store.

libraries          imports torch and transformers when they are needed
loading            loads models and tokenizers from disk
scratch            builds small models with random weights
forward            computes from payloads the columns of trained tokens that losses read
attention          lets sequences lie end to end in one row
chunked_logprobs   computes log-probabilities without the logits of all tokens at once
layers             recomputes layers in the backward pass, and shards their weights over ranks
frozen_model       scores rows with a model that is not trained
canary             keeps beside weights what they say of a fixed sequence
folder_digest      computes a digest of a model's folder
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
