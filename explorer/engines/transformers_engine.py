"""The default engine: a transformers model in this process, with continuous batching, on CPU or GPU.

A thread of its own decodes. Between two tokens it takes new requests into the batch and drops rows that have
ended, so that no response waits for a longer one. New weights arrive between two tokens as well: the keys and
values of all rows are computed again, so that each token is sampled by one version over its whole context.

Shapes: B rows in the batch, L columns of the longest of them, V the vocabulary.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
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
from trinity_db.explorer.engines import kv_cache
from trinity_db.explorer.engines.engine import Completion, EngineFailed, Request
from trinity_db.explorer.engines.folder import end_tokens
from trinity_db.explorer.engines.stops import has_stopped
from trinity_db.models import context_of, default_device, load_model, load_tokenizer
from trinity_db.prompts import PromptTooLong

MAX_TOKENS = 65_536  # of keys and values in memory: 1.6 GB for a model of 0.5 B parameters, in float32
ADMIT_SHARE = 4  # new rows wait until they are one in so many: each admission copies the cache
SAMPLED_AT_ONCE = 1 << 23  # probabilities that are summed up in float64 together, 64 MB


@dataclass(eq=False)
class _Row:
    request: Request
    limit: int
    """Tokens that it may have."""
    random: np.random.Generator
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Completion]
    """Of the loop, in whose thread it is given."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    ended: bool = False
    """Answered, or given up by its caller."""

    @property
    def longest(self) -> int:
        """Columns that it may take."""
        return len(self.request.prompt_ids) + self.limit


@dataclass
class _Batch:
    """Rows that are decoded together; one that has ended stays until half of them have."""

    rows: list[_Row]
    tokens: Tensor
    """[B, 1] The newest token of each row, which the cache does not hold yet."""
    mask: Tensor
    """[B, L] Which cached columns hold a token of the row."""
    cache: DynamicCache


@dataclass
class _Loading:
    path: Path
    version: int
    done: Future[None] = field(default_factory=Future)


class TransformersEngine:
    """One model and its tokenizer; the model is built once, and takes the weights of each version.

    Args:
        max_tokens: rows of the batch times the columns that the longest of them may take; further requests
            wait. A single request is taken in any case.
        dtype: of weights, keys and values; the logits of a token become float32 before it is sampled.
    """

    version: int
    context: int
    tokenizer: Any

    def __init__(
        self, device: str | None = None, max_tokens: int = MAX_TOKENS, dtype: str = "float32"
    ) -> None:
        self.device = device or default_device()
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._max_tokens = max_tokens
        self._model: Any = None
        self._vocabulary = 0
        """Tokens that the model knows."""
        self._end_tokens: frozenset[int] = frozenset()
        self._batch: _Batch | None = None
        self._changed = threading.Condition()
        """Guards what follows."""
        self._unanswered: set[_Row] = set()
        self._waiting: deque[_Row] = deque()
        self._loads: deque[_Loading] = deque()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._closed = False
        self._is_waking = False
        """Whether the thread will be woken for what it was asked last."""

    async def load(self, path: Path, version: int) -> None:
        """The first call builds the model; later ones read `model.safetensors` into it, which is fast."""
        loading = _Loading(path, version)
        with self._asking():
            self._loads.append(loading)
        await asyncio.shield(asyncio.wrap_future(loading.done))

    async def generate(self, request: Request) -> Completion:
        length = len(request.prompt_ids)
        if not 0 < length < self.context:
            raise PromptTooLong(
                f"A prompt of {length} tokens does not fit: this model takes 1 to {self.context - 1}."
            )
        if not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < self._vocabulary:
            raise ValueError(
                f"The prompt has a token that is none of this model's: 0 to {self._vocabulary - 1}."
            )
        limit = min(request.max_new_tokens, self.context - length)
        loop = asyncio.get_running_loop()
        random = np.random.Generator(np.random.Philox(key=request.seed))
        row = _Row(request, limit, random, loop, loop.create_future())
        with self._asking():
            self._waiting.append(row)
            self._unanswered.add(row)
        try:
            return await row.answer
        finally:
            row.ended = True
            self._unanswered.discard(row)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        self._model = None

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Within a `with`, the caller may put work before the thread, which is started and woken.

        It is woken when the event loop has gone through all that is ready, so that requests which many
        attempts make at once are taken into the batch together.
        """
        with self._changed:
            if self._failure is not None:
                raise EngineFailed(f"The engine has failed: {self._failure}") from self._failure
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
                self._thread.start()
            yield
            if not self._is_waking:
                self._is_waking = True
                asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        with self._changed:
            self._is_waking = False
            self._changed.notify()

    def _run(self) -> None:
        try:
            while self._has_work():
                self._load_what_is_asked()
                self._admit()
                if self._batch is not None:
                    self._decode(self._batch)
        except BaseException as error:  # as when memory is short: the callers say what happened
            self._fail(error)
        else:
            self._fail(RuntimeError("it was closed"))

    def _has_work(self) -> bool:
        """Wait until there is something to do; False when the engine is closed."""
        with self._changed:
            while not self._closed:
                can_sample = self._model is not None and (self._batch or self._waiting)
                if can_sample or self._loads:
                    return True
                self._changed.wait()
        return False

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = error
            rows = [row for row in list(self._unanswered) if not row.ended]
            loads = list(self._loads)
            self._waiting.clear()
            self._loads.clear()
            self._batch = None
        failure = EngineFailed(f"The engine has failed: {error}")
        _give(dict.fromkeys(rows, failure))
        for loading in loads:
            loading.done.set_exception(failure)

    def _load_what_is_asked(self) -> None:
        with self._changed:
            if not self._loads:
                return
            loading = self._loads.popleft()
            if self._batch is not None:  # begun again by the new weights, over all tokens that they have
                self._waiting.extendleft(reversed([row for row in self._batch.rows if not row.ended]))
                self._batch = None
        try:
            self._load(loading.path, loading.version)
        except Exception as error:
            loading.done.set_exception(error)
        else:
            loading.done.set_result(None)

    def _load(self, path: Path, version: int) -> None:
        if not self._takes(path / "model.safetensors"):
            self._model = None  # rather than two in memory
            model, self.tokenizer = load_model(path, self.device), load_tokenizer(path)
            self.context = context_of(model.config)
            self._vocabulary = model.get_input_embeddings().num_embeddings
            self._end_tokens = end_tokens(self.tokenizer, model.generation_config)
            # Last: a folder that is pruned meanwhile leaves no model without tokenizer.
            self._model = model.to(self._dtype)
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

    @torch.inference_mode()
    def _admit(self) -> None:
        """Take waiting requests into the batch, as many as there is memory for."""
        running = [row for row in self._batch.rows if not row.ended] if self._batch else []
        with self._changed:
            if self._model is None or ADMIT_SHARE * len(self._waiting) < len(running):
                return
            admitted: list[_Row] = []
            longest = max((row.longest for row in running), default=0)
            while self._waiting:
                longest = max(longest, self._waiting[0].longest)
                is_first = not running and not admitted
                if (len(running) + len(admitted) + 1) * longest > self._max_tokens and not is_first:
                    break
                row = self._waiting.popleft()
                if not row.ended:
                    admitted.append(row)
        if not admitted:
            return
        if self._batch is not None and (not running or not kv_cache.is_known(self._batch.cache)):
            self._batch, admitted = None, running + admitted
        fresh = self._begun(admitted)
        if self._batch is None:
            self._batch = fresh
        else:
            self._keep(self._batch, running)
            _join(self._batch, fresh)

    def _begun(self, rows: list[_Row]) -> _Batch:
        """A batch of these rows, each with one more token."""
        tokens, mask = self._left_padded([[*row.request.prompt_ids, *row.token_ids] for row in rows])
        batch = _Batch(rows, tokens, mask, DynamicCache(config=self._model.config))
        self._advance(batch, (mask.cumsum(1) - 1).clamp(min=0))
        return batch

    @torch.inference_mode()
    def _decode(self, batch: _Batch) -> None:
        """One more token for each row."""
        running = [row for row in batch.rows if not row.ended]  # asked once: callers may give up at any time
        if not running:
            self._batch = None
            return
        if 2 * len(running) <= len(batch.rows):  # dropping rows copies the cache, so it waits until it halves
            if not kv_cache.is_known(batch.cache):
                self._batch = self._begun(running)
                return
            self._keep(batch, running)
        batch.mask = torch.cat([batch.mask, batch.mask.new_ones(len(batch.rows), 1)], dim=1)
        self._advance(batch, batch.mask.sum(1, keepdim=True) - 1)

    def _advance(self, batch: _Batch, positions: Tensor) -> None:
        """Run the model over `batch.tokens`, sample one token a row, and answer the requests that it ends."""
        logits = self._model(
            input_ids=batch.tokens,
            attention_mask=batch.mask,
            position_ids=positions,
            past_key_values=batch.cache,
            logits_to_keep=1,
        ).logits[:, -1]
        batch.tokens, logprobs = _sample(logits, batch.rows)
        new = zip(batch.rows, batch.tokens[:, 0].tolist(), logprobs[:, 0].tolist(), strict=True)
        answers: dict[_Row, Completion | Exception] = {}
        for row, token, logprob in new:
            if not row.ended and (completion := self._append(row, token, logprob)):
                row.ended = True
                answers[row] = completion
        _give(answers)

    def _append(self, row: _Row, token: int, logprob: float) -> Completion | None:
        """Add a token to a row; its completion, where that is the last one."""
        row.token_ids.append(token)
        row.logprobs.append(logprob)
        row.versions.append(self.version)
        reason: Literal["stop", "length"]
        if token in self._end_tokens or has_stopped(self.tokenizer, row.token_ids, row.request.stop):
            reason = "stop"
        elif len(row.token_ids) >= row.limit:
            reason = "length"
        else:
            return None
        return Completion(row.token_ids, row.logprobs, row.versions, reason)

    def _keep(self, batch: _Batch, running: Sequence[_Row]) -> None:
        """Keep these rows, and the columns in which one of them has a token."""
        going_on = set(running)
        kept = [place for place, row in enumerate(batch.rows) if row in going_on]
        rows = torch.tensor(kept, dtype=torch.long, device=self.device)
        mask = batch.mask[rows]
        padding = int(mask.any(0).int().argmax())
        kv_cache.select(batch.cache, rows, padding)
        batch.rows = [*running]
        batch.tokens, batch.mask = batch.tokens[rows], mask[:, padding:]

    def _left_padded(self, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Token ids and attention mask, [B, L]; the padding's token does not matter, it is never seen."""
        width = max(map(len, prompts))
        tokens = np.zeros((len(prompts), width), np.int64)
        mask = np.zeros((len(prompts), width), np.int64)
        for row, prompt in enumerate(prompts):
            tokens[row, width - len(prompt) :] = prompt
            mask[row, width - len(prompt) :] = 1
        return torch.from_numpy(tokens).to(self.device), torch.from_numpy(mask).to(self.device)


def _give(answers: Mapping[_Row, Completion | Exception]) -> None:
    """Answer requests, each loop's all at once: waking a loop costs more than an answer."""

    def give(rows: Sequence[_Row]) -> None:
        for row in rows:
            if row.answer.done():  # given up
                continue
            answer = answers[row]
            if isinstance(answer, Exception):
                row.answer.set_exception(answer)
            else:
                row.answer.set_result(answer)

    for loop in {row.loop for row in answers}:
        with suppress(RuntimeError):  # the loop has ended, and its callers with it
            loop.call_soon_threadsafe(give, [row for row in answers if row.loop is loop])


def _join(batch: _Batch, more: _Batch) -> None:
    """Add the rows of another batch, whose tokens come to stand in the same newest column."""
    kv_cache.join(batch.cache, more.cache)
    width = max(batch.mask.shape[1], more.mask.shape[1])
    masks = [torch.nn.functional.pad(one.mask, (width - one.mask.shape[1], 0)) for one in (batch, more)]
    batch.rows = batch.rows + more.rows
    batch.tokens, batch.mask = torch.cat([batch.tokens, more.tokens]), torch.cat(masks)


def _sample(logits: Tensor, rows: Sequence[_Row]) -> tuple[Tensor, Tensor]:
    """Tokens and their log-probabilities, [B, 1] each, from logits [B, V].

    Each row has random numbers of its own, so that its sample does not depend on the other rows: its token is
    the first at which the summed probabilities exceed its number.
    """
    temperatures = [row.request.temperature or 1.0 for row in rows]
    scale = torch.tensor(temperatures, dtype=torch.float32, device=logits.device)[:, None]
    logprobs = torch.log_softmax(logits.float() / scale, dim=-1)
    tokens = logprobs.argmax(dim=-1, keepdim=True)
    sampled = [place for place, row in enumerate(rows) if row.request.temperature]
    size = max(1, SAMPLED_AT_ONCE // logits.shape[1])
    for first in range(0, len(sampled), size):
        places = sampled[first : first + size]
        numbers = torch.tensor([[rows[place].random.random()] for place in places], dtype=torch.float64)
        summed = logprobs[places].double().exp().cumsum(dim=-1)
        total = summed[:, -1:]
        marks = torch.minimum(numbers.to(logits.device) * total, total.nextafter(torch.zeros_like(total)))
        # Weights that are not finite have no token to sample: then its place lies beyond the last one.
        tokens[places] = torch.searchsorted(summed, marks, right=True).clamp(max=logits.shape[1] - 1)
    return tokens, logprobs.gather(-1, tokens)
