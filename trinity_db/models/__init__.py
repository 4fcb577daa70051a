"""Causal language models: loading, building small ones, scoring rows. Imports neither roles nor store.

libraries          imports torch and transformers on demand
families           refuses unsuitable model families before a run is created
loading            loads models and tokenizers from disk
hub                downloads models named as OWNER/NAME
scratch            builds small models with random weights
forward            computes the inputs of losses from payloads
layout             decides by trials whether sequences are packed or padded
attention          packs sequences end to end in one row
packed_kernels     computes attention of such rows with the device's kernels
computing          reports device, number format and GPU memory of a computation
chunked_logprobs   computes log-probabilities without storing the logits of all tokens
layers             recomputes layers in the backward pass, and shards their weights over ranks
lazy_weights       reads a model's weights layer by layer, so that no rank holds all of them
stored_weights     reads single weights from files
embedding          computes sentence embeddings of texts
reward_model       scores responses with a sequence classification checkpoint
frozen_model       scores rows with a model that is not trained
adapter_folder     finds the base of a version that is an adapter
lora               puts adapters onto a model, loads them and merges them
model_folder       writes a whole model
rounding           rounds weights to 16 bits, reproducibly
canary             stores log-probabilities of a fixed sequence next to weights
folder_digest      computes a digest of a model's folder
"""

from trinity_db.models.libraries import check_libraries, computing_dtype, default_device
from trinity_db.models.loading import (
    check_source,
    context_length,
    context_of,
    end_tokens,
    end_tokens_of,
    load_adapted,
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
    "computing_dtype",
    "context_length",
    "context_of",
    "default_device",
    "end_tokens",
    "end_tokens_of",
    "load_adapted",
    "load_model",
    "load_tokenizer",
    "other_token",
    "source_tokenizer",
]
