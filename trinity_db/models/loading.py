"""Checks and loads models and tokenizers from disk, in Hugging Face format.

Loading from a folder never uses the network; the two functions with a `ModelConfig` download configuration
and tokenizer of a model of the Hub (`hub`). Nothing is written to stderr, which is reserved for logs. Loading
needs the extra `train`; importing this module does not.
"""

import importlib
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity_db.config.shared import ModelConfig
from trinity_db.errors import ConfigError
from trinity_db.models import hub
from trinity_db.models.adapter_folder import base_folder, is_adapter, whole_model
from trinity_db.models.families import check_experts, check_family
from trinity_db.models.libraries import FROM_FOLDER, check_libraries, default_device, library
from trinity_db.models.scratch import scratch_tokenizer
from trinity_db.models.time_steps import limit_as_configured

if TYPE_CHECKING:
    from trinity_db.models.lora import AdaptedModel

_PADDING_IS_ZEROED = {"youtu"}
"""Families whose padding embedding transformers zeroes after reading the weights."""


def check_source(config: ModelConfig, is_decoded: bool = False, has_experts: bool = False) -> None:
    """Check early, without loading anything, that a starting model can be loaded.

    Args:
        is_decoded: whether the engine `transformers` samples from it.
        has_experts: whether its choice of experts is recorded.

    Raises:
        ConfigError: if the model does not exist, or its family cannot be used in this way.
        TrinityError: if it is not on this machine and its hub is unreachable.
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

    An adapter is merged into its base. A vision-language model is loaded whole, so that versions contain all
    of its weights; weights outside its language model are frozen.

    Raises:
        ConfigError: if the folder does not exist, or has no model that transformers can read, or an adapter
            whose base has changed or is missing.
        MissingExtra: torch or transformers is not installed.
    """
    torch, transformers = library("torch"), library("transformers")
    check_folder(path)
    if is_adapter(path):
        return load_adapted(path).unload().to(device or default_device())
    try:
        config = transformers.AutoConfig.from_pretrained(path, **FROM_FOLDER)
        own = {"config": _without_padding(config)} if config.model_type in _PADDING_IS_ZEROED else {}
        model = model_class(config).from_pretrained(path, **FROM_FOLDER, dtype=torch.float32, **own)
    except Exception as error:  # any class: the files determine what transformers imports and computes
        raise ConfigError(f"{path}: is not a causal language model: {_one_line(error)}") from error
    if own:
        model.config.pad_token_id = model.get_input_embeddings().padding_idx = config.pad_token_id
    return prepared(model).to(device or default_device()).eval()


def load_adapted(folder: Path) -> "AdaptedModel":
    """Load an adapter and its base, on the CPU in float32, regardless of the model that it is merged into.

    Raises:
        ConfigError: if the adapter is damaged, or its base has changed or is missing.
        MissingExtra: peft, torch or transformers is not installed.
    """
    check_libraries("peft", "torch", "transformers")
    from trinity_db.models.lora import AdaptedModel

    base = base_folder(folder)
    return AdaptedModel(folder, base, load_model(base, "cpu"))


def model_class(config: Any) -> Any:
    """Return the transformers class that builds the model of a configuration."""
    transformers = library("transformers")
    sees = sees_as_well(config)
    return transformers.AutoModelForImageTextToText if sees else transformers.AutoModelForCausalLM


def prepared(model: Any) -> Any:
    """Prepare a new transformers model: apply its configuration's limits and freeze its vision part.

    It also switches off cuDNN's attention in this process. cuDNN makes a plan for each new shape, in up to a
    second, and most micro-batches and decoded tokens have a new shape.
    """
    library("torch").backends.cuda.enable_cudnn_sdp(False)
    limit_as_configured(model)
    if sees_as_well(model.config):
        model.requires_grad_(False)
        model.get_decoder().requires_grad_(True)
        model.get_output_embeddings().requires_grad_(True)
    return model


def load_tokenizer(path: Path) -> Any:
    """Load the tokenizer in a model's folder. It raises an error for characters without a token.

    Raises:
        ConfigError: if the folder does not exist, or has no tokenizer that transformers can read.
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
    """Make a tokenizer raise an error for characters without a token, which BPE skips by default.

    An unknown token that is not in the vocabulary makes BPE raise the error.
    """
    vocabulary = tokenizer.backend_tokenizer.model if tokenizer.is_fast else None
    if isinstance(vocabulary, library("tokenizers").models.BPE) and vocabulary.unk_token is None:
        vocabulary.unk_token = "<unknown character>"
    return tokenizer


def source_tokenizer(config: ModelConfig) -> Any:
    """Return the tokenizer of a starting model: in a folder, on the Hub, or from scratch.

    Raises: as `load_tokenizer` and `hub.folder`.
    """
    if config.scratch is not None:
        return _refusing(scratch_tokenizer(config.scratch.alphabet, config.scratch.context))
    assert config.path is not None, "the tokenizer of another run is in its checkpoint"
    return load_tokenizer(hub.folder(config.path, config.revision, with_weights=False))


def end_tokens(path: Path) -> list[int]:
    """Return the tokens that end a response by the model's generation settings; none without such a file."""
    try:
        return end_tokens_of(
            library("transformers").GenerationConfig.from_pretrained(path, local_files_only=True)
        )
    except OSError:
        return []


def end_tokens_of(settings: Any) -> list[int]:
    """Return the end tokens of generation settings."""
    ends = settings.eos_token_id
    return ends if isinstance(ends, list) else [] if ends is None else [ends]


def other_token(tokenizer: Any, other: Any) -> str | None:
    """Return the first token that another tokenizer lacks or has with another id; None if it has all."""
    numbers = other.get_vocab()
    differing = [(n, token) for token, n in tokenizer.get_vocab().items() if numbers.get(token) != n]
    return min(differing)[1] if differing else None


def context_length(path: Path) -> int:
    """Return the longest sequence, prompt and response, of the model in a folder, in tokens.

    Raises:
        ConfigError: if the folder has no model that transformers can load, or its configuration does not
            state it.
    """
    transformers = library("transformers")
    check_folder(path)
    try:
        config = transformers.AutoConfig.from_pretrained(whole_model(path), **FROM_FOLDER)
    except Exception as error:  # as in load_model
        raise ConfigError(f"{path}: is not a causal language model: {_one_line(error)}") from error
    return context_of(config)


def context_of(config: Any) -> int:
    """Return the context length from a model's configuration; of a vision-language model, the language
    model's.

    Beyond it a token's log-probability would depend on the number of tokens that follow, or on rounding.
    LongRoPE rotates all positions by other factors once one is beyond the original context. Sparse attention
    picks `index_topk` tokens by scores that often tie.

    Raises:
        ConfigError: if the configuration does not state it, like those of BLOOM, MPT and Mamba.
    """
    text = config.get_text_config()
    context = getattr(text, "max_position_embeddings", None)
    if context is None:
        raise ConfigError(
            f"{config.name_or_path}: its config.json does not state how many tokens a sequence may have; add "
            f"max_position_embeddings there, with what this {config.model_type} takes."
        )
    rope = getattr(text, "rope_parameters", None) or {}
    ropes = [
        settings for settings in (rope, *rope.values()) if isinstance(settings, dict)
    ]  # per kind of layer in some models
    switches = [
        settings["original_max_position_embeddings"]
        for settings in ropes
        if settings.get("rope_type") == "longrope"
    ]
    return int(min([context, *switches, getattr(text, "index_topk", None) or context]))


def sees_as_well(config: Any) -> bool:
    """Whether the configuration is of a model for images that contains a language model."""
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    whole = auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING.get(type(config), None)
    is_causal = type(config) in auto.MODEL_FOR_CAUSAL_LM_MAPPING
    return is_causal and whole is not None and whole.__name__ in (config.architectures or ())


def check_folder(path: Path) -> None:
    """Check that a folder may hold a model.

    Raises:
        ConfigError: if the folder does not exist, or has neither config.json nor an adapter.
    """
    if not path.is_dir():
        raise ConfigError(f"{path}: no such model folder.")
    if not (path / "config.json").is_file() and not is_adapter(path):
        raise ConfigError(f"{path}: is not a model folder: it has no config.json.")


def _without_padding(config: Any) -> Any:
    other = deepcopy(config)
    other.pad_token_id = None
    return other


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
