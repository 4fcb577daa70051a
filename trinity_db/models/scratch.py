"""Builds small models with random weights, and their tokenizers."""

from pathlib import Path
from typing import Any

from trinity_db.config.shared import ScratchConfig
from trinity_db.models.libraries import library

PAD_TOKEN = "<|pad|>"  # unlike the end-of-sequence token, which is Qwen2's "<|endoftext|>"


def build_scratch(config: ScratchConfig, seed: int, folder: Path) -> None:
    """Write a small Qwen2 with random weights and its tokenizer. The same seed gives the same bytes.

    The tokens are the characters of the alphabet. Without an alphabet they are the 256 bytes of UTF-8.
    """
    torch, transformers = library("torch"), library("transformers")
    tokenizer = scratch_tokenizer(config.alphabet, config.context)
    settings = transformers.Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        intermediate_size=config.feed_forward_width,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.heads,
        max_position_embeddings=config.context,
        # The usual 0.02 of large models is so small at this width that one step of Adam changes the weights
        # by their own size.
        initializer_range=config.hidden_size**-0.5,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.Qwen2ForCausalLM(settings)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def scratch_tokenizer(alphabet: str | None, context: int) -> Any:
    """Make a tokenizer without merges, of Qwen2's class, which AutoTokenizer loads for any Qwen2 folder."""
    tokenizers, transformers = library("tokenizers"), library("transformers")
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if alphabet is None:
        symbols = sorted(byte_level.alphabet())
    else:
        # Byte-level encoding keeps printable ASCII, and writes other characters as symbols: a space as "Ġ".
        symbols = [symbol for word, _ in byte_level.pre_tokenize_str(alphabet) for symbol in word]
    return transformers.Qwen2Tokenizer(
        vocab={symbol: index for index, symbol in enumerate(symbols)},
        merges=[],
        pad_token=PAD_TOKEN,
        model_max_length=context,
    )
