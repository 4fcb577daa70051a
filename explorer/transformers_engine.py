"""The default engine: a transformers model in this process, one decoding loop, on CPU or GPU.

Shapes: B sequences still being written, P the longest prompt, V the vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor
from transformers import DynamicCache

from trinity_db.errors import ConfigError
from trinity_db.explorer.engine import Completion, Request
from trinity_db.models import context_of, default_device, load_model, load_tokenizer
from trinity_db.prompts import PromptTooLong


@dataclass
class _Row:
    index: int
    num_tokens_left: int
    is_greedy: bool
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish_reason: Literal["stop", "length"] | None = None


class TransformersEngine:
    """One model and its tokenizer; the model is built once, and takes the weights of each version."""

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
        if not self._takes(path / "model.safetensors"):
            self._model = None  # rather than two in memory
            model, self.tokenizer = load_model(path, self.device), load_tokenizer(path)
            self.context = context_of(model.config)
            self._end_tokens = _end_tokens(model, self.tokenizer)
            self._model = (
                model  # last: a folder that is pruned meanwhile leaves no model without its tokenizer
            )
        self.version = version

    def _takes(self, weights: Path) -> bool:
        """Read weights into the model, if there is one and they have the names of its own.

        Some models are saved by names of an older transformers, as those whose language model is a part.
        """
        if self._model is None or not weights.is_file():
            return False
        try:
            safetensors.torch.load_model(self._model, weights, device=self.device)
        except safetensors.SafetensorError as error:
            raise ConfigError(f"{weights}: is damaged: {error}") from error
        except RuntimeError:
            return False
        return True

    def fits(self, prompt_ids: Sequence[int]) -> bool:
        return 0 < len(prompt_ids) < self.context

    def generate(
        self,
        requests: Sequence[Request],
        *,
        temperature: float,
        seed: int,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[list[Completion]]:
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
    ) -> Iterator[list[Completion]]:
        generator = torch.Generator(self.device).manual_seed(seed)
        rows = [
            _Row(
                index,
                min(request.max_new_tokens, self.context - len(request.prompt_ids)),
                request.greedy or temperature == 0,
            )
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
            greedy = [place for place, row in enumerate(rows) if row.is_greedy]
            tokens, logprobs = _sample(logits, temperature, greedy, generator)
            if finished := self._record(rows, tokens, logprobs):
                yield finished
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


def _sample(
    logits: Tensor, temperature: float, greedy: Sequence[int], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Tokens and their log-probabilities, [B, 1] each, from logits [B, V]; in `greedy` rows the likeliest."""
    scale = logits.new_full((len(logits), 1), temperature or 1.0, dtype=torch.float32)
    if greedy:
        scale[greedy] = 1.0
    logprobs = torch.log_softmax(logits.float() / scale, dim=-1)
    if len(greedy) < len(logits):
        tokens = torch.multinomial(logprobs.exp(), 1, generator=generator)
        if greedy:
            tokens[greedy] = logprobs[greedy].argmax(dim=-1, keepdim=True)
    else:
        tokens = logprobs.argmax(dim=-1, keepdim=True)
    return tokens, logprobs.gather(-1, tokens)


def _end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """The tokenizer's end token and those of the model's generation settings (chat models have more)."""
    configured = model.generation_config.eos_token_id
    more = configured if isinstance(configured, list) else [configured]
    return frozenset(token for token in [tokenizer.eos_token_id, *more] if token is not None)
