"""Causal language models: load them, build small ones, and score rows. Imports no role and no store.

libraries          imports torch and transformers when they are needed
families           refuses families of models that cannot be used, before a run has a name
loading            loads models and tokenizers from disk
hub                downloads models that are named as OWNER/NAME
scratch            builds small models with random weights
forward            computes from payloads the columns of trained tokens that losses read
layout             decides by trials how sequences lie in what a model takes
attention          lets sequences lie end to end in one row
packed_kernels     computes attention of such rows by the kernels that the device has
computing          says what a model computes with, and how much memory of a GPU it took
chunked_logprobs   computes log-probabilities without the logits of all tokens at once
layers             recomputes layers in the backward pass, and shards their weights over ranks
unread             reads a model's weights layer by layer, so that a rank never holds all of them
stored_weights     reads single weights as they lie in files
embedding          makes vectors of texts, by a model of sentence embeddings
reward_model       says what responses are worth, by a checkpoint that classifies sequences
frozen_model       scores rows with a model that is not trained
adapter_folder     finds the base of a version that is an adapter
lora               puts adapters onto a model, loads them and merges them
model_folder       writes a whole model
rounding           rounds weights to 16 bits, the same wherever a version is rounded
canary             keeps beside weights what they say of a fixed sequence
folder_digest      computes a digest of a model's folder
"""

from trinity_db.models.libraries import check_libraries, computing_dtype, default_device
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
    "computing_dtype",
    "context_length",
    "context_of",
    "default_device",
    "load_model",
    "load_tokenizer",
    "other_token",
    "source_tokenizer",
]
