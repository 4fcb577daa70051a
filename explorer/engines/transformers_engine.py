"""The default engine: a transformers model in this process, with continuous batching, on CPU or GPU.

A separate thread decodes. Between two tokens it adds new requests to the batch and drops finished rows, so
that no response waits for a longer one. New weights are loaded between two tokens as well: the KV cache of
all rows is then recomputed, so that each token is sampled by one version over its whole context.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import DynamicCache

from trinity_db.config.shared import DEFAULT_PROMPTS, PromptConfig
from trinity_db.errors import ConfigError
from trinity_db.explorer.engines import kv_cache
from trinity_db.explorer.engines.decoded_rows import Batch, Row, left_padded, sample
from trinity_db.explorer.engines.engine import Completion, EngineFailed, Request, RequestRefused, Scores
from trinity_db.explorer.engines.folder import end_tokens
from trinity_db.explorer.engines.recorder import Recorder
from trinity_db.explorer.engines.settings import TransformersConfig
from trinity_db.explorer.engines.stops import has_stopped
from trinity_db.explorer.engines.trial import decodes_side_by_side
from trinity_db.models import (
    computing_dtype,
    context_of,
    default_device,
    end_tokens_of,
    load_adapted,
    load_model,
    load_tokenizer,
)
from trinity_db.models.adapter_folder import is_adapter
from trinity_db.models.chat.prompts import ChatRenderer, PromptTooLong
from trinity_db.models.layout import decoder_of
from trinity_db.models.lora import AdaptedModel
from trinity_db.models.rounding import round_to, seed_names

MAX_TOKENS = 65_536  # KV cache capacity: 1.6 GB for a model of 0.5 B parameters, in float32
SCORED = 256  # tokens whose logits are computed at a time: 155 MB for a vocabulary of 152,000
ADMIT_SHARE = 4  # new rows wait until they are 1/4 of the running ones: each admission copies the cache


@dataclass
class _Loading:
    path: Path
    version: int
    done: Future[None] = field(default_factory=Future)


def create(settings: TransformersConfig, prompts: PromptConfig, record_routing: bool) -> "TransformersEngine":
    """Create the engine from its settings."""
    return TransformersEngine(
        max_tokens=settings.max_tokens, dtype=settings.dtype, prompts=prompts, record_routing=record_routing
    )


@dataclass
class _Scoring:
    token_ids: Sequence[int]
    done: Future[Scores] = field(default_factory=Future)


class TransformersEngine:
    """Holds one model and its tokenizer. The model is built once, and loads the weights of each version.

    If a version is an adapter, its weights are merged with those of the base, which stays in main memory in
    float32.

    Args:
        max_tokens: KV cache capacity: rows of the batch times the columns that the longest may take; further
            requests wait. A single request is always admitted.
        dtype: number format of weights and KV cache (see `computing_dtype`); logits are converted to
            float32 before sampling.
        record_routing: whether responses include the chosen experts.
    """

    version: int
    context: int
    tokenizer: Any

    def __init__(
        self,
        device: str | None = None,
        max_tokens: int = MAX_TOKENS,
        dtype: str = "auto",
        *,
        prompts: PromptConfig = DEFAULT_PROMPTS,
        record_routing: bool = False,
    ) -> None:
        self.device = device or default_device()
        self._dtype: torch.dtype = computing_dtype(dtype, self.device)
        self.dtype = str(self._dtype).removeprefix("torch.")
        self._max_tokens = max_tokens
        self._prompts = prompts
        self._records_routing = record_routing
        self._recorder: Recorder | None = None
        """Records the chosen experts, if enabled."""
        self._model: Any = None
        self._adapted: AdaptedModel | None = None
        """Adapter and base that the model's weights were merged from, if its version is an adapter."""
        self._whole: Path | None = None
        """Folder that the model's weights were read from, if its version is a whole model."""
        self._vocabulary = 0
        """Size of the model's vocabulary."""
        self._end_tokens: frozenset[int] = frozenset()
        self._is_alone: bool | None = None
        """Whether each row must be decoded alone, since batching changes its logits. None before the first
        model."""
        self._batch: Batch | None = None
        self._changed = threading.Condition()
        """Guards the attributes below."""
        self._unanswered: set[Row] = set()
        self._waiting: deque[Row] = deque()
        self._loads: deque[_Loading] = deque()
        self._scorings: deque[_Scoring] = deque()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._closed = False
        self._is_waking = False
        """Whether a wake-up of the thread is already scheduled."""

    async def load(self, path: Path, version: int) -> None:
        """Build the model in the first call; later, read weights or an adapter into it, which is fast."""
        loading = _Loading(path, version)
        with self._asking():
            self._loads.append(loading)
        await asyncio.shield(asyncio.wrap_future(loading.done))

    async def generate(self, request: Request) -> Completion:
        length = len(request.prompt_ids)
        if not 0 < length < self.context:
            raise PromptTooLong(
                f"A prompt of {length} tokens does not fit: this model accepts 1 to {self.context - 1}."
            )
        self._check_tokens(request.prompt_ids)
        limit = min(request.max_new_tokens, self.context - length)
        loop = asyncio.get_running_loop()
        random = np.random.Generator(np.random.Philox(key=request.seed))
        row = Row(request, limit, random, loop, loop.create_future())
        with self._asking():
            self._waiting.append(row)
            self._unanswered.add(row)
        try:
            return await row.answer
        finally:
            row.ended = True
            self._unanswered.discard(row)

    async def score(self, token_ids: Sequence[int]) -> Scores:
        """Compute log-probabilities of given tokens, in one pass over them alone."""
        if not 0 < len(token_ids) <= self.context:
            raise PromptTooLong(
                f"{len(token_ids)} tokens do not fit: this model accepts 1 to {self.context}."
            )
        self._check_tokens(token_ids)
        scoring = _Scoring(token_ids)
        with self._asking():
            self._scorings.append(scoring)
        return await asyncio.shield(asyncio.wrap_future(scoring.done))

    def _check_tokens(self, token_ids: Sequence[int]) -> None:
        if not 0 <= min(token_ids) <= max(token_ids) < self._vocabulary:
            raise RequestRefused(
                f"The prompt has a token outside of this model's vocabulary: 0 to {self._vocabulary - 1}."
            )

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        self._model = None

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Within this `with`, the caller may queue work for the thread, which is started and woken.

        The wake-up waits until the event loop has run everything that is ready, so that requests made by many
        attempts at once enter the batch together.
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
                self._score_what_is_asked()
                self._admit()
                if self._batch is not None:
                    self._decode(self._batch)
        except BaseException as error:  # such as out of memory; passed on to the callers
            self._fail(error)
        else:
            self._fail(RuntimeError("it was closed"))

    def _has_work(self) -> bool:
        """Wait until there is something to do; False when the engine is closed."""
        with self._changed:
            while not self._closed:
                has_requests = self._batch or self._waiting or self._scorings
                if self._loads or (self._model is not None and has_requests):
                    return True
                self._changed.wait()
        return False

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = error
            rows = [row for row in list(self._unanswered) if not row.ended]
            unanswered: list[_Loading | _Scoring] = [*self._loads, *self._scorings]
            self._waiting.clear()
            self._loads.clear()
            self._scorings.clear()
            self._batch = None
        failure = EngineFailed(f"The engine has failed: {error}")
        _give(dict.fromkeys(rows, failure))
        for job in unanswered:
            job.done.set_exception(failure)

    def _load_what_is_asked(self) -> None:
        with self._changed:
            if not self._loads:
                return
            loading = self._loads.popleft()
            if self._batch is not None:  # recompute all tokens so far with the new weights
                self._waiting.extendleft(reversed([row for row in self._batch.rows if not row.ended]))
                self._batch = None
        try:
            self._load(loading.path, loading.version)
        except Exception as error:
            loading.done.set_exception(error)
        else:
            loading.done.set_result(None)

    @torch.inference_mode()
    def _score_what_is_asked(self) -> None:
        """Compute the next log-probabilities of given tokens."""
        with self._changed:
            if self._model is None or not self._scorings:
                return
            scoring = self._scorings[0]  # stays until it is done: `_fail` answers what is left
        ids = torch.tensor([scoring.token_ids], device=self.device)
        logprobs: list[float] = []
        likeliest: list[tuple[int, float]] = []
        for logits, tokens in zip(self._logits_of(ids), torch.split(ids[0, 1:], SCORED), strict=True):
            normed = logits.float().log_softmax(-1)
            logprobs += normed.gather(1, tokens[:, None])[:, 0].tolist()
            best = normed.max(-1)
            likeliest += zip(best.indices.tolist(), best.values.tolist(), strict=True)
        with self._changed:
            self._scorings.popleft()
        scoring.done.set_result(Scores(logprobs, likeliest))

    def _logits_of(self, ids: Tensor) -> Iterator[Tensor]:
        """[n, V] Yield the logits of tokens [1, T] except the last, `SCORED` tokens at a time.

        Those of a long text at once take more memory than a large model. The model's own code computes them
        from hidden states that its decoder computed before, as it may scale or cap them.
        """
        decoder = decoder_of(self._model)
        states = decoder(input_ids=ids, use_cache=False)
        decoder.forward = lambda *_, **__: states
        try:
            for columns in torch.split(torch.arange(ids.shape[1] - 1, device=ids.device), SCORED):
                yield self._model(input_ids=ids, use_cache=False, logits_to_keep=columns).logits[0]
        finally:
            del decoder.forward

    def _load(self, path: Path, version: int) -> None:
        if is_adapter(path):
            self._load_adapter(path)
        else:
            self._adapted = self._whole = None
            if not self._takes(path / "model.safetensors"):
                self._model = None  # free it first: two may not fit in memory
                # Load on the CPU: in float32 it may be too large for a GPU.
                self._build(load_model(path, "cpu"), path)
            self._whole = path
        self.version = version

    def _load_adapter(self, path: Path) -> None:
        """Merge an adapter into the model. If the model has another base, build the base first."""
        if self._adapted is not None and self._adapted.fits(path):
            self._adapted.load(path)
        else:
            adapted = load_adapted(path)
            if self._whole != adapted.base:
                self._model = self._adapted = None
                self._build(load_model(adapted.base, "cpu"), adapted.base)
            self._adapted, self._whole = adapted, None
        self._adapted.merge_into(self._model)

    def _build(self, model: Any, path: Path) -> None:
        """Switch to another model, with the tokenizer in a folder."""
        self.tokenizer = load_tokenizer(path)
        for config in (model.config, model.config.get_text_config()):
            # A model trained with a router loss would compute it for each token, or fail, since transformers
            # applies the attention mask of the whole row to the token.
            config.output_router_logits = False
        self.context = context_of(model.config)
        if self._is_alone is None:
            self._is_alone = not decodes_side_by_side(model)
        if self._records_routing:
            self._recorder = Recorder(model)
        self._vocabulary = model.get_input_embeddings().num_embeddings
        self._end_tokens = end_tokens(
            ChatRenderer(self.tokenizer, self._prompts), end_tokens_of(model.generation_config)
        )
        seeds = seed_names(model)
        for name, parameter in model.named_parameters():
            parameter.data = round_to(parameter.data, seeds[name], self._dtype)
        for name, buffer in model.named_buffers():
            # Rotary frequencies in 16 bits are too imprecise for positions of a thousand and more.
            if buffer.is_floating_point() and not name.endswith("inv_freq"):
                buffer.data = buffer.data.to(self._dtype)
        # Set it last: if the folder is pruned in between, no model is left without a tokenizer.
        self._model = model.to(self.device)

    def _takes(self, weights: Path) -> bool:
        """Read weights into the model. False without a model, or if names or shapes differ.

        Some models are saved with names of an older transformers, such as those with a language model as a
        part.
        """
        if self._model is None or not weights.is_file():
            return False
        try:
            loaded = load_file(weights, device=self.device)
        except safetensors.SafetensorError as error:
            raise ConfigError(f"{weights}: is corrupted: {error}") from error
        own, seeds = self._model.state_dict(), seed_names(self._model)
        taken = {seeds.get(name, name) for name in loaded}
        if len(taken) < len(loaded) or taken != {seeds.get(name, name) for name in own}:
            return False
        if any(own[name].shape != weight.shape for name, weight in loaded.items()):
            return False
        for name, weight in loaded.items():
            own[name].copy_(round_to(weight, seeds[name], own[name].dtype) if name in seeds else weight)
        return True

    @torch.inference_mode()
    def _admit(self) -> None:
        """Move waiting requests into the batch, as far as the KV cache allows."""
        running = [row for row in self._batch.rows if not row.ended] if self._batch else []
        with self._changed:
            if self._model is None or ADMIT_SHARE * len(self._waiting) < len(running):
                return
            admitted: list[Row] = []
            longest = max((row.longest for row in running), default=0)
            while self._waiting:
                longest = max(longest, self._waiting[0].longest)
                is_full = (len(running) + len(admitted) + 1) * longest > self._max_tokens
                if (running or admitted) and (is_full or self._is_alone):
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
            self._batch.keep(running)
            self._batch.join(fresh)

    def _begun(self, rows: list[Row]) -> Batch:
        """Build a batch of these rows, and sample one token for each.

        Rows with the same tokens, such as the members of a group at their start, are computed once.
        """
        cache = DynamicCache(config=self._model.config)
        contexts = [(*row.request.prompt_ids, *row.token_ids) for row in rows]
        distinct = list(dict.fromkeys(contexts)) if kv_cache.is_known(cache) else contexts
        places = {context: index for index, context in enumerate(distinct)}
        tokens, mask = left_padded(distinct, self.device)
        batch = Batch(rows, tokens, mask, cache)
        copies = [places[context] for context in contexts] if len(distinct) < len(rows) else None
        self._advance(batch, (mask.cumsum(1) - 1).clamp(min=0), copies)
        return batch

    @torch.inference_mode()
    def _decode(self, batch: Batch) -> None:
        """Sample one more token for each row."""
        running = [row for row in batch.rows if not row.ended]  # read once: callers may give up at any time
        if not running:
            self._batch = None
            return
        if 2 * len(running) <= len(batch.rows):  # dropping rows copies the cache, so it waits until it halves
            if not kv_cache.is_known(batch.cache):
                self._batch = self._begun(running)
                return
            batch.keep(running)
        batch.mask = torch.cat([batch.mask, batch.mask.new_ones(len(batch.rows), 1)], dim=1)
        self._advance(batch, batch.mask.sum(1, keepdim=True) - 1)

    def _advance(self, batch: Batch, positions: Tensor, copies: Sequence[int] | None = None) -> None:
        """Run the model on `batch.tokens`, sample one token per row, and answer finished requests.

        Args:
            copies: index of the sequence in `batch.tokens` that each row begins with. None: its own.
        """
        rows = [(row.routing, row.length) for row in batch.rows]
        recorder = self._recorder
        with recorder.recording(batch.tokens.shape, rows, copies) if recorder else nullcontext():
            logits = self._model(
                input_ids=batch.tokens,
                attention_mask=batch.mask,
                position_ids=positions,
                past_key_values=batch.cache,
                logits_to_keep=1,
            ).logits[:, -1]
        if copies is not None:
            index = torch.tensor(copies, device=logits.device)
            kv_cache.select(batch.cache, index, padding=0)
            batch.mask, logits = batch.mask[index], logits[index]
        batch.tokens, logprobs = sample(logits, batch.rows)
        new = zip(batch.rows, batch.tokens[:, 0].tolist(), logprobs[:, 0].tolist(), strict=True)
        answers: dict[Row, Completion | Exception] = {}
        for row, token, logprob in new:
            if not row.ended and (completion := self._append(row, token, logprob)):
                row.ended = True
                answers[row] = completion
        _give(answers)

    def _append(self, row: Row, token: int, logprob: float) -> Completion | None:
        """Append a token to a row; return its completion if it is finished."""
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
        return Completion(row.token_ids, row.logprobs, row.versions, reason, row.routing.whole)


def _give(answers: Mapping[Row, Completion | Exception]) -> None:
    """Answer requests, all of an event loop at once: waking a loop costs more than an answer."""

    def give(rows: Sequence[Row]) -> None:
        for row in rows:
            if row.answer.done():  # cancelled
                continue
            answer = answers[row]
            if isinstance(answer, Exception):
                row.answer.set_exception(answer)
            else:
                row.answer.set_result(answer)

    for loop in {row.loop for row in answers}:
        with suppress(RuntimeError):  # the loop has been closed, with its callers
            loop.call_soon_threadsafe(give, [row for row in answers if row.loop is loop])
