"""The recording endpoint: an HTTP server in the explorer's event loop that serves policies to programs.

The key of a request identifies the attempt. A response is sampled completely and stored before it is sent, as
one object or as a stream.
"""

import asyncio
import logging
import secrets
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from aiohttp import web

from trinity_db.errors import ConfigError
from trinity_db.explorer.attempt.long_texts import work_on
from trinity_db.explorer.attempt.policy import Policy
from trinity_db.explorer.attempt.tools import has_call_end
from trinity_db.explorer.config import DEFAULT_REQUESTS, RequestsConfig
from trinity_db.explorer.http import requests
from trinity_db.explorer.http.agents import Agent, Incoming
from trinity_db.explorer.http.dialects import DIALECTS
from trinity_db.explorer.http.dialects.dialect import AgentDialect, ParsedRequest, check_model, openai_error
from trinity_db.explorer.http.dialects.messages import MESSAGES
from trinity_db.explorer.http.dialects.options import Refused, RequestContext
from trinity_db.explorer.http.listener import EndpointAddress
from trinity_db.explorer.http.log import CallLog
from trinity_db.explorer.http.requests import (
    IDEMPOTENCY_KEY,
    MAX_BYTES,
    Complain,
    Handler,
    body_of,
    digest_of,
    guarded,
    key_of,
    parsed,
    retry_of,
    rewards_in,
    stream,
    write,
)
from trinity_db.insight.words import printable
from trinity_db.io.connections import KEYLESS_SECONDS, Connections, limit_repeats
from trinity_db.store.calls import KEY, Entered, Fate, hash_of
from trinity_db.store.groups import ClaimedGroup, Rollout

logger = logging.getLogger(__name__)

UNKNOWN_KEYS = 1024  # size of the cache of unknown keys
MAX_REPORTED = 100  # options and refusals that are logged; a program may make up any number
OFFER_SECONDS = 2.0  # how long a program waits for an attempt before it is asked to retry
STOP_SECONDS = 1.0  # for requests in progress when the endpoint stops
PATHS = [
    *(f"POST {dialect.path}" for dialect in DIALECTS),
    f"POST {MESSAGES.path}/count_tokens",
    "GET /v1/models",
    "POST /v1/attempts",
]
"""Requests that are answered, for an error about another path."""
LOGGERS = "asyncio", "aiohttp.server", requests.__name__


class Endpoint:
    """Serves the agents of one explorer.

    Args:
        model: model name listed for the policy.
        rules: what happens to options that cannot be followed.
        keyless_seconds: after which a connection without a valid key is closed.
    """

    def __init__(
        self,
        log: CallLog,
        model: str,
        address: EndpointAddress,
        rules: RequestsConfig = DEFAULT_REQUESTS,
        keyless_seconds: float = KEYLESS_SECONDS,
    ) -> None:
        self._log = log
        self._model = model
        self._address = address
        self._rules = rules
        self._reported: set[str] = set()
        """Replaced options and kinds of refusals that were logged."""
        self._agents: dict[bytes, Agent] = {}
        """Agents by the hash of their key."""
        self._written: dict[tuple[int, int], list[asyncio.Future[None]]] = {}
        """Programs that wait until the rollout of a group's member is written."""
        self._unknown: dict[bytes, None] = {}
        """Hashes of unknown keys, oldest first. A key is stored before it is given out, so unknown stays
        unknown."""
        self._connections = Connections(keyless_seconds)
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._log_limits = ExitStack()
        self._starting = asyncio.Lock()

    def let_in(self, agent: Entered, group: ClaimedGroup, member: int, policy: Policy) -> Agent:
        """Admit the program of an agent that is in the store, and let it query a policy."""
        let_in = self._let_in(agent.id, hash_of(agent.key), agent.key, policy, group, member)
        let_in.rewards, let_in.started_at = dict(agent.rewards), agent.started_at
        return let_in

    async def resume(self, group: ClaimedGroup, member: int, policy: Policy) -> Agent | None:
        """Admit a program that an earlier explorer served; or return None."""
        resumed = await self._log.resume(group, member)
        if resumed is None:
            return None
        agent = self._let_in(resumed.id, resumed.key_hash, "", policy, group, member)
        agent.restore(resumed)
        return agent

    def note_written(self, rollouts: Iterable[Rollout]) -> None:
        """Notify waiting programs that their rollouts are durable."""
        for rollout in rollouts:
            for waiting in self._written.pop((rollout.group.id, rollout.member), ()):
                if not waiting.done():
                    waiting.set_result(None)

    def _let_in(
        self, id: int, key_hash: bytes, key: str, policy: Policy, group: ClaimedGroup, member: int
    ) -> Agent:
        def forget() -> None:
            if self._agents.get(key_hash) is agent:
                del self._agents[key_hash]

        group_member = group.id, member
        agent = self._agents[key_hash] = Agent(id, self.url, key, group_member, policy, self._log, forget)
        return agent

    @property
    def url(self) -> str:
        """Base URL, without /v1."""
        assert self._listener is not None
        host, port = self._listener.sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def start(self) -> None:
        """Start listening, unless already listening.

        Raises:
            ConfigError: if the address is in use, or does not belong to this machine.
        """
        async with self._starting:
            if self._runner is not None:
                return
            host, port = self._address.host, self._address.port
            runner = web.AppRunner(self._application(), access_log=None, shutdown_timeout=STOP_SECONDS)
            await runner.setup()
            assert runner.server is not None
            try:
                self._listener = await self._connections.listen(runner.server, host, port)
            except OSError as error:
                await runner.cleanup()
                raise ConfigError(
                    f"The endpoint cannot listen on {host}:{port}: {error.strerror or error}"
                ) from error
            self._runner = runner
            self._log_limits.enter_context(limit_repeats(*LOGGERS))
            logger.info("endpoint for agents: %s", self.url)

    async def stop(self) -> None:
        """Stop listening, and close all connections."""
        runner, self._runner = self._runner, None
        if runner is not None:
            assert self._listener is not None
            self._listener.close()
            await runner.cleanup()
            self._log_limits.close()

    def _application(self) -> web.Application:
        around = [self._suspend_time_out, *([] if self._address.trace is None else [self._address.trace])]
        application = web.Application(client_max_size=MAX_BYTES, middlewares=around)
        router = application.router

        def add(method: str, path: str, handler: Handler, complain: Complain = openai_error) -> None:
            router.add_route(method, path, guarded(complain, handler, self._note))

        for dialect in DIALECTS:
            add("POST", dialect.path, self._answers(dialect), dialect.complain)
        add("POST", f"{MESSAGES.path}/count_tokens", self._count, MESSAGES.complain)
        for method in ("GET", "HEAD"):
            add(method, "/v1/models", self._models)
            add(method, "/v1/models/{name:.+}", self._model_of_name)
            add(method, "/", self._root)
        add("POST", "/v1/attempts", self._offer)
        for name, handler in (("reward", self._reward), ("finish", self._finish), ("fail", self._fail)):
            add("POST", f"/v1/attempts/{{key}}/{name}", handler)
        for path in ("/v1/messages{rest:.*}", "/{path:.*}"):
            add("*", path, _unknown, MESSAGES.complain if "messages" in path else openai_error)
        return application

    def _note(self, request: web.Request, problem: Refused) -> None:
        """Log each kind of refused request once, and count it for the agent's attempt."""
        if not 400 <= problem.status < 500 or problem.status == 429:  # the client tries again
            return
        if (agent := self._agents.get(hash_of(key_of(request)))) is not None:
            agent.policy.refusals.add(problem.message)
        if self._is_new(f"{problem.status} {problem.kind}"):
            path = "/v1/attempts" if "key" in request.match_info else request.path
            line = for_log(f"{request.method} {path}: {problem.message}")
            logger.warning("a program's request is refused: %s", line)

    def _is_new(self, kind: str) -> bool:
        """Whether a kind of option or refusal was not logged yet."""
        if kind in self._reported or len(self._reported) == MAX_REPORTED:
            return False
        self._reported.add(kind)
        return True

    @web.middleware
    async def _suspend_time_out(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        with self._connections.answering(request.transport):
            return await handler(request)

    def _answers(self, dialect: AgentDialect) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            agent = await self._agent(request)
            body = await body_of(request, agent.policy.context)

            def read() -> tuple[ParsedRequest, Incoming]:
                content = parsed(body)
                incoming = Incoming(
                    request.path,
                    digest_of(request, content),
                    retry_of(request),
                    lambda: request.transport is not None,
                )
                return self._read(dialect, agent, content), incoming

            async with agent.reading:  # start an agent's requests in their order of arrival
                question, incoming = await work_on(len(body), read)
            self._report(question)
            async with agent.answering(question, incoming) as answered:
                if question.is_streamed:
                    return await stream(request, dialect, question, answered, len(body))
                return await write(dialect, question, answered, len(body))

        return answer

    def _read(self, dialect: AgentDialect, agent: Agent, content: dict[str, Any]) -> ParsedRequest:
        tokenizer, renderer = agent.policy.tokenizer, agent.policy.renderer
        run = RequestContext(self._rules, renderer.reads, has_call_end(tokenizer))
        return dialect.read(content, run)

    def _report(self, question: ParsedRequest) -> None:
        """Log each kind of replaced option once."""
        for path, option in question.kinds.items():
            if self._is_new(path):
                logger.warning(
                    "a program's option '%s' is left out: %s. Its value is stored with the call; "
                    "explorer.requests.%s: strict rejects such requests",
                    for_log(path),
                    option.text,
                    option.kind,
                )

    async def _count(self, request: web.Request) -> web.Response:
        """Count the tokens of a conversation. Not a call of the policy, and not recorded."""
        agent = await self._agent(request)
        body = await body_of(request, agent.policy.context)
        question = await work_on(len(body), lambda: self._read(MESSAGES, agent, parsed(body)))
        tokens = await agent.policy.count(
            question.messages, question.tools, begun=question.begun, variables=question.variables
        )
        return web.json_response({"input_tokens": tokens})

    async def _models(self, request: web.Request) -> web.Response:
        await self._agent(request)
        return web.json_response({"object": "list", "data": [_model(self._model)]})

    async def _model_of_name(self, request: web.Request) -> web.Response:
        """Answer for any name that a request may have."""
        await self._agent(request)
        name = request.match_info["name"]
        check_model(name, self._rules)
        return web.json_response(_model(name))

    async def _root(self, request: web.Request) -> web.Response:
        """Answer clients that look whether the server is there."""
        return web.json_response({"paths": PATHS})

    async def _offer(self, request: web.Request) -> web.Response:
        """Assign an unstarted attempt to a program."""
        offers = self._address.offers
        if offers is None:
            raise Refused(404, "This endpoint does not offer attempts: the run's workflow makes them.")
        wanted = self._address.key
        if wanted is not None and not secrets.compare_digest(hash_of(key_of(request)), hash_of(wanted)):
            raise Refused(401, "The API key is not the key for taking attempts.", "invalid_api_key")
        self._connections.accept_key(request.transport)
        name = request.headers.get(IDEMPOTENCY_KEY)
        offer = await offers.take(OFFER_SECONDS, lambda: request.transport is not None, name)
        if offer is None:
            raise Refused(
                429,
                "No attempt can start now: the concurrency limit is reached, or there is no policy yet.",
                "no_attempt",
            )
        agent, task = offer
        url = f"{request.scheme}://{request.host}"
        answer = {"key": agent.key, "base_url": f"{url}/v1", "anthropic_base_url": url, "task": dict(task)}
        return web.json_response(answer, status=201)

    async def _reward(self, request: web.Request) -> web.Response:
        """Store a reward of an attempt; after the attempt has ended, as a reward event of the rollout."""
        key = await self._known(request)
        body = await body_of(request)
        rewards = await work_on(len(body), lambda: rewards_in(body))
        if (agent := self._agents.get(hash_of(key))) is not None:
            await agent.earn(rewards)
            return web.json_response({"rewards": agent.rewards})
        fate = await self._fate(key)
        if fate.state != "finished":
            raise Refused(409, f"The attempt's rollout is {fate.state or 'not written'}; it takes no reward.")
        await self._log.judge(fate, rewards)
        return web.json_response({"rollout": fate.rollout_id, "rewards": rewards})

    async def _finish(self, request: web.Request) -> web.Response:
        """End an attempt. The response confirms that its rollout is written.

        If a workflow makes the attempt, it ends with the workflow, which may wait for this response.
        """
        key = await self._known(request)
        body = await body_of(request)
        if (agent := self._agents.get(hash_of(key))) is not None:
            if body.strip():
                await agent.earn(await work_on(len(body), lambda: rewards_in(body)))
            if self._address.offers is None:
                return web.json_response({"rollout": None, "state": None})
            if self._address.offers.needs_reward and not agent.rewards:
                raise Refused(
                    400,
                    "The attempt has no reward: send it as the body of finish, or to reward before. For "
                    "rewards that come later set requires_reward: explore.",
                    "no_reward",
                )
            written = self._when_written(agent)
            agent.finish()
            await written
        fate = await self._fate(key)
        return web.json_response({"rollout": fate.rollout_id, "state": fate.state})

    async def _fail(self, request: web.Request) -> web.Response:
        """End an attempt as failed, which differs from a low reward. An ended attempt stays unchanged."""
        key = await self._known(request)
        body = await body_of(request)
        reason = (await work_on(len(body), lambda: parsed(body))).get("error") if body.strip() else None
        if (agent := self._agents.get(hash_of(key))) is not None:
            await agent.fail(str(reason or "the agent gave up"))
            return web.json_response({"state": "failed"})
        fate = await self._fate(key)
        return web.json_response({"state": fate.state or "failed"})

    def _when_written(self, agent: Agent) -> asyncio.Future[None]:
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._written.setdefault(agent.group_member, []).append(written)
        return written

    async def _agent(self, request: web.Request) -> Agent:
        """Return the agent that a request's key identifies.

        Raises:
            Refused: if the key belongs to no attempt in progress here.
        """
        key = key_of(request)
        agent = self._agents.get(hash_of(key))
        if agent is None:
            await self._fate(key)
            raise Refused(403, "The attempt has ended.")
        self._connections.accept_key(request.transport)
        return agent

    async def _known(self, request: web.Request) -> str:
        """Return the key in a request's path. An unknown key is rejected before the body is read.

        Raises:
            Refused: if the key is unknown, or its attempt waits for an explorer to claim its group again.
        """
        key = request.match_info["key"]
        if hash_of(key) not in self._agents:
            await self._fate(key)
        self._connections.accept_key(request.transport)
        return key

    async def _fate(self, key: str) -> Fate:
        """Return the outcome of an agent that this endpoint does not serve.

        Raises:
            Refused: if the key is unknown, or its attempt waits for an explorer to claim its group again.
        """
        hashed = hash_of(key)
        may_be_there = KEY.fullmatch(key) is not None and hashed not in self._unknown
        fate = await self._log.fate(key) if may_be_there else None
        if fate is None:
            if may_be_there:
                self._unknown[hashed] = None
                if len(self._unknown) > UNKNOWN_KEYS:
                    del self._unknown[next(iter(self._unknown))]
            raise Refused(401, "The API key is unknown.", "invalid_api_key")
        if not fate.ended:
            raise Refused(503, "The attempt continues once this explorer has claimed its group again.")
        return fate


async def _unknown(request: web.Request) -> web.StreamResponse:
    known = ", ".join(PATHS)
    message = f"There is no {request.method} {request.path[:200]} here; known: {known}."
    raise Refused(404, message, kind=request.path[:200])


def for_log(text: str) -> str:
    """Return a client's text in one line, without keys of attempts, which are secret."""
    return printable(" ".join(KEY.sub("KEY", text).split()))


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "trinity-db"}
