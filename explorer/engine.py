"""Engines turn prompts into sampled responses, with each token's log-probability and policy version.

An engine owns the policy's weights and nothing else: it sees tokens, never tasks or the database.
The explorer decides when it loads a newer version; responses that were begun go on with it.
Shapes: B sequences still being written, P the longest prompt, V the vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor
from transformers import DynamicCache

from trinity_db.arrays import Payload
from trinity_db.errors import ConfigError
from trinity_db.models import default_device, load_model, load_tokenizer
from trinity_db.prompts import PromptTooLong


@dataclass(frozen=True)
class Request:
    """A prompt to continue by at most `max_new_tokens` tokens, or until the context is full."""

    prompt_ids: Sequence[int]
    max_new_tokens: int


@dataclass(frozen=True)
class Completion:
    """A finished response. The three lists have one entry per token of it, the end token included."""

    index: int
    """Position of its request among those passed to `generate`."""
    token_ids: list[int]
    logprobs: list[float]
    """Under the distribution each token was sampled from; in a greedy response, that of temperature 1."""
    versions: list[int]
    """The policy version that sampled each token."""
    finish_reason: Literal["stop", "length"]
    """stop: the policy ended the response; length: a limit did."""

    def payload(self, prompt_ids: Sequence[int]) -> Payload:
        """Prompt and response as one sequence of which the response is trained."""
        token_ids = np.array([*prompt_ids, *self.token_ids], np.int32)
        return Payload(
            token_ids=token_ids,
            action_mask=np.arange(len(token_ids)) >= len(prompt_ids),
            logprobs=np.array(self.logprobs, np.float32),
            versions=np.array(self.versions, np.int32),
        )


class Engine(Protocol):
    """What the explorer needs of an engine."""

    version: int
    """The policy version that is loaded."""
    context: int
    """Longest sequence in tokens, prompt and response together."""
    tokenizer: Any

    def load(self, path: Path, version: int) -> None:
        """Use the weights of a checkpoint from the next token on."""

    def fits(self, prompt_ids: Sequence[int]) -> bool:
        """Whether the prompt has a token to begin with and leaves room for one more."""

    def generate(
        self,
        requests: Sequence[Request],
        *,
        temperature: float,
        seed: int,
        should_stop: Callable[[], bool],
    ) -> Iterator[Completion]:
        """Continue all prompts together; each completion is yielded as soon as it ends.

        Temperature 0 takes the likeliest token. When `should_stop` becomes true, asked before every
        token, the responses not finished by then are given up.

        Raises:
            PromptTooLong: at once, when a prompt does not fit.
        """


@dataclass
class _Row:
    index: int
    num_tokens_left: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish_reason: Literal["stop", "length"] | None = None


class TransformersEngine:
    """The default engine: a transformers model in this process, one decoding loop, on CPU or GPU."""

    version: int
    context: int
    tokenizer: Any

    def __init__(self, device: str | None = None) -> None:
        self.device = device or default_device()
        self._model: Any = None
        self._end_tokens: frozenset[int] = frozenset()

    def load(self, path: Path, version: int) -> None:
        """The first call builds the model; later ones read `model.safetensors` into it, which is fast.

        Raises:
            ConfigError: the folder holds no model or no tokenizer.
        """
        weights = path / "model.safetensors"
        if self._model is not None and weights.is_file():
            try:
                safetensors.torch.load_model(self._model, weights, device=self.device)
            except safetensors.SafetensorError as error:
                raise ConfigError(f"{weights}: is damaged: {error}") from error
        else:
            self._model = load_model(path, self.device)
            self.tokenizer = load_tokenizer(path)
            self.context = self._model.config.max_position_embeddings
            self._end_tokens = _end_tokens(self._model, self.tokenizer)
        self.version = version

    def fits(self, prompt_ids: Sequence[int]) -> bool:
        return 0 < len(prompt_ids) < self.context

    def generate(
        self,
        requests: Sequence[Request],
        *,
        temperature: float,
        seed: int,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[Completion]:
        for request in requests:
            if not self.fits(request.prompt_ids):
                raise PromptTooLong(
                    f"A prompt of {len(request.prompt_ids)} tokens does not fit: "
                    f"this model takes 1 to {self.context - 1}."
                )
        return self._decode(requests, temperature, seed, should_stop)

    @torch.inference_mode()
    def _decode(
        self, requests: Sequence[Request], temperature: float, seed: int, should_stop: Callable[[], bool]
    ) -> Iterator[Completion]:
        generator = torch.Generator(self.device).manual_seed(seed)
        rows = [
            _Row(index, min(request.max_new_tokens, self.context - len(request.prompt_ids)))
            for index, request in enumerate(requests)
        ]
        tokens, mask = self._left_padded([request.prompt_ids for request in requests])
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        cache = DynamicCache(config=self._model.config)
        while rows and not should_stop():
            logits = self._model(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                logits_to_keep=1,
            ).logits[:, -1]
            tokens, logprobs = _sample(logits, temperature, generator)
            yield from self._record(rows, tokens, logprobs)
            unfinished = [i for i, row in enumerate(rows) if row.finish_reason is None]
            if 2 * len(unfinished) <= len(rows):
                # Removing rows copies the cache, so it waits until it halves the work.
                keep = torch.tensor(unfinished, dtype=torch.long, device=self.device)
                rows = [rows[i] for i in unfinished]
                tokens, mask = tokens[keep], mask[keep]
                cache.batch_select_indices(keep)
            positions = mask.sum(1, keepdim=True)
            mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)

    def _record(self, rows: list[_Row], tokens: Tensor, logprobs: Tensor) -> list[Completion]:
        """Append a token to each unfinished row; the rows that it finishes."""
        finished = []
        for row, token, logprob in zip(rows, tokens[:, 0].tolist(), logprobs[:, 0].tolist(), strict=True):
            if row.finish_reason is not None:
                continue
            row.token_ids.append(token)
            row.logprobs.append(logprob)
            row.versions.append(self.version)
            row.num_tokens_left -= 1
            if token in self._end_tokens:
                row.finish_reason = "stop"
            elif row.num_tokens_left <= 0:
                row.finish_reason = "length"
            else:
                continue
            finished.append(
                Completion(row.index, row.token_ids, row.logprobs, row.versions, row.finish_reason)
            )
        return finished

    def _left_padded(self, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Token ids and attention mask, [B, P]; the padding's token does not matter, it is never seen."""
        width = max(map(len, prompts), default=0)
        tokens = np.zeros((len(prompts), width), np.int64)
        mask = np.zeros((len(prompts), width), np.int64)
        for row, prompt in enumerate(prompts):
            tokens[row, width - len(prompt) :] = prompt
            mask[row, width - len(prompt) :] = 1
        return torch.from_numpy(tokens).to(self.device), torch.from_numpy(mask).to(self.device)


def _sample(logits: Tensor, temperature: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sampled tokens and their log-probabilities, [B, 1] each, from logits [B, V]."""
    logprobs = torch.log_softmax(logits.float() / (temperature or 1.0), dim=-1)
    if temperature:
        tokens = torch.multinomial(logprobs.exp(), 1, generator=generator)
    else:
        tokens = logprobs.argmax(dim=-1, keepdim=True)
    return tokens, logprobs.gather(-1, tokens)


def _end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """The tokenizer's end token and those of the model's generation settings (chat models have more)."""
    configured = model.generation_config.eos_token_id
    more = configured if isinstance(configured, list) else [configured]
    return frozenset(token for token in [tokenizer.eos_token_id, *more] if token is not None)
