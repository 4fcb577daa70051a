"""What an engine without a model of its own reads from a checkpoint's folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trinity_db.models import context_length, load_tokenizer
from trinity_db.models.libraries import library


@dataclass(frozen=True)
class Folder:
    """A model's folder, without its weights."""

    tokenizer: Any
    context: int
    """Longest sequence in tokens, prompt and response together."""
    end_tokens: frozenset[int]
    """Tokens that end a response."""


def read(path: Path) -> Folder:
    """Read all but the weights.

    Raises:
        ConfigError: there is no usable model in the folder.
        MissingExtra: transformers is not installed.
    """
    tokenizer, context = load_tokenizer(path), context_length(path)
    try:
        settings = library("transformers").GenerationConfig.from_pretrained(path, local_files_only=True)
    except OSError:  # the file is optional
        return Folder(tokenizer, context, end_tokens(tokenizer, None))
    return Folder(tokenizer, context, end_tokens(tokenizer, settings))


def end_tokens(tokenizer: Any, settings: Any) -> frozenset[int]:
    """The tokenizer's end token and those of the model's generation settings (chat models have more)."""
    configured = settings.eos_token_id if settings is not None else None
    more = configured if isinstance(configured, list) else [configured]
    return frozenset(token for token in [tokenizer.eos_token_id, *more] if token is not None)
