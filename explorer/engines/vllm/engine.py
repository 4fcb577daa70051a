"""The engine `vllm`: starts, monitors and restarts a vLLM server.

New weights take three steps. The server loads them while responses are in flight. It confirms them under a
load number that is never reused. Then its log-probabilities of the checkpoint's canary are compared with the
trainer's. Only then do tokens of this load count as tokens of the version. A response with tokens of a failed
load is sampled again.

Each call runs in its caller's event loop. Resources of a loop live while calls are in progress.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from os import getpid
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from trinity_db.config.base import home
from trinity_db.config.shared import DEFAULT_PROMPTS, PromptConfig
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.explorer.engines import folder
from trinity_db.explorer.engines.dialects import VLLM, ServerUnavailable, ServerUnusable
from trinity_db.explorer.engines.engine import Completion, EngineFailed, Request, Scores
from trinity_db.explorer.engines.settings import VLLMConfig
from trinity_db.explorer.engines.stops import cut_off
from trinity_db.explorer.engines.vllm import checkpoints
from trinity_db.explorer.engines.vllm.inside.trinity_worker import Tensors
from trinity_db.explorer.engines.vllm.refusals import Load, Refusal, WrongWeights, refusal
from trinity_db.explorer.engines.vllm.server import MODEL, URL, Server, options_of
from trinity_db.models.canary import Canary, wrong
from trinity_db.models.canary import read as read_canary
from trinity_db.models.chat.prompts import PromptTooLong

logger = logging.getLogger(__name__)

START_SECONDS = 3600.0  # for a large model on a slow disk; a server that cannot start exits by itself
LOAD_SECONDS = 3600.0
LOOK_SECONDS = 0.2  # between health checks of a starting server
PAUSE_SECONDS = 0.5  # before a request is retried on a server that failed it but is alive
TRIES = 4  # per request, and server starts between two responses
TOLERANCE = {"float32": 0.005, "float16": 0.1, "bfloat16": 0.3}
"""Maximum mean difference of the canary's log-probabilities in nats, by the server's number format. On a CPU
they differ by 0.00001 in float32, and by 0.05 in bfloat16."""
WARM_UP = (0, 0)  # prompt tokens for a checkpoint without a canary

Answer = TypeVar("Answer", Completion, Scores)


@dataclass(eq=False)
class _Calls:
    """State shared by the calls in progress in one event loop."""

    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the server starts, is checked after a failure, or loads weights."""
    loaded: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a server may be available again."""
    under_way: int = 0
    sessions: dict[Server, aiohttp.ClientSession] = field(default_factory=dict)

    def session(self, server: Server) -> aiohttp.ClientSession:
        if server not in self.sessions:
            self.sessions[server] = server.open_session()
        return self.sessions[server]


def create(settings: VLLMConfig, prompts: PromptConfig, record_routing: bool) -> "VLLMEngine":
    """Create the engine from its settings.

    Raises:
        ConfigError: if vLLM is not installed.
    """
    return VLLMEngine(settings, prompts, record_routing=record_routing)


class VLLMEngine:
    """A vLLM server on this machine, started by `load`.

    Args:
        record_routing: whether responses include the chosen experts.

    Raises:
        ConfigError: if vLLM is not installed, or routing should be recorded without a GPU.
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
        """Tensors of the model that the server was started with. Only weights with the same names and shapes
        can be loaded. vLLM casts them, so a version in float32 fits a starting model in bfloat16."""
        self._loads = 0
        """Number of loads so far. Each uses its number as the server's label, even if it fails."""
        self._versions: dict[int, int] = {}
        """Version of each accepted load."""
        self._loaded: Load | None = None
        """Latest accepted load."""
        self._canary: Canary | None = None
        """Canary of that load; None if it has none."""
        self._refused: Refusal | None = None
        """Latest load, if it was refused: by the canary, or because the checkpoint is corrupted."""
        self._end_tokens: frozenset[int] = frozenset()
        self._starts_in_vain = 0
        """Number of servers that died since the last response."""
        self._calls: _Calls | None = None

    async def load(self, path: Path, version: int) -> None:
        """Start the server in the first call; later, load other weights, or restart it if they do not fit."""
        async with self._call() as calls:
            while True:
                self._check_refused(path, version)
                server = self._server
                # Not under the lock, which new requests need: merging an adapter may take long.
                shown = None if server is None else await self._shown(server, path)
                async with calls.changing:
                    if server is not self._server:  # another server was started in between
                        continue
                    self._check_refused(path, version)
                    if server and shown and await self._reload(calls, server, shown, path, version):
                        return None
                    return await self._start(calls, path, version)

    async def generate(self, request: Request) -> Completion:
        length = len(request.prompt_ids)
        self._check_length(length)
        request = replace(request, max_new_tokens=min(request.max_new_tokens, self.context - length))

        async def ask(calls: _Calls, session: aiohttp.ClientSession) -> Completion | None:
            completion = await self._dialect.generate(
                session, URL, request, end_tokens=self._end_tokens, version=0
            )
            return await self._counted(calls, completion)

        return cut_off(self.tokenizer, await self._answered(ask), request.stop)

    async def score(self, token_ids: Sequence[int]) -> Scores:
        """Compute log-probabilities of given tokens, all by the same weights."""
        self._check_length(len(token_ids))  # the server samples a token after them

        async def ask(calls: _Calls, session: aiohttp.ClientSession) -> Scores | None:
            loads = self._loads
            scores = await self._dialect.scores(session, URL, token_ids)
            return scores if loads == self._loads else None

        return await self._answered(ask)

    def _check_length(self, length: int) -> None:
        if not 0 < length < self.context:
            raise PromptTooLong(
                f"A prompt of {length} tokens does not fit: this model accepts 1 to {self.context - 1}."
            )

    async def _answered(
        self, ask: Callable[[_Calls, aiohttp.ClientSession], Awaitable[Answer | None]]
    ) -> Answer:
        """Ask a live server with accepted weights until it answers.

        Args:
            ask: returns None if the answer does not count, because of the weights that it is from.
        """
        async with self._call() as calls:
            for _ in range(TRIES):
                server = await self._usable(calls)
                try:
                    answer = await ask(calls, calls.session(server))
                except ServerUnavailable as problem:
                    last: TrinityError = problem
                    await self._mend(calls, server, problem)
                    continue
                except ServerUnusable as problem:
                    raise EngineFailed(str(problem)) from problem
                self._starts_in_vain = 0
                if answer is not None:
                    return answer
                last = WrongWeights("its weights were refused, or changed during the answer")
            raise EngineFailed(f"vLLM did not answer a request in {TRIES} tries, last: {last}")

    def close(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None
            self._log.unlink(missing_ok=True)

    @asynccontextmanager
    async def _call(self) -> AsyncIterator[_Calls]:
        """Within this `with`, give the caller the state shared by calls of this event loop."""
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
        """Return a live server with accepted weights, restarting it if it died.

        After a refused load, requests wait for another load. If they fill all slots of their explorer, no
        load can come, so they retry the refused one themselves.

        Raises:
            EngineFailed: if it does not start, keeps dying, its checkpoint is gone, or the version stays
                refused.
        """
        while True:
            async with calls.changing:
                if self._server is not None and self._server.is_alive:
                    return self._server
                if self._server is not None:
                    await self._bury(self._server)
                if self._loaded is not None:
                    logger.info("restarting vLLM with version %d", self._loaded.version)
                    try:
                        await self._start(calls, self._loaded.checkpoint, self._loaded.version)
                    except ConfigError as problem:  # pruned; a new explorer uses a newer version
                        raise EngineFailed(f"vLLM exited and cannot be restarted: {problem}") from problem
                    continue
                refused = self._refused
                if refused is not None and refused.seconds_left <= 0:
                    logger.warning("retrying version %d with vLLM", refused.load.version)
                    with suppress(ConfigError):
                        await self._start(calls, refused.load.checkpoint, refused.load.version)
                    continue
                calls.loaded.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if refused is None else refused.seconds_left):
                    await calls.loaded.wait()

    async def _mend(self, calls: _Calls, server: Server, problem: ServerUnavailable) -> None:
        """Check a server after a failed request, once for many requests that failed together."""
        async with calls.changing:
            if server is not self._server:
                return
            await asyncio.sleep(PAUSE_SECONDS)
            if server.is_alive:
                try:
                    await self._dialect.health(calls.session(server), URL)
                except (ServerUnavailable, ServerUnusable):
                    logger.warning("vLLM is failing: %s", problem)
                else:
                    return
            await self._bury(server)

    async def _bury(self, server: Server) -> None:
        """Stop a server that has died or is failing.

        Raises:
            EngineFailed: if too many servers in a row have failed.
        """
        await asyncio.to_thread(server.stop)
        self._server = None
        self._starts_in_vain += 1
        words = server.last_words()
        logger.warning("vLLM has exited: %s", words)
        if self._starts_in_vain >= TRIES:
            raise EngineFailed(f"vLLM keeps exiting: {words}")

    async def _counted(self, calls: _Calls, completion: Completion) -> Completion | None:
        """Map a completion's load numbers to versions. None if a part was sampled by a refused load."""
        if not set(completion.versions) <= self._versions.keys():
            async with calls.changing:  # its load may be about to be accepted
                pass
        versions = [self._versions.get(load, -1) for load in completion.versions]
        return None if -1 in versions else replace(completion, versions=versions)

    def _check_refused(self, path: Path, version: int) -> None:
        """Reject a recently refused version without starting a server for it, which would take long.

        Raises:
            ConfigError: if the version was refused and its retry delay has not passed.
        """
        refused = self._refused
        if refused is not None and refused.load == Load(path, version) and refused.seconds_left > 0:
            raise refused.error

    async def _shown(self, server: Server, path: Path) -> Path | None:
        """Create a folder with a model that the server can load in flight. None if a restart is needed.

        Raises:
            ConfigError: if the checkpoint is corrupted. The server keeps its current weights.
        """
        if not server.is_alive:
            return None
        view = server.view()
        try:
            tensors = await asyncio.to_thread(self._models.show, path, view)
        except ConfigError:
            if server is self._server and server.is_alive:
                raise
            return None  # the server was stopped, and its folder removed
        return view if _shapes(tensors) == _shapes(self._tensors) else None

    async def _reload(self, calls: _Calls, server: Server, view: Path, path: Path, version: int) -> bool:
        """Load other weights into the running server. False if it has to be restarted for them.

        Args:
            view: folder from which the server loads the checkpoint.
        """
        if not server.is_alive:
            return False
        load = self._next_load()
        try:
            await self._dialect.load(calls.session(server), URL, view, load, seconds=LOAD_SECONDS)
            await self._compare(calls, server, path)
        except (ServerUnavailable, ServerUnusable, WrongWeights) as problem:
            logger.warning("restarting vLLM, which did not accept version %d: %s", version, problem)
            return False
        self._count(calls, load, path, version)
        return True

    async def _start(self, calls: _Calls, path: Path, version: int) -> None:
        """Start a server with a checkpoint, stopping the current one first.

        Raises:
            ConfigError: if the checkpoint is corrupted, or its weights differ from the trainer's. No server
                is left running.
            EngineFailed: if the server does not start, or the version was refused too often.
        """
        if self._server is not None:
            await asyncio.to_thread(self._server.stop)
        self._server = self._loaded = None
        server = Server(self._options, self._log)
        try:
            model = await asyncio.to_thread(folder.read, path, self._prompts)
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
        self.tokenizer, self._end_tokens = model.tokenizer, model.end_tokens
        self.context = min(model.context, self._options.config.context or model.context)
        self._count(calls, load, path, version)

    async def _answers(self, calls: _Calls, server: Server) -> None:
        """Wait until the server responds.

        Raises:
            ServerUnavailable: if it exited.
            TimeoutError: if it takes too long.
        """
        async with asyncio.timeout(START_SECONDS):
            while server.is_alive:
                try:
                    return await self._dialect.health(calls.session(server), URL)
                except ServerUnavailable:
                    await asyncio.sleep(LOOK_SECONDS)
        raise ServerUnavailable("vLLM exited before it responded")

    async def _compare(self, calls: _Calls, server: Server, path: Path) -> None:
        """Compare the server's log-probabilities of the checkpoint's canary with the trainer's.

        Raises:
            WrongWeights: if they differ.
        """
        canary = read_canary(path)
        token_ids = WARM_UP if canary is None else canary.token_ids
        # The first request also shows whether the server can run this model at all.
        logprobs = await self._dialect.score(calls.session(server), URL, token_ids)
        if canary is not None:
            dtype = max(self._options.dtype, canary.merged_dtype, key=TOLERANCE.__getitem__)
            if problem := wrong(logprobs, canary, self._canary, TOLERANCE[dtype]):
                raise WrongWeights(f"its weights are stale or garbled: {problem} in {dtype}")
        self._canary = canary

    def _next_load(self) -> int:
        self._loads += 1
        return self._loads

    def _count(self, calls: _Calls, load: int, path: Path, version: int) -> None:
        """Accept a load: its tokens now count as tokens of the version."""
        self._versions[load] = self.version = version
        self._loaded, self._refused = Load(path, version), None
        calls.loaded.set()


def _shapes(tensors: Tensors) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, (_, shape) in tensors.items()}
