"""Checks and loads models and tokenizers from disk, in Hugging Face format.

Loading from a folder never uses the network; the two functions that take a `ModelConfig` download the
settings and the tokenizer of a model of the Hub (`hub`). Nothing is written to stderr, which is for logs.
Loading needs the extra `train`; importing this module does not.
"""

import importlib
from copy import deepcopy
from pathlib import Path
from typing import Any

from trinity_db.config import ModelConfig
from trinity_db.errors import ConfigError
from trinity_db.models import hub
from trinity_db.models.adapter_folder import is_adapter, whole_model
from trinity_db.models.families import check_experts, check_family
from trinity_db.models.libraries import FROM_FOLDER, check_libraries, default_device, library
from trinity_db.models.scratch import scratch_tokenizer
from trinity_db.models.time_steps import limit_as_configured

_PADDING_IS_ZEROED = {"youtu"}
"""Families whose row of the padding token transformers sets to 0 after it has read the weights."""


def check_source(config: ModelConfig, is_decoded: bool = False, has_experts: bool = False) -> None:
    """Check early, without loading anything, that a starting model can be loaded.

    Args:
        is_decoded: whether the engine `transformers` is to sample from it.
        has_experts: whether its choice of experts is to be recorded.

    Raises:
        ConfigError: there is no such model, or one of a family that cannot be used so.
        TrinityError: it is not on this machine, and its hub cannot be reached.
        MissingExtra: torch or transformers is not installed.
    """
    check_libraries("torch", "transformers")
    if has_experts and config.scratch is not None:
        raise ConfigError("explorer.record_routing: a model from scratch has no experts; leave it out.")
    if config.path is not None:
        folder = hub.folder(config.path, config.revision, with_weights=False)
        check_folder(folder)
        check_family(whole_model(folder), is_decoded)
        if has_experts:
            check_experts(whole_model(folder))


def load_model(path: Path, device: str | None = None) -> Any:
    """Load a causal language model onto the device, in float32 and in evaluation mode (no dropout).

    An adapter is merged into its base. A model that sees as well is loaded whole, so that a version has all
    of its weights. Those that read no text are frozen.

    Raises:
        ConfigError: there is no such folder, or no model in it that transformers can read, or an adapter
            whose base has changed or is gone.
        MissingExtra: torch or transformers is not installed.
    """
    torch, transformers = library("torch"), library("transformers")
    check_folder(path)
    if is_adapter(path):
        from trinity_db.models.lora import load_merged  # which imports this module

        return load_merged(path).to(device or default_device())
    try:
        config = transformers.AutoConfig.from_pretrained(path, **FROM_FOLDER)
        own = {"config": _without_padding(config)} if config.model_type in _PADDING_IS_ZEROED else {}
        model = model_class(config).from_pretrained(path, **FROM_FOLDER, dtype=torch.float32, **own)
    except Exception as error:  # of many classes: the files choose what transformers imports and computes
        raise ConfigError(f"{path}: is no causal language model: {_one_line(error)}") from error
    if own:
        model.config.pad_token_id = model.get_input_embeddings().padding_idx = config.pad_token_id
    return prepared(model).to(device or default_device()).eval()


def model_class(config: Any) -> Any:
    """The class of transformers that makes the model of a configuration."""
    transformers = library("transformers")
    sees = sees_as_well(config)
    return transformers.AutoModelForImageTextToText if sees else transformers.AutoModelForCausalLM


def prepared(model: Any) -> Any:
    """A model that transformers has made, within the limits of its configuration; what sees is frozen."""
    limit_as_configured(model)
    if sees_as_well(model.config):
        model.requires_grad_(False)
        model.get_decoder().requires_grad_(True)
        model.get_output_embeddings().requires_grad_(True)
    return model


def load_tokenizer(path: Path) -> Any:
    """Load the tokenizer beside a model. It raises an error for characters that it has no token for.

    Raises:
        ConfigError: there is no such folder, or no tokenizer in it that transformers can read.
        MissingExtra: transformers is not installed.
    """
    transformers = library("transformers")
    check_folder(path)
    path = whole_model(path)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, **FROM_FOLDER)
    except Exception as error:  # as in load_model
        raise ConfigError(f"{path}: holds no tokenizer: {_one_line(error)}") from error
    return _refusing(tokenizer)


def _refusing(tokenizer: Any) -> Any:
    """A tokenizer that raises an error for characters that it has no token for. By default BPE skips them.

    An unknown token that is not in the vocabulary makes BPE raise the error.
    """
    vocabulary = tokenizer.backend_tokenizer.model if tokenizer.is_fast else None
    if isinstance(vocabulary, library("tokenizers").models.BPE) and vocabulary.unk_token is None:
        vocabulary.unk_token = "<unknown character>"
    return tokenizer


def source_tokenizer(config: ModelConfig) -> Any:
    """The tokenizer of a starting model in a folder or of the Hub, or of a scratch model.

    Raises: as `load_tokenizer` and `hub.folder`.
    """
    if config.scratch is not None:
        return _refusing(scratch_tokenizer(config.scratch.alphabet, config.scratch.context))
    assert config.path is not None, "the tokenizer of another run lies in its checkpoint"
    return load_tokenizer(hub.folder(config.path, config.revision, with_weights=False))


def other_token(tokenizer: Any, other: Any) -> str | None:
    """The first token that another tokenizer lacks or has under another id; None if it has all of them."""
    numbers = other.get_vocab()
    differing = [(n, token) for token, n in tokenizer.get_vocab().items() if numbers.get(token) != n]
    return min(differing)[1] if differing else None


def context_length(path: Path) -> int:
    """The longest sequence in tokens that the model in a folder takes, prompt and response together.

    Raises:
        ConfigError: the folder has no model that transformers can load, or its configuration does not
            say it.
    """
    transformers = library("transformers")
    check_folder(path)
    try:
        config = transformers.AutoConfig.from_pretrained(whole_model(path), **FROM_FOLDER)
    except Exception as error:  # as in load_model
        raise ConfigError(f"{path}: is no causal language model: {_one_line(error)}") from error
    return context_of(config)


def context_of(config: Any) -> int:
    """`context_length` from a model's configuration. For a vision-language model, its language model counts.

    Beyond it the log-probability of a token would depend on how many tokens follow, or on rounding. LongRoPE
    turns all positions by other factors as soon as one lies beyond the original context. Sparse attention
    picks `index_topk` tokens, by scores that are often equal.

    Raises:
        ConfigError: the configuration does not say it, such as those of BLOOM, MPT and Mamba.
    """
    text = config.get_text_config()
    context = getattr(text, "max_position_embeddings", None)
    if context is None:
        raise ConfigError(
            f"{config.name_or_path}: its config.json does not say how many tokens a sequence may have; add "
            f"max_position_embeddings there, with what this {config.model_type} takes."
        )
    rope = getattr(text, "rope_parameters", None) or {}
    ropes = [
        one for one in (rope, *rope.values()) if isinstance(one, dict)
    ]  # by kind of layer in some models
    switches = [
        one["original_max_position_embeddings"] for one in ropes if one.get("rope_type") == "longrope"
    ]
    return int(min([context, *switches, getattr(text, "index_topk", None) or context]))


def sees_as_well(config: Any) -> bool:
    """Whether the files are of a model that takes images, and has a language model of its own."""
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    whole = auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING.get(type(config), None)
    is_causal = type(config) in auto.MODEL_FOR_CAUSAL_LM_MAPPING
    return is_causal and whole is not None and whole.__name__ in (config.architectures or ())


def check_folder(path: Path) -> None:
    """Check that a folder may hold a model.

    Raises:
        ConfigError: there is no such folder, or it has neither config.json nor an adapter.
    """
    if not path.is_dir():
        raise ConfigError(f"{path}: no such model folder.")
    if not (path / "config.json").is_file() and not is_adapter(path):
        raise ConfigError(f"{path}: is no model folder, it has no config.json.")


def _without_padding(config: Any) -> Any:
    other = deepcopy(config)
    other.pad_token_id = None
    return other


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
