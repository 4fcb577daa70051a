"""Models and tokenizers on disk, in Hugging Face format: load them, or build small ones from nothing.

The only door to transformers for explorer and trainer, but for how the trainer runs a model's layers
(`trainer/attention.py`, `trainer/forward.py`). Loading never touches the network and keeps stderr for
our own logs. Needs the extra `train`; importing this module does not.
"""

import importlib
import importlib.util
from pathlib import Path
from typing import Any

from trinity_db.config import ModelConfig, ScratchConfig
from trinity_db.errors import ConfigError, MissingExtra

PAD_TOKEN = "<|pad|>"  # the end of a sequence is Qwen2's own "<|endoftext|>"


def default_device() -> str:
    """The device models run on: the first GPU if there is one, else the CPU."""
    return "cuda" if _library("torch").cuda.is_available() else "cpu"


def check_libraries(*names: str) -> None:
    """Find out early that a part of the extra is not installed.

    Raises:
        MissingExtra: naming the first that is missing.
    """
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise MissingExtra("train", name)


def check_source(config: ModelConfig) -> None:
    """Find out early, without loading anything, that a starting model cannot be loaded.

    Raises:
        ConfigError: there is no model in the folder.
        MissingExtra: torch or transformers is not installed.
    """
    check_libraries("torch", "transformers")
    if config.path is not None:
        _check_folder(config.path.expanduser())


def load_model(path: Path, device: str | None = None) -> Any:
    """A causal language model in float32, in evaluation mode (no dropout), ready on the device.

    Raises:
        ConfigError: there is no such folder, or no model in it that transformers can read.
        MissingExtra: torch or transformers is not installed.
    """
    torch, transformers = _library("torch"), _library("transformers")
    safetensors = _library("safetensors")
    _check_folder(path)
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path, local_files_only=True, dtype=torch.float32
        )
    except (OSError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        raise ConfigError(f"{path}: is no causal language model: {_one_line(error)}") from error
    return model.to(device or default_device()).eval()


def load_tokenizer(path: Path) -> Any:
    """The tokenizer that stands beside a model. It refuses characters that it has no token for.

    Raises:
        ConfigError: there is no such folder, or no tokenizer in it that transformers can read.
        MissingExtra: transformers is not installed.
    """
    tokenizers, transformers = _library("tokenizers"), _library("transformers")
    _check_folder(path)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{path}: holds no tokenizer: {_one_line(error)}") from error
    vocabulary = tokenizer.backend_tokenizer.model if tokenizer.is_fast else None
    if isinstance(vocabulary, tokenizers.models.BPE) and vocabulary.unk_token is None:
        # Without this BPE skips what it cannot spell; a token that does not exist makes it an error.
        vocabulary.unk_token = "<unknown character>"
    return tokenizer


def source_tokenizer(config: ModelConfig) -> Any:
    """The tokenizer of a starting model that is in a folder, or that is built from nothing.

    Raises: as `load_tokenizer`.
    """
    if config.scratch is not None:
        return _scratch_tokenizer(config.scratch.alphabet, config.scratch.context)
    assert config.path is not None, "another run's is where its checkpoint is"
    return load_tokenizer(config.path.expanduser())


def other_token(tokenizer: Any, other: Any) -> str | None:
    """The first token that another tokenizer lacks, or has under another number; None: it has all of them."""
    numbers = other.get_vocab()
    differing = [(n, token) for token, n in tokenizer.get_vocab().items() if numbers.get(token) != n]
    return min(differing)[1] if differing else None


def context_length(path: Path) -> int:
    """Longest sequence in tokens that the model in a folder takes, prompt and response together.

    Raises:
        ConfigError: there is no model in the folder, or it is of a kind that does not say.
    """
    transformers = _library("transformers")
    _check_folder(path)
    return context_of(transformers.AutoConfig.from_pretrained(path, local_files_only=True))


def context_of(config: Any) -> int:
    """The same of a model's configuration; of one that sees as well as reads, its language model's.

    Raises:
        ConfigError: it does not say, as BLOOM's, MPT's and Mamba's do not.
    """
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    if context is None:
        raise ConfigError(
            f"{config.name_or_path}: its config.json does not say how many tokens a sequence may have; add "
            f"max_position_embeddings there, with what this {config.model_type} takes."
        )
    return int(context)


def build_scratch(config: ScratchConfig, seed: int, folder: Path) -> None:
    """Write a small Qwen2 with random weights and its tokenizer; the same seed gives the same bytes.

    With an alphabet the tokens are its characters, without one the 256 bytes of UTF-8.
    """
    torch, transformers = _library("torch"), _library("transformers")
    tokenizer = _scratch_tokenizer(config.alphabet, config.context)
    settings = transformers.Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size or -(-config.hidden_size // 3) * 8,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.heads,
        max_position_embeddings=config.context,
        # Large models' 0.02 is so small at this width that each step of Adam would turn the weights over.
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


def _scratch_tokenizer(alphabet: str | None, context: int) -> Any:
    """Qwen2's own class without merges, since AutoTokenizer rebuilds it for every Qwen2 folder."""
    tokenizers, transformers = _library("tokenizers"), _library("transformers")
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if alphabet is None:
        symbols = sorted(byte_level.alphabet())
    else:
        # Printable ASCII stands for itself; a space, for example, becomes "Ġ".
        symbols = [symbol for word, _ in byte_level.pre_tokenize_str(alphabet) for symbol in word]
    return transformers.Qwen2Tokenizer(
        vocab={symbol: index for index, symbol in enumerate(symbols)},
        merges=[],
        pad_token=PAD_TOKEN,
        model_max_length=context,
    )


def _check_folder(path: Path) -> None:
    if not path.is_dir():
        raise ConfigError(f"{path}: no such model folder.")
    if not (path / "config.json").is_file():
        raise ConfigError(f"{path}: is no model folder, it has no config.json.")


def _library(name: str) -> Any:
    """Import one of the extra's libraries; transformers with its progress bars and advice off."""
    try:
        library = importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra("train", name) from error
    if name == "transformers":
        library.utils.logging.set_verbosity_error()
        library.utils.logging.disable_progress_bar()
    return library


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
