"""What an engine without a model of its own reads from a checkpoint's folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trinity_db.config import ModelConfig, PromptConfig, ScratchConfig
from trinity_db.models import context_length, load_tokenizer, source_tokenizer
from trinity_db.models.libraries import library
from trinity_db.prompts import ChatRenderer
from trinity_db.turns import Turns


@dataclass(frozen=True)
class Folder:
    """A model's folder, without its weights."""

    tokenizer: Any
    context: int
    """Longest sequence in tokens, prompt and response together."""
    end_tokens: frozenset[int]
    """Tokens that end a response."""


def read(path: Path, prompts: PromptConfig) -> Folder:
    """Read all but the weights.

    Raises:
        ConfigError: there is no usable model in the folder.
        MissingExtra: transformers is not installed.
    """
    tokenizer, context = load_tokenizer(path), context_length(path)
    renderer = ChatRenderer(tokenizer, prompts)
    try:
        settings = library("transformers").GenerationConfig.from_pretrained(path, local_files_only=True)
    except OSError:  # the file is optional
        return Folder(tokenizer, context, end_tokens(renderer, None))
    return Folder(tokenizer, context, end_tokens(renderer, settings))


def of_scratch(scratch: ScratchConfig, prompts: PromptConfig) -> Folder:
    """The same of a model from scratch, before it has a folder.

    Raises: as `read`.
    """
    tokenizer = source_tokenizer(ModelConfig(scratch=scratch))
    return Folder(tokenizer, scratch.context, end_tokens(ChatRenderer(tokenizer, prompts), None))


def end_tokens(renderer: ChatRenderer, settings: Any) -> frozenset[int]:
    """The tokenizer's end token, those of the model's generation settings, and that of its chat template.

    Base models may have a template whose end of a turn their settings do not name.
    """
    configured = settings.eos_token_id if settings is not None else None
    more = configured if isinstance(configured, list) else [configured]
    tokenizer: Any = renderer.tokenizer
    mark = Turns(renderer).end
    ends = [] if mark is None else tokenizer.encode(mark, add_special_tokens=False)
    return frozenset(token for token in [tokenizer.eos_token_id, *more, *ends] if token is not None)
