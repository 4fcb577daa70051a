"""Reads tokenizer, context and end tokens from a checkpoint's folder, for engines without a local model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trinity_db import models
from trinity_db.config.shared import ModelConfig, PromptConfig, ScratchConfig
from trinity_db.models import context_length, load_tokenizer, source_tokenizer
from trinity_db.models.chat.prompts import ChatRenderer
from trinity_db.models.chat.turns import Turns


@dataclass(frozen=True)
class Folder:
    """Contents of a model's folder, without its weights."""

    tokenizer: Any
    context: int
    """Maximum sequence length in tokens, prompt plus response."""
    end_tokens: frozenset[int]
    """Tokens that end a response."""


def read(path: Path, prompts: PromptConfig) -> Folder:
    """Read everything but the weights.

    Raises:
        ConfigError: if the folder has no usable model.
        MissingExtra: if transformers is not installed.
    """
    tokenizer, context = load_tokenizer(path), context_length(path)
    renderer = ChatRenderer(tokenizer, prompts)
    return Folder(tokenizer, context, end_tokens(renderer, models.end_tokens(path)))


def of_scratch(scratch: ScratchConfig, prompts: PromptConfig) -> Folder:
    """Return the same for a model from scratch, before it has a folder.

    Raises:
        The errors of `read`.
    """
    tokenizer = source_tokenizer(ModelConfig(scratch=scratch))
    return Folder(tokenizer, scratch.context, end_tokens(ChatRenderer(tokenizer, prompts)))


def end_tokens(renderer: ChatRenderer, configured: Sequence[int] = ()) -> frozenset[int]:
    """Return the end tokens of the tokenizer, the generation settings and the chat template.

    Base models may have a template whose end-of-turn token is missing from their settings.

    Args:
        configured: those of the generation settings.
    """
    tokenizer: Any = renderer.tokenizer
    mark = Turns(renderer).end
    ends = [] if mark is None else tokenizer.encode(mark, add_special_tokens=False)
    return frozenset(token for token in [tokenizer.eos_token_id, *configured, *ends] if token is not None)
