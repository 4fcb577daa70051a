"""Settings that several roles share: the starting model, and how rows go through a model."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveInt, field_validator, model_validator

from trinity_db.config.base import Change, Kept, Settings

SCRATCH_SPECIAL_TOKENS = 2  # the end of a sequence, and padding
RENDERER_ARGUMENTS = frozenset(
    ["add_generation_prompt", "chat_template", "conversation", "messages", "tokenize", "tools"]
)
MOST_TOKENS = 4096  # of a forward pass
MAX_SCRATCH_PARAMETERS = 10**9  # 4 GB as float32; with gradients and Adam's state 16 GB


class ScratchConfig(Settings):
    """A small Qwen2 with random weights, built at the start. It has at most a billion parameters."""

    alphabet: str | None = None
    """ASCII characters of the tokenizer's vocabulary, one token each. Any other character is an error. None:
    the 256 byte values, so that every UTF-8 text can be encoded."""
    hidden_size: int = Field(64, ge=4, le=16_384)
    """Width of the hidden state; a multiple of twice `heads`, since rotary embeddings rotate pairs."""
    layers: int = Field(2, ge=1, le=1000)
    """Number of transformer blocks."""
    heads: int = Field(4, ge=1, le=1024)
    """Attention heads per block."""
    intermediate_size: int | None = Field(None, ge=1, le=131_072)
    """Width of the feed-forward layers. None: 8/3 of `hidden_size`, rounded up to a multiple of 8."""
    context: int = Field(512, ge=2, le=10_000_000)
    """Longest sequence in tokens, prompt and response together."""

    @model_validator(mode="after")
    def heads_divide_the_hidden_size(self) -> Self:
        if self.hidden_size % (2 * self.heads):
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of 2 * heads ({2 * self.heads})"
            )
        return self

    @model_validator(mode="after")
    def weights_fit_in_memory(self) -> Self:
        if self.num_parameters > MAX_SCRATCH_PARAMETERS:
            raise ValueError(
                f"hidden_size {self.hidden_size}, layers {self.layers} and intermediate_size "
                f"{self.feed_forward_width} make {self.num_parameters:,} parameters; "
                f"at most {MAX_SCRATCH_PARAMETERS:,} are built, so make one of these smaller"
            )
        return self

    @property
    def feed_forward_width(self) -> int:
        """Width of the feed-forward layers, given or derived."""
        return self.intermediate_size or -(-self.hidden_size // 3) * 8

    @property
    def num_parameters(self) -> int:
        """Number of weights of a Qwen2 with these dimensions; input and output embeddings are tied."""
        hidden = self.hidden_size
        tokens = SCRATCH_SPECIAL_TOKENS + (256 if self.alphabet is None else len(self.alphabet))
        attention = 4 * hidden**2 + 3 * hidden
        norms = 2 * hidden
        layer = attention + 3 * hidden * self.feed_forward_width + norms
        return tokens * hidden + self.layers * layer + hidden

    @field_validator("alphabet")
    @classmethod
    def alphabet_has_distinct_ascii_characters(cls, alphabet: str | None) -> str | None:
        if alphabet is not None and not (alphabet.isascii() and 0 < len(alphabet) == len(set(alphabet))):
            raise ValueError("alphabet must hold ASCII characters, at least one, and each only once")
        return alphabet


class PromptConfig(Settings):
    """How tasks and conversations become prompts: options of `ChatRenderer` (`models/chat/prompts.py`)."""

    prompt_template: str | None = None
    """Text for a task with a plain prompt; `{prompt}` is replaced by the prompt. None: if the tokenizer has a
    chat template, the prompt is one user message; else it is passed unchanged. Tasks with `messages` always
    use the chat template."""
    system_prompt: str | None = Field(None, min_length=1)
    """System message for tasks whose messages have none. It is not added to requests of programs or to
    messages that a workflow writes itself."""
    chat_template: Path | None = None
    """File with a Jinja chat template that replaces the tokenizer's own. Each role reads it at its start."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Further variables of the chat template, for example {enable_thinking: false}."""

    @model_validator(mode="after")
    def template_has_a_place_for_the_prompt(self) -> Self:
        if self.prompt_template is not None and "{prompt}" not in self.prompt_template:
            raise ValueError("prompt_template must contain {prompt}")
        return self

    @field_validator("chat_template_kwargs")
    @classmethod
    def renderer_keeps_its_arguments(cls, values: dict[str, Any]) -> dict[str, Any]:
        if taken := RENDERER_ARGUMENTS & values.keys():
            raise ValueError(f"chat_template_kwargs may not set {min(taken)}, which rendering itself sets")
        return values


DEFAULT_PROMPTS = PromptConfig()


class ModelConfig(PromptConfig):
    """The starting model: policy version 0 of the run."""

    path: Path | None = None
    """Folder of a causal language model in Hugging Face format, with its tokenizer. Or OWNER/NAME of a
    Hugging Face Hub repository to download; a folder of that name takes precedence."""
    revision: str | None = Field(None, min_length=1)
    """Branch, tag or commit of a Hub repository. None: its main branch. When the run is created it records
    the commit, for example main@0123..., and each role loads that commit."""
    run: str | None = None
    """Name of another run of this store. Its latest checkpoint is the starting model."""
    scratch: ScratchConfig | None = None
    """Small model with random weights, built instead."""

    @model_validator(mode="after")
    def exactly_one_source(self) -> Self:
        sources = [name for name in ("path", "run", "scratch") if getattr(self, name) is not None]
        if len(sources) != 1:
            raise ValueError(
                f"give exactly one of path, run and scratch (given: {', '.join(sources) or 'none'})"
            )
        if self.revision is not None and self.path is None:
            raise ValueError("revision is of a model of the Hub, which path names")
        return self


class ForwardConfig(Settings):
    """Batch sizes and number format of forward passes."""

    micro_batch_size: Annotated[int, Change.PER_PROCESS] = Field(32, ge=1)
    """Sequences per forward pass; a pair counts as two. Limits memory; results do not depend on it. May
    change during a run, for example after out of memory."""
    micro_batch_tokens: Annotated[PositiveInt | Literal["auto"], Change.PER_PROCESS] = "auto"
    """Tokens per forward pass. A prompt that several sequences share counts once. A longer sequence is
    processed alone. Limits memory; results do not depend on it. auto: 4096 on a GPU and 256 on a CPU, where
    more tokens take memory and save little time, except with long shared prompts: up to 4096. The trainer
    uses fewer if less memory is free when it starts. May change during a run."""
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"], Kept("stored scores of rows were computed in it")
    ] = "auto"
    """Number format of forward and backward passes. auto: bfloat16 on a GPU that supports it, else float32; a
    run that moves to another device may switch, and the trainer warns. Trained weights, optimizer,
    log-probabilities and losses stay in float32. In float16 the trainer scales the loss (metric
    `loss_scale`), so that small gradients do not underflow."""

    @property
    def most_tokens(self) -> int:
        """Return the most tokens per forward pass, if memory suffices."""
        return MOST_TOKENS if self.micro_batch_tokens == "auto" else self.micro_batch_tokens

    def enough_tokens_on(self, device: str) -> int:
        """Return the tokens per forward pass above which no time is saved, except by shared prefixes."""
        return 256 if self.micro_batch_tokens == "auto" and device == "cpu" else self.most_tokens
