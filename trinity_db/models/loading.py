"""Checks and loads models and tokenizers from disk, in Hugging Face format.

Loading never uses the network, and writes nothing to stderr, which is for logs. Loading needs the extra
`train`; importing this module does not.
"""

from pathlib import Path
from typing import Any

from trinity_db.config import ModelConfig
from trinity_db.errors import ConfigError
from trinity_db.models.libraries import check_libraries, default_device, library
from trinity_db.models.scratch import scratch_tokenizer


def check_source(config: ModelConfig) -> None:
    """Check early, without loading anything, that a starting model can be loaded.

    Raises:
        ConfigError: there is no model in the folder.
        MissingExtra: torch or transformers is not installed.
    """
    check_libraries("torch", "transformers")
    if config.path is not None:
        _check_folder(config.path.expanduser())


def load_model(path: Path, device: str | None = None) -> Any:
    """Load a causal language model onto the device, in float32 and in evaluation mode (no dropout).

    Raises:
        ConfigError: there is no such folder, or no model in it that transformers can read.
        MissingExtra: torch or transformers is not installed.
    """
    torch, transformers = library("torch"), library("transformers")
    safetensors = library("safetensors")
    _check_folder(path)
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path, local_files_only=True, dtype=torch.float32
        )
    except (OSError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        raise ConfigError(f"{path}: is no causal language model: {_one_line(error)}") from error
    return model.to(device or default_device()).eval()


def load_tokenizer(path: Path) -> Any:
    """Load the tokenizer beside a model. It raises an error for characters that it has no token for.

    Raises:
        ConfigError: there is no such folder, or no tokenizer in it that transformers can read.
        MissingExtra: transformers is not installed.
    """
    tokenizers, transformers = library("tokenizers"), library("transformers")
    _check_folder(path)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{path}: holds no tokenizer: {_one_line(error)}") from error
    vocabulary = tokenizer.backend_tokenizer.model if tokenizer.is_fast else None
    if isinstance(vocabulary, tokenizers.models.BPE) and vocabulary.unk_token is None:
        # By default BPE skips characters that it has no token for. An unknown token that is not in the
        # vocabulary makes BPE raise an error instead.
        vocabulary.unk_token = "<unknown character>"
    return tokenizer


def source_tokenizer(config: ModelConfig) -> Any:
    """The tokenizer of a starting model that lies in a folder, or of a scratch model.

    Raises: as `load_tokenizer`.
    """
    if config.scratch is not None:
        return scratch_tokenizer(config.scratch.alphabet, config.scratch.context)
    assert config.path is not None, "the tokenizer of another run lies in its checkpoint"
    return load_tokenizer(config.path.expanduser())


def other_token(tokenizer: Any, other: Any) -> str | None:
    """The first token that another tokenizer lacks or has under another id; None if it has all of them."""
    numbers = other.get_vocab()
    differing = [(n, token) for token, n in tokenizer.get_vocab().items() if numbers.get(token) != n]
    return min(differing)[1] if differing else None


def context_length(path: Path) -> int:
    """The longest sequence in tokens that the model in a folder takes, prompt and response together.

    Raises:
        ConfigError: there is no model in the folder, or its configuration does not say it.
    """
    transformers = library("transformers")
    _check_folder(path)
    return context_of(transformers.AutoConfig.from_pretrained(path, local_files_only=True))


def context_of(config: Any) -> int:
    """`context_length` from a model's configuration. For a vision-language model, its language model counts.

    Raises:
        ConfigError: the configuration does not say it, such as those of BLOOM, MPT and Mamba.
    """
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    if context is None:
        raise ConfigError(
            f"{config.name_or_path}: its config.json does not say how many tokens a sequence may have; add "
            f"max_position_embeddings there, with what this {config.model_type} takes."
        )
    return int(context)


def _check_folder(path: Path) -> None:
    if not path.is_dir():
        raise ConfigError(f"{path}: no such model folder.")
    if not (path / "config.json").is_file():
        raise ConfigError(f"{path}: is no model folder, it has no config.json.")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
