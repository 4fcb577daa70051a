"""The engine `vllm`: a server that this process starts, watches and starts again.

Weights arrive in three steps. The server loads them, while responses are in flight. It confirms them under
a number that no other load has. Then it says how likely it finds the canary of the checkpoint. Only now do
tokens of this load count as tokens of the version. A response with tokens of a load that failed is sampled
anew.

Each call runs in the event loop of its caller. What belongs to a loop lasts as long as calls are under way.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from os import getpid
from pathlib import Path
from typing import Any

import aiohttp

from trinity_db.config import DEFAULT_PROMPTS, PromptConfig
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.explorer.config import VLLMConfig
from trinity_db.explorer.engines import folder
from trinity_db.explorer.engines.dialects import VLLM, ServerUnavailable, ServerUnusable
from trinity_db.explorer.engines.engine import Completion, EngineFailed, Request
from trinity_db.explorer.engines.stops import cut_off
from trinity_db.explorer.engines.vllm import checkpoints
from trinity_db.explorer.engines.vllm.inside.trinity_worker import Tensors
from trinity_db.explorer.engines.vllm.refusals import Load, Refusal, WrongWeights, refusal
from trinity_db.explorer.engines.vllm.server import MODEL, URL, Server, options_of
from trinity_db.models.canary import read as read_canary
from trinity_db.prompts import PromptTooLong
from trinity_db.settings import home

logger = logging.getLogger(__name__)

START_SECONDS = 3600.0  # a large model from a slow disk; a server that cannot start ends by itself
LOAD_SECONDS = 3600.0
LOOK_SECONDS = 0.2  # between two looks at a server that starts
PAUSE_SECONDS = 0.5  # before a request goes again to a server that failed it, and lives
TRIES = 4  # of a request, and starts of a server between two responses
TOLERANCE = {"float32": 0.005, "float16": 0.1, "bfloat16": 0.3}
"""Nats by which the log-probabilities of the canary may differ in the mean, by the server's number format. On
a CPU they differ by 0.00001 in float32, and by 0.05 in bfloat16."""
WARM_UP = (0, 0)  # tokens of a prompt, for a checkpoint without a canary


@dataclass(eq=False)
class _Calls:
    """What calls that are under way in one event loop share."""

    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the server is started, mended or loads weights."""
    loaded: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a server may be there again."""
    under_way: int = 0
    sessions: dict[Server, aiohttp.ClientSession] = field(default_factory=dict)

    def session(self, server: Server) -> aiohttp.ClientSession:
        if server not in self.sessions:
            self.sessions[server] = server.open_session()
        return self.sessions[server]


class VLLMEngine:
    """vLLM's server on this machine, started by `load`.

    Args:
        record_routing: whether responses say which experts were chosen.

    Raises:
        ConfigError: vLLM is not installed; or it is to record choices, and this machine has no GPU.
    """

    version: int
    context: int
    tokenizer: Any

    def __init__(
        self, config: VLLMConfig, prompts: PromptConfig = DEFAULT_PROMPTS, *, record_routing: bool = False
    ) -> None:
        self._prompts = prompts
        self._options = options_of(config, record_routing)
        self.dtype = self._options.dtype
        self._log = home() / "logs" / f"vllm-{getpid()}.log"
        self._dialect = VLLM(MODEL, reload="trinity_load", record_routing=record_routing)
        self._server: Server | None = None
        self._models = checkpoints.Models(self._options.dtype)
        self._tensors: Tensors = {}
        """Of the model that the server was started with. Only such weights fit into it."""
        self._loads = 0
        """Loads so far. Each has its number as the server's label, also when it fails."""
        self._versions: dict[int, int] = {}
        """The version of each load that counts."""
        self._loaded: Load | None = None
        """The last load that counts."""
        self._refused: Refusal | None = None
        """The last load, if it was refused: by the canary, or because the checkpoint is damaged."""
        self._end_tokens: frozenset[int] = frozenset()
        self._starts_in_vain = 0
        """Servers that died since the last response."""
        self._calls: _Calls | None = None

    async def load(self, path: Path, version: int) -> None:
        """The first call starts the server. Others change its weights, or start it anew if they cannot."""
        async with self._call() as calls:
            while True:
                self._check_refused(path, version)
                server = self._server
                # Not under the lock, for which new requests wait: to merge an adapter may take long.
                shown = None if server is None else await self._shown(server, path)
                async with calls.changing:
                    if server is not self._server:  # another one was started meanwhile
                        continue
                    self._check_refused(path, version)
                    if server and shown and await self._reload(calls, server, shown, path, version):
                        return None
                    return await self._start(calls, path, version)

    async def generate(self, request: Request) -> Completion:
        length = len(request.prompt_ids)
        if not 0 < length < self.context:
            raise PromptTooLong(
                f"A prompt of {length} tokens does not fit: this model takes 1 to {self.context - 1}."
            )
        request = replace(request, max_new_tokens=min(request.max_new_tokens, self.context - length))
        async with self._call() as calls:
            for _ in range(TRIES):
                server = await self._usable(calls)
                try:
                    completion = await self._dialect.generate(
                        calls.session(server), URL, request, end_tokens=self._end_tokens, version=0
                    )
                except ServerUnavailable as problem:
                    last: TrinityError = problem
                    await self._mend(calls, server, problem)
                    continue
                except ServerUnusable as problem:
                    raise EngineFailed(str(problem)) from problem
                self._starts_in_vain = 0
                if (counted := await self._counted(calls, completion)) is not None:
                    return cut_off(self.tokenizer, counted, request.stop)
                last = WrongWeights("its tokens were sampled by weights that were refused")
            raise EngineFailed(f"vLLM did not answer a request in {TRIES} tries, last: {last}")

    def close(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None
            self._log.unlink(missing_ok=True)

    @asynccontextmanager
    async def _call(self) -> AsyncIterator[_Calls]:
        """Within a `with`, the caller has what calls of this event loop share."""
        calls = self._calls = self._calls or _Calls()
        calls.under_way += 1
        try:
            yield calls
        finally:
            calls.under_way -= 1
            if not calls.under_way:
                self._calls = None
                for session in calls.sessions.values():
                    await session.close()

    async def _usable(self, calls: _Calls) -> Server:
        """A server that lives and has weights that count. Starts it again if it died.

        After a refused load, requests wait for another one. Those that hold all places of their explorer keep
        it from loads, so they try the refused one again themselves.

        Raises:
            EngineFailed: it does not start, dies again and again, its checkpoint is gone, or the version
                stays refused.
        """
        while True:
            async with calls.changing:
                if self._server is not None and self._server.is_alive:
                    return self._server
                if self._server is not None:
                    await self._bury(self._server)
                if self._loaded is not None:
                    logger.info("starting vLLM again with version %d", self._loaded.version)
                    try:
                        await self._start(calls, self._loaded.checkpoint, self._loaded.version)
                    except ConfigError as problem:  # pruned meanwhile: a fresh explorer takes a newer one
                        raise EngineFailed(f"vLLM ended, and does not start again: {problem}") from problem
                    continue
                refused = self._refused
                if refused is not None and refused.seconds_left <= 0:
                    logger.warning("vLLM tries version %d again", refused.load.version)
                    with suppress(ConfigError):
                        await self._start(calls, refused.load.checkpoint, refused.load.version)
                    continue
                calls.loaded.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if refused is None else refused.seconds_left):
                    await calls.loaded.wait()

    async def _mend(self, calls: _Calls, server: Server, problem: ServerUnavailable) -> None:
        """Look after a server that has failed a request. The first of many requests that failed does it."""
        async with calls.changing:
            if server is not self._server:
                return
            await asyncio.sleep(PAUSE_SECONDS)
            if server.is_alive:
                try:
                    await self._dialect.health(calls.session(server), URL)
                except (ServerUnavailable, ServerUnusable):
                    logger.warning("vLLM fails: %s", problem)
                else:
                    return
            await self._bury(server)

    async def _bury(self, server: Server) -> None:
        """End a server that has died or fails.

        Raises:
            EngineFailed: it was one of several in a row.
        """
        await asyncio.to_thread(server.stop)
        self._server = None
        self._starts_in_vain += 1
        words = server.last_words()
        logger.warning("vLLM has ended: %s", words)
        if self._starts_in_vain >= TRIES:
            raise EngineFailed(f"vLLM ends again and again: {words}")

    async def _counted(self, calls: _Calls, completion: Completion) -> Completion | None:
        """A completion with the policy's versions. None if a load that does not count sampled part of it."""
        if not set(completion.versions) <= self._versions.keys():
            async with calls.changing:  # its load may be about to count
                pass
        versions = [self._versions.get(load, -1) for load in completion.versions]
        return None if -1 in versions else replace(completion, versions=versions)

    def _check_refused(self, path: Path, version: int) -> None:
        """Refuse a version at once that was refused before: to start the server for it takes long.

        Raises:
            ConfigError: it may be tried again later.
        """
        refused = self._refused
        if refused is not None and refused.load == Load(path, version) and refused.seconds_left > 0:
            raise refused.error

    async def _shown(self, server: Server, path: Path) -> Path | None:
        """A folder with a model that the server can load in flight. None if it has to be started again.

        Raises:
            ConfigError: the checkpoint is damaged. The server goes on with the weights of before.
        """
        if not server.is_alive:
            return None
        view = server.view()
        try:
            found = await asyncio.to_thread(self._models.show, path, view)
        except ConfigError:
            if server is self._server and server.is_alive:
                raise
            return None  # its folder went with it
        return view if found == self._tensors else None

    async def _reload(self, calls: _Calls, server: Server, view: Path, path: Path, version: int) -> bool:
        """Let the server load other weights in flight. False if it has to be started again for them.

        Args:
            view: what it loads of the checkpoint.
        """
        if not server.is_alive:
            return False
        load = self._next_load()
        try:
            await self._dialect.load(calls.session(server), URL, view, load, seconds=LOAD_SECONDS)
            await self._compare(calls, server, path)
        except (ServerUnavailable, ServerUnusable, WrongWeights) as problem:
            logger.warning("vLLM is started again, since it did not take version %d: %s", version, problem)
            return False
        self._count(calls, load, path, version)
        return True

    async def _start(self, calls: _Calls, path: Path, version: int) -> None:
        """Start a server on a checkpoint, in place of the one that may be there.

        Raises:
            ConfigError: the checkpoint is damaged, or its weights are not what the trainer had. No server is
                left.
            EngineFailed: the server does not start, or the same happened too often.
        """
        if self._server is not None:
            await asyncio.to_thread(self._server.stop)
        self._server = self._loaded = None
        server = Server(self._options, self._log)
        try:
            found = await asyncio.to_thread(folder.read, path, self._prompts)
            view = server.view()
            self._tensors = await asyncio.to_thread(self._models.show, path, view)
            server.start(view)
            await self._answers(calls, server)
            load = self._next_load()
            await self._dialect.name(calls.session(server), URL, load)
            await self._compare(calls, server, path)
        except (WrongWeights, ConfigError) as problem:
            await asyncio.to_thread(server.stop)
            self._refused = refusal(Load(path, version), self._refused, problem)
            raise self._refused.error from problem
        except (ServerUnavailable, ServerUnusable) as problem:
            await asyncio.to_thread(server.stop)
            raise EngineFailed(f"vLLM does not start: {server.last_words()}") from problem
        except BaseException:
            await asyncio.shield(asyncio.to_thread(server.stop))
            raise
        self._server = server
        self.tokenizer, self._end_tokens = found.tokenizer, found.end_tokens
        self.context = min(found.context, self._options.config.context or found.context)
        self._count(calls, load, path, version)

    async def _answers(self, calls: _Calls, server: Server) -> None:
        """Wait until the server answers.

        Raises:
            ServerUnavailable: it ended, or takes too long.
        """
        async with asyncio.timeout(START_SECONDS):
            while server.is_alive:
                try:
                    return await self._dialect.health(calls.session(server), URL)
                except ServerUnavailable:
                    await asyncio.sleep(LOOK_SECONDS)
        raise ServerUnavailable("vLLM ended before it answered")

    async def _compare(self, calls: _Calls, server: Server, path: Path) -> None:
        """Ask the server what its weights say of the checkpoint's canary.

        Raises:
            WrongWeights: something else than the trainer's.
        """
        canary = read_canary(path)
        token_ids = WARM_UP if canary is None else canary.token_ids
        # The first request also shows whether the server can compute this model at all.
        said = await self._dialect.score(calls.session(server), URL, token_ids)
        if canary is None:
            return
        differences = [abs(one - other) for one, other in zip(said, canary.logprobs, strict=True)]
        dtype = max(self._options.dtype, canary.merged_dtype, key=TOLERANCE.__getitem__)
        mean, limit = sum(differences) / len(differences), TOLERANCE[dtype]
        if not mean <= limit:  # also where it is no number
            raise WrongWeights(
                "its weights are stale or garbled: log-probabilities of the canary differ from the trainer's "
                f"by {mean:.3g} nats in the mean, and may differ by {limit} in {dtype}"
            )

    def _next_load(self) -> int:
        self._loads += 1
        return self._loads

    def _count(self, calls: _Calls, load: int, path: Path, version: int) -> None:
        """From now on, the tokens of a load are tokens of a version."""
        self._versions[load] = self.version = version
        self._loaded, self._refused = Load(path, version), None
        calls.loaded.set()
