"""An engine for existing servers: a fleet of vLLM or SGLang servers behind one engine.

Each request goes to the usable server with the fewest requests in flight. A server is usable while it is
healthy and has confirmed the loaded version. A failed server is excluded and rechecked later, and its
requests are retried on other servers. A task in the event loop monitors each server.
"""

import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp

from trinity_db.config.shared import DEFAULT_PROMPTS, PromptConfig
from trinity_db.config.user_functions import describe_error
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.explorer.engines import folder
from trinity_db.explorer.engines.dialects import (
    VLLM,
    Dialect,
    ServerUnavailable,
    ServerUnusable,
    SGLang,
    open_session,
)
from trinity_db.explorer.engines.engine import Completion, EngineFailed, NotLoadedYet, Request, RequestFailed
from trinity_db.explorer.engines.settings import EndpointConfig
from trinity_db.explorer.engines.stops import cut_off
from trinity_db.models.adapter_folder import is_adapter
from trinity_db.models.canary import Canary, wrong
from trinity_db.models.canary import read as read_canary
from trinity_db.models.chat.prompts import PromptTooLong

logger = logging.getLogger(__name__)

CHECK_SECONDS = 2.0  # between health checks of a server that has not failed
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0  # seconds before a failed server is rechecked; doubles per failure
OFFER_SECONDS = 1.0  # how long a load waits for the version, when another program loads weights
TRIES = 6  # per request; after that, either the request or the servers are at fault


@dataclass(frozen=True, eq=False)
class _Target:
    """Arguments of `load`. The same version number may refer to other weights later."""

    path: Path
    version: int


@dataclass(eq=False)
class _Server:
    url: str
    problem: TrinityError
    """Why the server is excluded, or was the last time."""
    is_left_out: bool = True
    confirmed: _Target | None = None
    """Target that it was loaded with or checked against."""
    version: int | None = None
    """Version of its weights at the last check."""
    loaded: set[int] = field(default_factory=set)
    """Versions that this engine loaded into it."""
    canary: Canary | None = None
    """Canary of the version that it had at the last check of its weights."""
    is_loading: bool = False
    in_flight: int = 0
    limits: set[asyncio.Timeout] = field(default_factory=set)
    """Timeout of each request in flight."""
    failures: int = 0
    """Number of consecutive failures."""
    answered_at: float = float("-inf")
    """Time of its last response, by the event loop's clock."""
    look: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to request an immediate check."""

    def leave_out(self, problem: Exception) -> None:
        if not isinstance(problem, TrinityError):
            problem = ServerUnavailable(f"{self.url}: unexpected response: {describe_error(problem)}")
        if not self.is_left_out:
            logger.warning("excluded: %s", problem)
        self.is_left_out, self.problem, self.confirmed = True, problem, None
        self.failures += 1

    @property
    def pause(self) -> float:
        """Seconds until the next check."""
        if not self.is_left_out:
            return CHECK_SECONDS
        return float(min(FIRST_PAUSE * 2 ** min(self.failures, 16), LONGEST_PAUSE))

    def __str__(self) -> str:
        return str(self.problem) if self.is_left_out else f"{self.url}: has version {self.version}"


def create(settings: EndpointConfig, prompts: PromptConfig, record_routing: bool) -> "EndpointEngine":
    """Create the engine from its settings.

    Raises:
        ConfigError: if the environment variable of the servers' key is not set.
    """
    key = None
    if settings.key_env is not None:
        key = os.environ.get(settings.key_env)
        if not key:
            raise ConfigError(
                f"explorer.engine.key_env: the environment variable {settings.key_env} is not set; it must "
                "contain the key of the servers"
            )
    return EndpointEngine(
        settings.urls,
        VLLM(settings.model, record_routing=record_routing) if settings.dialect == "vllm" else SGLang(),
        prompts=prompts,
        key=key,
        load_weights=settings.load_weights,
        load_seconds=settings.load_seconds,
        tolerance=settings.tolerance,
        patience_seconds=settings.patience_seconds,
    )


class EndpointEngine:
    """Samples with existing servers.

    Args:
        urls: addresses of the servers.
        load_weights: whether this engine loads each version into the servers, from a folder that they see
            under the same path. False: another program loads them, and a server is used while it has the
            version that the engine needs.
        load_seconds: timeout for loading a version.
        tolerance: maximum mean difference, in nats per token, between a server's log-probabilities of a
            checkpoint's canary and the trainer's.
        patience_seconds: how long a request waits while no server is usable and none is loading.
    """

    version: int
    context: int
    tokenizer: Any

    def __init__(
        self,
        urls: Sequence[str],
        dialect: Dialect,
        *,
        prompts: PromptConfig = DEFAULT_PROMPTS,
        key: str | None = None,
        load_weights: bool = True,
        load_seconds: float = 600.0,
        tolerance: float = 0.3,
        patience_seconds: float = 60.0,
    ) -> None:
        self._dialect = dialect
        self._prompts = prompts
        self._key = key
        self._load_weights = load_weights
        self._load_seconds = load_seconds
        self._tolerance = tolerance
        self._patience = patience_seconds
        self._servers = [_Server(url, ServerUnavailable(f"{url}: not checked yet")) for url in urls]
        self._target: _Target | None = None
        self._end_tokens: frozenset[int] = frozenset()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: aiohttp.ClientSession
        self._keeper: asyncio.Task[None]
        self._news: asyncio.Event
        """Set when the state of a server changes; then replaced by a new event."""

    async def load(self, path: Path, version: int) -> None:
        """Return when the first server has confirmed the version; the others follow in the background."""
        if is_adapter(path):
            raise ConfigError(
                f"version {version} is an adapter, which the engine endpoint cannot load; start "
                "the trainer with trainer.publish: merged."
            )
        target = _Target(path.absolute(), version)
        if self._target is None:
            model = await asyncio.to_thread(folder.read, path, self._prompts)
            self.tokenizer, self.context, self._end_tokens = model.tokenizer, model.context, model.end_tokens
            self._target = target
        self._attach()
        if self._target is not target and not self._load_weights:
            await self._check_offered(version)  # until then, requests use the previous version
        before, self._target = self._target, target
        for server in self._servers:
            server.look.set()
        try:
            await self._usable(target)
        except EngineFailed as error:
            if (path / "config.json").is_file():
                raise
            self._target = before  # the folder was pruned, and a newer version follows
            raise ConfigError(f"version {version} is not loaded. {error}") from error
        self.version = version

    async def generate(self, request: Request) -> Completion:
        length = len(request.prompt_ids)
        if not 0 < length < self.context:
            raise PromptTooLong(
                f"A prompt of {length} tokens does not fit: this model accepts 1 to {self.context - 1}."
            )
        self._attach()
        request = replace(request, max_new_tokens=min(request.max_new_tokens, self.context - length))
        clock = asyncio.get_running_loop().time
        began = clock()
        for _ in range(TRIES):
            server = await self._usable()
            try:
                completion = await self._ask(server, request)
            except (ServerUnavailable, ServerUnusable) as problem:
                last = problem
                self._doubt(server, problem)
            else:
                server.answered_at, server.failures = clock(), 0
                return cut_off(self.tokenizer, completion, request.stop)
        if any(server.answered_at > began for server in self._servers):
            raise RequestFailed(f"a request failed {TRIES} times while others succeeded, last: {last}")
        raise EngineFailed(f"No server responds: {self._complaints()}")

    def close(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._keeper.cancel()

    async def _ask(self, server: _Server, request: Request) -> Completion:
        """Send a request to one server, until it responds or is excluded."""
        limit, version = asyncio.timeout(None), server.version
        assert version is not None, "a usable server has a version"
        server.in_flight += 1
        server.limits.add(limit)
        try:
            async with limit:
                completion = await self._dialect.generate(
                    self._session, server.url, request, end_tokens=self._end_tokens, version=version
                )
        except TimeoutError as error:
            raise ServerUnavailable(str(server.problem)) from error
        finally:
            server.in_flight -= 1
            server.limits.discard(limit)
        if self._load_weights:
            await self._check_versions(server, completion)
        return completion

    async def _check_versions(self, server: _Server, completion: Completion) -> None:
        """Check that tokens come only from versions that this engine loaded into the server.

        Raises:
            ServerUnavailable: with the number of another version.
        """
        strange = set(completion.versions) - server.loaded
        while strange and server.is_loading:  # a version counts once the canary has been checked
            await self._news.wait()
            strange = set(completion.versions) - server.loaded
        if strange:
            raise ServerUnavailable(
                f"{server.url}: sampled with version {min(strange)}, which this explorer did not load there; "
                "another program loads weights"
            )

    def _doubt(self, server: _Server, problem: ServerUnavailable | ServerUnusable) -> None:
        """Exclude a server after a failed request, until it is rechecked. Many requests fail at once."""
        if not server.is_left_out:
            server.leave_out(problem)
            server.look.set()
            self._tell()

    async def _usable(self, target: _Target | None = None) -> _Server:
        """Return the usable server with the fewest requests in flight, waiting until there is one.

        Args:
            target: required version; None: the latest target, which may change while waiting.

        Raises:
            EngineFailed: if no server became usable in time, or none can.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self._patience
        while True:
            if usable := self._having(target):
                return min(usable, key=lambda server: server.in_flight)
            if any(server.is_loading for server in self._servers):
                until = loop.time() + self._patience
            is_hopeless = all(
                server.is_left_out and isinstance(server.problem, ServerUnusable) for server in self._servers
            )
            if is_hopeless or loop.time() >= until or self._keeper.done():
                raise EngineFailed(f"No server is usable: {self._complaints()}")
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._news.wait()

    def _having(self, target: _Target | None) -> list[_Server]:
        """Return the servers with the required version.

        If another program loads weights and all servers have a later version, that version answers the
        responses which attempts in progress still need: the explorer switches versions only as attempts end.
        """
        healthy = [server for server in self._servers if not server.is_left_out]
        wanted = target or self._target
        assert wanted is not None, "generate before load"
        if self._load_weights:
            return [server for server in healthy if server.confirmed is wanted]
        exact = [server for server in healthy if server.version == wanted.version]
        if exact or target is not None:
            return exact
        return [
            server for server in healthy if server.version is not None and server.version > wanted.version
        ]

    async def _check_offered(self, version: int) -> None:
        """Check that a server has a version, when another program loads weights. The explorer retries later.

        Raises:
            NotLoadedYet: if no server has it, with the version of each server.
            ConfigError: if no server has it, and one has a later version.
        """
        for server in self._servers:
            server.look.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(OFFER_SECONDS):
                while not any(
                    server.version == version for server in self._servers if not server.is_left_out
                ):
                    await self._news.wait()
                return
        healthy = [server for server in self._servers if not server.is_left_out]
        if any(server.version is not None and server.version > version for server in healthy):
            raise ConfigError(f"no server has it, and one has a later version: {self._complaints()}")
        raise NotLoadedYet(f"no server has it yet: {self._complaints()}")

    def _complaints(self) -> str:
        return "; ".join(map(str, self._servers))

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _attach(self) -> None:
        """Start monitoring the servers in the running event loop, until it ends."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        self._loop, self._news = loop, asyncio.Event()
        for server in self._servers:
            server.look, server.answered_at = asyncio.Event(), float("-inf")
        self._session = open_session(self._key)
        self._keeper = loop.create_task(self._keep(self._session))
        self._keeper.add_done_callback(self._note_end)

    async def _keep(self, session: aiohttp.ClientSession) -> None:
        async with session, asyncio.TaskGroup() as watches:
            for server in self._servers:
                watches.create_task(self._watch(server))

    def _note_end(self, keeper: asyncio.Task[None]) -> None:
        if not keeper.cancelled() and (error := keeper.exception()):
            logger.error("monitoring of the servers has stopped", exc_info=error)
        self._tell()

    async def _watch(self, server: _Server) -> None:
        while True:
            server.look.clear()
            assert self._target is not None, "watched before load"
            await self._look_at(server, self._target)
            self._tell()
            was_fine = not server.is_left_out
            await _is_set(server.look, server.pause)
            if was_fine and server.is_left_out:  # a request has failed: recheck after the pause
                server.look.clear()
                await _is_set(server.look, server.pause)

    async def _look_at(self, server: _Server, target: _Target) -> None:
        """Check whether a server is usable, and load the required version into it."""
        try:
            await self._dialect.health(self._session, server.url)
            await self._bring(server, target)
        except Exception as problem:  # a response is untrusted; the other servers stay usable
            server.leave_out(problem)
            limits, server.limits = server.limits, set()
            for limit in limits:  # retry its requests on other servers
                limit.reschedule(asyncio.get_running_loop().time())
        else:
            if server.is_left_out:
                logger.info("usable: %s with version %s", server.url, server.version)
            server.is_left_out, server.confirmed = False, target

    async def _bring(self, server: _Server, target: _Target) -> None:
        """Load a version into a server; if another program loads weights, read the server's version."""
        label = await self._dialect.version(self._session, server.url)
        has_it = label == str(target.version)
        if not self._load_weights:
            if not (label.isascii() and label.isdecimal()):
                raise ServerUnavailable(f"{server.url}: has version {label!r}, which is not an integer")
            if has_it and server.confirmed is not target:
                await self._check_weights(server, target)
            server.version = int(label)
            return
        if has_it and server.confirmed is target:
            return
        server.is_loading = True
        server.loaded.discard(target.version)
        self._tell()
        try:
            await self._dialect.load(
                self._session, server.url, target.path, target.version, seconds=self._load_seconds
            )
            await self._check_weights(server, target)
            server.loaded.add(target.version)
        finally:
            server.is_loading = False
            self._tell()
        server.version = target.version

    async def _check_weights(self, server: _Server, target: _Target) -> None:
        """Compare a server's log-probabilities of the checkpoint's canary with the trainer's.

        Raises:
            ServerUnavailable: if they differ.
        """
        canary = read_canary(target.path)
        if canary is not None:
            logprobs = await self._dialect.score(self._session, server.url, canary.token_ids)
            if problem := wrong(logprobs, canary, server.canary, self._tolerance):
                raise ServerUnavailable(
                    f"{server.url}: does not have the weights of version {target.version}: its {problem}"
                )
        server.canary = canary


async def _is_set(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, with a timeout."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
