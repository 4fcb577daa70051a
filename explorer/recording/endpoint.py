"""The recording endpoint: an HTTP server in the explorer's event loop. It answers programs by their policies.

The key of a request names the attempt. A request is sampled whole, the call is stored, and then it is
answered, as one object or replayed as a stream.
"""

import asyncio
import logging
import secrets
from collections.abc import Iterable
from contextlib import ExitStack

from aiohttp import web

from trinity_db.connections import KEYLESS_SECONDS, Connections, limit_repeats
from trinity_db.errors import ConfigError
from trinity_db.explorer.long_texts import work_on
from trinity_db.explorer.policy import Policy
from trinity_db.explorer.recording import requests
from trinity_db.explorer.recording.agents import Agent
from trinity_db.explorer.recording.dialects import DIALECTS
from trinity_db.explorer.recording.dialects.dialect import Dialect, Refused, openai_error
from trinity_db.explorer.recording.dialects.messages import MESSAGES
from trinity_db.explorer.recording.listener import Place
from trinity_db.explorer.recording.log import CallLog
from trinity_db.explorer.recording.requests import (
    MAX_BYTES,
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
from trinity_db.store.calls import KEY, Entered, Fate, hash_of
from trinity_db.store.groups import ClaimedGroup, Rollout

logger = logging.getLogger(__name__)

UNKNOWN_KEYS = 1024  # that are remembered
OFFER_SECONDS = 2.0  # a program waits for an attempt; then it is told to ask again
STOP_SECONDS = 1.0  # for answers that are under way when the endpoint stops
LOGGERS = "asyncio", "aiohttp.server", requests.__name__


class Endpoint:
    """Answers the agents of one explorer.

    Args:
        model: the name under which the policy is listed.
        keyless_seconds: after which a connection without a key is closed.
    """

    def __init__(
        self, log: CallLog, model: str, place: Place, keyless_seconds: float = KEYLESS_SECONDS
    ) -> None:
        self._log = log
        self._model = model
        self._place = place
        self._agents: dict[bytes, Agent] = {}
        """By the hash of the key."""
        self._written: dict[tuple[int, int], list[asyncio.Future[None]]] = {}
        """Programs that wait until the rollout of a group's member is written."""
        self._unknown: dict[bytes, None] = {}
        """Hashes of keys that the store does not have, the oldest first. The store has each key first."""
        self._connections = Connections(keyless_seconds)
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._log_limits = ExitStack()
        self._starting = asyncio.Lock()

    def let_in(self, agent: Entered, group: ClaimedGroup, member: int, policy: Policy) -> Agent:
        """Let a program ask a policy, by the key of an agent that the store has."""
        let_in = self._let_in(agent.id, hash_of(agent.key), agent.key, policy, group, member)
        let_in.rewards, let_in.started_at = dict(agent.rewards), agent.started_at
        return let_in

    async def resume(self, group: ClaimedGroup, member: int, policy: Policy) -> Agent | None:
        """Let a program go on that an explorer before this one let in; None where there is none."""
        resumed = await self._log.resume(group, member)
        if resumed is None:
            return None
        agent = self._let_in(resumed.id, resumed.key_hash, "", policy, group, member)
        agent.restore(resumed)
        return agent

    def note_written(self, rollouts: Iterable[Rollout]) -> None:
        """Tell programs that wait for it that their rollouts are durable."""
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

        place = group.id, member
        agent = self._agents[key_hash] = Agent(id, self.url, key, place, policy, self._log, forget)
        return agent

    @property
    def url(self) -> str:
        """The base URL, without /v1."""
        assert self._listener is not None
        host, port = self._listener.sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def start(self) -> None:
        """Listen, unless it does.

        Raises:
            ConfigError: the address is taken, or is none of this machine's.
        """
        async with self._starting:
            if self._runner is not None:
                return
            host, port = self._place.host, self._place.port
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
            logger.info("agents ask at %s", self.url)

    async def stop(self) -> None:
        """Listen no more, and end all connections."""
        runner, self._runner = self._runner, None
        if runner is not None:
            assert self._listener is not None
            self._listener.close()
            await runner.cleanup()
            self._log_limits.close()

    def _application(self) -> web.Application:
        application = web.Application(client_max_size=MAX_BYTES, middlewares=[self._suspend_time_out])
        for dialect in DIALECTS:
            application.router.add_post(dialect.path, guarded(dialect.complain, self._answers(dialect)))
        router = application.router
        router.add_post(f"{MESSAGES.path}/count_tokens", guarded(MESSAGES.complain, self._count))
        router.add_get("/v1/models", guarded(openai_error, self._models))
        router.add_post("/v1/attempts", guarded(openai_error, self._offer))
        for name, handler in (("reward", self._reward), ("finish", self._finish), ("fail", self._fail)):
            router.add_post(f"/v1/attempts/{{key}}/{name}", guarded(openai_error, handler))
        return application

    @web.middleware
    async def _suspend_time_out(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        with self._connections.answering(request.transport):
            return await handler(request)

    def _answers(self, dialect: Dialect) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            agent = await self._agent(request)
            body = await body_of(request, agent.policy.context)
            async with agent.reading:  # requests of one agent begin in the order in which they came
                asked, digest = await work_on(
                    len(body), lambda: (dialect.read(parsed(body)), digest_of(request, body))
                )
            answered = await agent.answer(asked, digest, retry_of(request))
            if asked.is_streamed:
                return await stream(request, dialect, asked, answered, len(body))
            return await write(dialect, asked, answered, len(body))

        return answer

    async def _count(self, request: web.Request) -> web.Response:
        """The tokens of a conversation. It is no call of the policy, and is not recorded."""
        agent = await self._agent(request)
        body = await body_of(request, agent.policy.context)
        asked = await work_on(len(body), lambda: MESSAGES.read(parsed(body)))
        return web.json_response({"input_tokens": await agent.policy.count(asked.messages, asked.tools)})

    async def _models(self, request: web.Request) -> web.Response:
        await self._agent(request)
        model = {"id": self._model, "object": "model", "created": 0, "owned_by": "trinity-db"}
        return web.json_response({"object": "list", "data": [model]})

    async def _offer(self, request: web.Request) -> web.Response:
        """Give a program an attempt that has not begun yet."""
        offers = self._place.offers
        if offers is None:
            raise Refused(404, "This endpoint gives out no attempts: the run's workflow makes them.")
        wanted = self._place.key
        if wanted is not None and not secrets.compare_digest(hash_of(key_of(request)), hash_of(wanted)):
            raise Refused(
                401, "The API key is not the one by which attempts are given out.", "invalid_api_key"
            )
        self._connections.accept_key(request.transport)
        found = await offers.take(OFFER_SECONDS, lambda: request.transport is not None)
        if found is None:
            raise Refused(
                429,
                "No attempt can begin now: as many as may be are under way, or there is no policy yet.",
                "no_attempt",
            )
        agent, task = found
        url = f"{request.scheme}://{request.host}"
        answer = {"key": agent.key, "base_url": f"{url}/v1", "anthropic_base_url": url, "task": dict(task)}
        return web.json_response(answer, status=201)

    async def _reward(self, request: web.Request) -> web.Response:
        """Keep what an attempt earned. After its end it is a reward event of the rollout."""
        key = await self._known(request)
        body = await body_of(request)
        rewards = await work_on(len(body), lambda: rewards_in(body))
        if (agent := self._agents.get(hash_of(key))) is not None:
            await agent.earn(rewards)
            return web.json_response({"rewards": agent.rewards})
        fate = await self._fate(key)
        if fate.state != "finished":
            raise Refused(409, f"The attempt's rollout is {fate.state or 'not written'}; it has no reward.")
        await self._log.judge(fate, rewards)
        return web.json_response({"rollout": fate.rollout_id, "rewards": rewards})

    async def _finish(self, request: web.Request) -> web.Response:
        """End an attempt. The answer says that its rollout is written.

        An attempt that a workflow makes ends when the workflow does, which may wait for this answer.
        """
        key = await self._known(request)
        body = await body_of(request)
        if (agent := self._agents.get(hash_of(key))) is not None:
            if body.strip():
                await agent.earn(await work_on(len(body), lambda: rewards_in(body)))
            if self._place.offers is None:
                return web.json_response({"rollout": None, "state": None})
            written = self._when_written(agent)
            agent.finish()
            await written
        fate = await self._fate(key)
        return web.json_response({"rollout": fate.rollout_id, "state": fate.state})

    async def _fail(self, request: web.Request) -> web.Response:
        """End an attempt as a failed one, which is no bad one. An attempt that has ended stays as it is."""
        key = await self._known(request)
        body = await body_of(request)
        said = (await work_on(len(body), lambda: parsed(body))).get("error") if body.strip() else None
        if (agent := self._agents.get(hash_of(key))) is not None:
            await agent.fail(str(said or "the agent gave up"))
            return web.json_response({"state": "failed"})
        fate = await self._fate(key)
        return web.json_response({"state": fate.state or "failed"})

    def _when_written(self, agent: Agent) -> asyncio.Future[None]:
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._written.setdefault(agent.place, []).append(written)
        return written

    async def _agent(self, request: web.Request) -> Agent:
        """The agent whose key a request has.

        Raises:
            Refused: no attempt that is under way here has it.
        """
        key = key_of(request)
        agent = self._agents.get(hash_of(key))
        if agent is None:
            await self._fate(key)
            raise Refused(403, "The attempt has ended.")
        self._connections.accept_key(request.transport)
        return agent

    async def _known(self, request: web.Request) -> str:
        """The key in the path of a request. One that names no attempt is refused before the body is read.

        Raises:
            Refused: there is none, or it may go on as soon as an explorer has its group again.
        """
        key = request.match_info["key"]
        if hash_of(key) not in self._agents:
            await self._fate(key)
        self._connections.accept_key(request.transport)
        return key

    async def _fate(self, key: str) -> Fate:
        """What became of an agent that this endpoint does not answer.

        Raises:
            Refused: there was none, or it may go on as soon as an explorer has its group again.
        """
        hashed = hash_of(key)
        may_be_there = KEY.fullmatch(key) is not None and hashed not in self._unknown
        fate = await self._log.fate(key) if may_be_there else None
        if fate is None:
            if may_be_there:
                self._unknown[hashed] = None
                if len(self._unknown) > UNKNOWN_KEYS:
                    del self._unknown[next(iter(self._unknown))]
            raise Refused(401, "The API key names no attempt.", "invalid_api_key")
        if not fate.ended:
            raise Refused(503, "The attempt goes on as soon as this explorer has its group again.")
        return fate
