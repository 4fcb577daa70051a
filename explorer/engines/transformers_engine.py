"""The default engine: a transformers model in this process, with continuous batching, on CPU or GPU.

A thread of its own decodes. Between two tokens it takes new requests into the batch and drops rows that have
ended, so that no response waits for a longer one. New weights arrive between two tokens as well: the keys and
values of all rows are computed again, so that each token is sampled by one version over its whole context.
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

from trinity_db.config import DEFAULT_PROMPTS, PromptConfig
from trinity_db.errors import ConfigError
from trinity_db.explorer.engines import kv_cache
from trinity_db.explorer.engines.decoded_rows import Batch, Row, left_padded, sample
from trinity_db.explorer.engines.engine import Completion, EngineFailed, Request
from trinity_db.explorer.engines.folder import end_tokens
from trinity_db.explorer.engines.recorder import Recorder
from trinity_db.explorer.engines.stops import has_stopped
from trinity_db.explorer.engines.trial import decodes_side_by_side
from trinity_db.models import computing_dtype, context_of, default_device, load_model, load_tokenizer
from trinity_db.models.adapter_folder import is_adapter
from trinity_db.models.lora import AdaptedModel
from trinity_db.models.rounding import round_to, seed_names
from trinity_db.prompts import ChatRenderer, PromptTooLong

MAX_TOKENS = 65_536  # of keys and values in memory: 1.6 GB for a model of 0.5 B parameters, in float32
ADMIT_SHARE = 4  # new rows wait until they are one in so many: each admission copies the cache


@dataclass
class _Loading:
    path: Path
    version: int
    done: Future[None] = field(default_factory=Future)


class TransformersEngine:
    """One model and its tokenizer; the model is built once, and takes the weights of each version.

    Of a version that is an adapter it takes the adapted weights, merged with those of the base. For that the
    base stays in main memory, in float32.

    Args:
        max_tokens: rows of the batch times the columns that the longest of them may take; further requests
            wait. A single request is taken in any case.
        dtype: of weights, keys and values, as `computing_dtype` reads it; the logits of a token become
            float32 before it is sampled.
        record_routing: whether responses say which experts were chosen.
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
        """Of the model, if its choice of experts is recorded."""
        self._model: Any = None
        self._adapted: AdaptedModel | None = None
        """What the model's weights were merged from, if its version is an adapter."""
        self._whole: Path | None = None
        """The folder that the model's weights were read from, if its version is a whole model."""
        self._vocabulary = 0
        """Tokens that the model knows."""
        self._end_tokens: frozenset[int] = frozenset()
        self._is_alone: bool | None = None
        """Whether each row is decoded alone, since neighbours change it. None before the first model."""
        self._batch: Batch | None = None
        self._changed = threading.Condition()
        """Guards what follows."""
        self._unanswered: set[Row] = set()
        self._waiting: deque[Row] = deque()
        self._loads: deque[_Loading] = deque()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._closed = False
        self._is_waking = False
        """Whether the thread will be woken for what it was asked last."""

    async def load(self, path: Path, version: int) -> None:
        """The first call builds the model; later ones read weights or an adapter into it, which is fast."""
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
        row = Row(request, limit, random, loop, loop.create_future())
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
        if is_adapter(path):
            self._load_adapter(path)
        else:
            self._adapted = self._whole = None
            if not self._takes(path / "model.safetensors"):
                self._model = None  # rather than two in memory
                # In float32 it may be too large for a GPU.
                self._build(load_model(path, "cpu"), path)
            self._whole = path
        self.version = version

    def _load_adapter(self, path: Path) -> None:
        """Merge an adapter into the model. If the model is not of this base, build it first."""
        if self._adapted is not None and self._adapted.fits(path):
            self._adapted.load(path)
        else:
            adapted = AdaptedModel(path)
            if self._whole != adapted.base:
                self._model = self._adapted = None
                self._build(load_model(adapted.base, "cpu"), adapted.base)
            self._adapted, self._whole = adapted, None
        self._adapted.merge_into(self._model)

    def _build(self, model: Any, path: Path) -> None:
        """Use another model, with the tokenizer in a folder."""
        self.tokenizer = load_tokenizer(path)
        for config in (model.config, model.config.get_text_config()):
            # Trained with the loss of routers, which transformers would compute at each token, or not at
            # all: it takes the mask of a whole row for that of the token.
            config.output_router_logits = False
        self.context = context_of(model.config)
        if self._is_alone is None:
            self._is_alone = not decodes_side_by_side(model)
        if self._records_routing:
            self._recorder = Recorder(model)
        self._vocabulary = model.get_input_embeddings().num_embeddings
        self._end_tokens = end_tokens(ChatRenderer(self.tokenizer, self._prompts), model.generation_config)
        seeds = seed_names(model)
        for name, parameter in model.named_parameters():
            parameter.data = round_to(parameter.data, seeds[name], self._dtype)
        for name, buffer in model.named_buffers():
            # In 16 bits the frequencies of rotary embeddings turn positions of a thousand and more.
            if buffer.is_floating_point() and not name.endswith("inv_freq"):
                buffer.data = buffer.data.to(self._dtype)
        # Last: a folder that is pruned meanwhile leaves no model without tokenizer.
        self._model = model.to(self.device)

    def _takes(self, weights: Path) -> bool:
        """Read weights into the model, if there is one and they have the names of its own.

        Some models are saved by names of an older transformers, as those whose language model is a part.
        """
        if self._model is None or not weights.is_file():
            return False
        try:
            found = load_file(weights, device=self.device)
        except safetensors.SafetensorError as error:
            raise ConfigError(f"{weights}: is damaged: {error}") from error
        own, seeds = self._model.state_dict(), seed_names(self._model)
        taken = {seeds.get(name, name) for name in found}
        if len(taken) < len(found) or taken != {seeds.get(name, name) for name in own}:
            return False
        if any(own[name].shape != weight.shape for name, weight in found.items()):
            return False
        for name, weight in found.items():
            own[name].copy_(round_to(weight, seeds[name], own[name].dtype) if name in seeds else weight)
        return True

    @torch.inference_mode()
    def _admit(self) -> None:
        """Take waiting requests into the batch, as many as there is memory for."""
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
        """A batch of these rows, each with one more token."""
        tokens, mask = left_padded([[*row.request.prompt_ids, *row.token_ids] for row in rows], self.device)
        batch = Batch(rows, tokens, mask, DynamicCache(config=self._model.config))
        self._advance(batch, (mask.cumsum(1) - 1).clamp(min=0))
        return batch

    @torch.inference_mode()
    def _decode(self, batch: Batch) -> None:
        """One more token for each row."""
        running = [row for row in batch.rows if not row.ended]  # asked once: callers may give up at any time
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

    def _advance(self, batch: Batch, positions: Tensor) -> None:
        """Run the model over `batch.tokens`, sample one token a row, and answer the requests that it ends."""
        rows = [(row.routing, row.length) for row in batch.rows]
        with self._recorder.recording(batch.tokens.shape, rows) if self._recorder else nullcontext():
            logits = self._model(
                input_ids=batch.tokens,
                attention_mask=batch.mask,
                position_ids=positions,
                past_key_values=batch.cache,
                logits_to_keep=1,
            ).logits[:, -1]
        batch.tokens, logprobs = sample(logits, batch.rows)
        new = zip(batch.rows, batch.tokens[:, 0].tolist(), logprobs[:, 0].tolist(), strict=True)
        answers: dict[Row, Completion | Exception] = {}
        for row, token, logprob in new:
            if not row.ended and (completion := self._append(row, token, logprob)):
                row.ended = True
                answers[row] = completion
        _give(answers)

    def _append(self, row: Row, token: int, logprob: float) -> Completion | None:
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
        return Completion(row.token_ids, row.logprobs, row.versions, reason, row.routing.whole)


def _give(answers: Mapping[Row, Completion | Exception]) -> None:
    """Answer requests, each loop's all at once: waking a loop costs more than an answer."""

    def give(rows: Sequence[Row]) -> None:
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
