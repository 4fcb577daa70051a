"""An engine of servers that other people run: a fleet of vLLM or SGLang servers behind one engine.

Each request goes to the usable server with the fewest requests in flight. A server is usable while it is
healthy and has confirmed the loaded version. One that fails is left out and looked at again later, and its
requests go to others. A task of the event loop looks after each server.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import sub
from pathlib import Path
from typing import Any

import aiohttp

from trinity_db.config import DEFAULT_PROMPTS, PromptConfig
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.explorer.engines import folder
from trinity_db.explorer.engines.dialects import (
    Dialect,
    RequestRefused,
    ServerUnavailable,
    ServerUnusable,
    open_session,
)
from trinity_db.explorer.engines.engine import Completion, EngineFailed, NotLoadedYet, Request
from trinity_db.explorer.engines.stops import cut_off
from trinity_db.functions import describe_error
from trinity_db.models.adapter_folder import is_adapter
from trinity_db.models.canary import read as read_canary
from trinity_db.prompts import PromptTooLong

logger = logging.getLogger(__name__)

CHECK_SECONDS = 2.0  # between two looks at a server that has not failed
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0  # seconds until a server that failed is looked at again; it doubles
OFFER_SECONDS = 1.0  # that a load waits for an answer, when other people load weights
TRIES = 6  # of one request; then either the request or the servers are at fault


@dataclass(frozen=True, eq=False)
class _Target:
    """What `load` was asked for. The same version may stand for other weights later."""

    path: Path
    version: int


@dataclass(eq=False)
class _Server:
    url: str
    problem: TrinityError
    """Why it is left out, or was the last time."""
    is_left_out: bool = True
    confirmed: _Target | None = None
    """What it was loaded with, or checked against."""
    version: int | None = None
    """Of its weights, when it was looked at last."""
    loaded: set[int] = field(default_factory=set)
    """Versions that this engine brought to it."""
    is_loading: bool = False
    in_flight: int = 0
    limits: set[asyncio.Timeout] = field(default_factory=set)
    """One of each request in flight."""
    failures: int = 0
    """In a row."""
    answered_at: float = float("-inf")
    """When it answered a request last, by the loop's clock."""
    look: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when something has happened that asks for a look at it."""

    def leave_out(self, problem: Exception) -> None:
        if not isinstance(problem, TrinityError):
            problem = ServerUnavailable(f"{self.url}: cannot be understood: {describe_error(problem)}")
        if not self.is_left_out:
            logger.warning("left out: %s", problem)
        self.is_left_out, self.problem, self.confirmed = True, problem, None
        self.failures += 1

    @property
    def pause(self) -> float:
        """Seconds until the next look at it."""
        if not self.is_left_out:
            return CHECK_SECONDS
        return float(min(FIRST_PAUSE * 2 ** min(self.failures, 16), LONGEST_PAUSE))

    def __str__(self) -> str:
        return str(self.problem) if self.is_left_out else f"{self.url}: has version {self.version}"


class EndpointEngine:
    """Samples with servers that other people run.

    Args:
        urls: addresses of the servers.
        load_weights: whether this engine loads each version into the servers, from a folder that they see
            under the same path. False: other people do so, and a server is used while it has the version
            that the engine wants.
        load_seconds: that a server may take to load a version.
        tolerance: nats by which a server's log-probabilities of a checkpoint's canary may differ from the
            trainer's in the mean.
        patience_seconds: that a request waits while no server is usable and none is loading.
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
        self._servers = [_Server(url, ServerUnavailable(f"{url}: was not asked yet")) for url in urls]
        self._target: _Target | None = None
        self._end_tokens: frozenset[int] = frozenset()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: aiohttp.ClientSession
        self._keeper: asyncio.Task[None]
        self._news: asyncio.Event
        """Set when the state of a server has changed; another event follows it."""

    async def load(self, path: Path, version: int) -> None:
        """Return when the first server has confirmed the version; the others follow."""
        if is_adapter(path):
            raise ConfigError(
                f"version {version} is an adapter, which servers that other people run are not given; start "
                "the trainer with trainer.publish: merged."
            )
        target = _Target(path.absolute(), version)
        if self._target is None:
            found = await asyncio.to_thread(folder.read, path, self._prompts)
            self.tokenizer, self.context, self._end_tokens = found.tokenizer, found.context, found.end_tokens
            self._target = target
        self._attach()
        if self._target is not target and not self._load_weights:
            await self._check_offered(version)  # until then, requests go on with the version of before
        before, self._target = self._target, target
        for server in self._servers:
            server.look.set()
        try:
            await self._usable(target)
        except EngineFailed as error:
            if (path / "config.json").is_file():
                raise
            self._target = before  # the folder was pruned, and another version follows
            raise ConfigError(f"version {version} is not loaded. {error}") from error
        self.version = version

    async def generate(self, request: Request) -> Completion:
        length = len(request.prompt_ids)
        if not 0 < length < self.context:
            raise PromptTooLong(
                f"A prompt of {length} tokens does not fit: this model takes 1 to {self.context - 1}."
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
            raise RequestRefused(f"a request failed {TRIES} times while others were answered, last: {last}")
        raise EngineFailed(f"No server answers: {self._complaints()}")

    def close(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._keeper.cancel()

    async def _ask(self, server: _Server, request: Request) -> Completion:
        """Ask one server, until it answers or is left out."""
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
        """Refuse tokens of versions that count for nothing at this server.

        Raises:
            ServerUnavailable: naming one.
        """
        strange = set(completion.versions) - server.loaded
        while strange and server.is_loading:  # a load counts when the canary has been heard
            await self._news.wait()
            strange = set(completion.versions) - server.loaded
        if strange:
            raise ServerUnavailable(
                f"{server.url}: sampled with version {min(strange)}, which this explorer did not load there; "
                "another program loads weights"
            )

    def _doubt(self, server: _Server, problem: ServerUnavailable | ServerUnusable) -> None:
        """Leave a server out after a failed request, until it was looked at. Many fail at the same time."""
        if not server.is_left_out:
            server.leave_out(problem)
            server.look.set()
            self._tell()

    async def _usable(self, target: _Target | None = None) -> _Server:
        """The usable server with the fewest requests in flight, as soon as there is one.

        Args:
            target: what it has to have; None: what was asked for last, which may change meanwhile.

        Raises:
            EngineFailed: there was none for as long as the engine waits, or there will be none.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self._patience
        while True:
            if usable := self._having(target):
                return min(usable, key=lambda server: server.in_flight)
            if any(server.is_loading for server in self._servers):
                until = loop.time() + self._patience
            is_hopeless = all(
                one.is_left_out and isinstance(one.problem, ServerUnusable) for one in self._servers
            )
            if is_hopeless or loop.time() >= until or self._keeper.done():
                raise EngineFailed(f"No server can be used: {self._complaints()}")
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._news.wait()

    def _having(self, target: _Target | None) -> list[_Server]:
        """The servers with the wanted version.

        If other people load weights and have gone on to a later version everywhere, a response that an
        attempt still needs comes from that one: the explorer loads a version only as attempts end.
        """
        healthy = [server for server in self._servers if not server.is_left_out]
        wanted = target or self._target
        assert wanted is not None, "generate before load"
        if self._load_weights:
            return [server for server in healthy if server.confirmed is wanted]
        exact = [server for server in healthy if server.version == wanted.version]
        if exact or target is not None:
            return exact
        return [one for one in healthy if one.version is not None and one.version > wanted.version]

    async def _check_offered(self, version: int) -> None:
        """Refuse a version that other people have loaded nowhere yet; the explorer asks for it again.

        Raises:
            NotLoadedYet: naming what each server has.
            ConfigError: likewise, and one has a later version.
        """
        for server in self._servers:
            server.look.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(OFFER_SECONDS):
                while not any(one.version == version for one in self._servers if not one.is_left_out):
                    await self._news.wait()
                return
        healthy = [one for one in self._servers if not one.is_left_out]
        if any(one.version is not None and one.version > version for one in healthy):
            raise ConfigError(f"no server has it, and one has a later version: {self._complaints()}")
        raise NotLoadedYet(f"no server has it yet: {self._complaints()}")

    def _complaints(self) -> str:
        return "; ".join(map(str, self._servers))

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _attach(self) -> None:
        """Look after the servers in the running event loop, until it ends."""
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
            logger.error("the servers are not looked after any more", exc_info=error)
        self._tell()

    async def _watch(self, server: _Server) -> None:
        while True:
            server.look.clear()
            assert self._target is not None, "watched before load"
            await self._look_at(server, self._target)
            self._tell()
            was_fine = not server.is_left_out
            await _is_set(server.look, server.pause)
            if was_fine and server.is_left_out:  # a request has failed: look at it after its pause
                server.look.clear()
                await _is_set(server.look, server.pause)

    async def _look_at(self, server: _Server, target: _Target) -> None:
        """Find out whether a server is usable, and load the version that it should have."""
        try:
            await self._dialect.health(self._session, server.url)
            await self._bring(server, target)
        except Exception as problem:  # the answer is input: the other servers go on
            server.leave_out(problem)
            limits, server.limits = server.limits, set()
            for limit in limits:  # what it samples is asked of others
                limit.reschedule(asyncio.get_running_loop().time())
        else:
            if server.is_left_out:
                logger.info("in use: %s with version %s", server.url, server.version)
            server.is_left_out, server.confirmed = False, target

    async def _bring(self, server: _Server, target: _Target) -> None:
        """See to it that a server has a version; if other people do so, find out which one it has."""
        label = await self._dialect.version(self._session, server.url)
        has_it = label == str(target.version)
        if not self._load_weights:
            if not (label.isascii() and label.isdecimal()):
                raise ServerUnavailable(f"{server.url}: has version {label!r}, which is no whole number")
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
        """Hear what a server's weights say of the checkpoint's canary.

        Raises:
            ServerUnavailable: something else than the trainer's.
        """
        canary = read_canary(target.path)
        if canary is None:
            return
        said = await self._dialect.score(self._session, server.url, canary.token_ids)
        mean = sum(map(abs, map(sub, said, canary.logprobs))) / len(said)
        if not mean <= self._tolerance:  # also where it is not a number
            raise ServerUnavailable(
                f"{server.url}: does not have the weights of version {target.version}: its log-probabilities "
                f"of the canary differ from the trainer's by {mean:.3g} nats in the mean"
            )


async def _is_set(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, and no longer than so."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
