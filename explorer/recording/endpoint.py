"""The recording endpoint: an HTTP server in the explorer's event loop. It answers programs by their policies.

The key of a request names the attempt. A request is sampled whole, the call is stored, and then it is
answered, as one object or replayed as a stream.
"""

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from aiohttp import web

from trinity_db.errors import ConfigError, DatabaseUnavailable, LeaseLost, TrinityError
from trinity_db.explorer.engines.engine import EngineFailed
from trinity_db.explorer.policy import Policy
from trinity_db.explorer.recording.agents import Agent
from trinity_db.explorer.recording.dialects import DIALECTS
from trinity_db.explorer.recording.dialects.dialect import Answered, Asked, Dialect, Refused, openai_error
from trinity_db.explorer.recording.dialects.messages import MESSAGES
from trinity_db.explorer.recording.listener import Place
from trinity_db.explorer.recording.log import CallLog
from trinity_db.prompts import PromptTooLong, UntokenizableText
from trinity_db.store.calls import Fate, hash_of
from trinity_db.store.groups import ClaimedGroup, Rollout, named_rewards

logger = logging.getLogger(__name__)

MAX_BYTES = 64 * 2**20  # of a request: a conversation of some ten million tokens
KEY_BYTES = 24  # of randomness in a key
RETRY_COUNT = "x-stainless-retry-count"  # how often the OpenAI and Anthropic libraries repeated a request
IDEMPOTENCY_KEY = "Idempotency-Key"
OFFER_SECONDS = 2.0  # a program waits for an attempt; then it is told to ask again
STOP_SECONDS = 1.0  # for answers that are under way when the endpoint stops

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Endpoint:
    """Answers the agents of one explorer.

    Args:
        model: the name under which the policy is listed.
    """

    def __init__(self, log: CallLog, model: str, place: Place) -> None:
        self._log = log
        self._model = model
        self._place = place
        self._agents: dict[bytes, Agent] = {}
        """By the hash of the key."""
        self._written: dict[tuple[int, int], list[asyncio.Future[None]]] = {}
        """Programs that wait until the rollout of a group's member is written."""
        self._runner: web.AppRunner | None = None
        self._starting = asyncio.Lock()

    async def open(self, group: ClaimedGroup, member: int, retry: int, policy: Policy) -> Agent:
        """Let a program ask a policy, by a key of its own.

        Raises:
            LeaseLost: another explorer has the group by now.
        """
        await self.start()
        key = f"trinity-{secrets.token_urlsafe(KEY_BYTES)}"
        id = await self._log.begin(group, member, retry, key)
        return self._let_in(id, hash_of(key), key, policy, group, member)

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
        assert self._runner is not None
        host, port = self._runner.addresses[0][:2]
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
            try:
                await web.TCPSite(runner, host, port).start()
            except OSError as error:
                await runner.cleanup()
                raise ConfigError(
                    f"The endpoint cannot listen on {host}:{port}: {error.strerror or error}"
                ) from error
            self._runner = runner
            logger.info("agents ask at %s", self.url)

    async def stop(self) -> None:
        """Listen no more, and end all connections."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def _application(self) -> web.Application:
        application = web.Application(client_max_size=MAX_BYTES)
        for dialect in DIALECTS:
            application.router.add_post(dialect.path, _guarded(dialect.complain, self._answers(dialect)))
        router = application.router
        router.add_post(f"{MESSAGES.path}/count_tokens", _guarded(MESSAGES.complain, self._count))
        router.add_get("/v1/models", _guarded(openai_error, self._models))
        router.add_post("/v1/attempts", _guarded(openai_error, self._offer))
        for name, handler in (("reward", self._reward), ("finish", self._finish), ("fail", self._fail)):
            router.add_post(f"/v1/attempts/{{key}}/{name}", _guarded(openai_error, handler))
        return application

    def _answers(self, dialect: Dialect) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            agent = await self._agent(_key(request))
            body = await request.read()
            asked = dialect.read(_parsed(body))
            answered = await agent.answer(asked, _digest(request, body), _retry(request))
            if asked.is_streamed:
                return await _stream(request, dialect, asked, answered)
            return web.json_response(dialect.write(asked, answered))

        return answer

    async def _count(self, request: web.Request) -> web.Response:
        """The tokens of a conversation. It is no call of the policy, and is not recorded."""
        agent = await self._agent(_key(request))
        asked = MESSAGES.read(_parsed(await request.read()))
        return web.json_response({"input_tokens": agent.policy.count(asked.messages, asked.tools)})

    async def _models(self, request: web.Request) -> web.Response:
        await self._agent(_key(request))
        model = {"id": self._model, "object": "model", "created": 0, "owned_by": "trinity-db"}
        return web.json_response({"object": "list", "data": [model]})

    async def _offer(self, request: web.Request) -> web.Response:
        """Give a program an attempt that has not begun yet."""
        offers = self._place.offers
        if offers is None:
            raise Refused(404, "This endpoint gives out no attempts: the run's workflow makes them.")
        wanted = self._place.key
        if wanted is not None and not secrets.compare_digest(hash_of(_key(request)), hash_of(wanted)):
            raise Refused(
                401, "The API key is not the one by which attempts are given out.", "invalid_api_key"
            )
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
        key = request.match_info["key"]
        rewards = _rewards(await request.read())
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
        key, body = request.match_info["key"], await request.read()
        if (agent := self._agents.get(hash_of(key))) is not None:
            if body.strip():
                await agent.earn(_rewards(body))
            if self._place.offers is None:
                return web.json_response({"rollout": None, "state": None})
            written = self._when_written(agent)
            agent.finish()
            await written
        fate = await self._fate(key)
        return web.json_response({"rollout": fate.rollout_id, "state": fate.state})

    async def _fail(self, request: web.Request) -> web.Response:
        """End an attempt as a failed one, which is no bad one. An attempt that has ended stays as it is."""
        key, body = request.match_info["key"], await request.read()
        said = _parsed(body).get("error") if body.strip() else None
        if (agent := self._agents.get(hash_of(key))) is not None:
            await agent.fail(str(said or "the agent gave up"))
            return web.json_response({"state": "failed"})
        fate = await self._fate(key)
        return web.json_response({"state": fate.state or "failed"})

    def _when_written(self, agent: Agent) -> asyncio.Future[None]:
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._written.setdefault(agent.place, []).append(written)
        return written

    async def _agent(self, key: str) -> Agent:
        """The agent whose key a request has.

        Raises:
            Refused: no attempt that is under way here has it.
        """
        agent = self._agents.get(hash_of(key))
        if agent is None:
            await self._fate(key)
            raise Refused(403, "The attempt has ended.")
        return agent

    async def _fate(self, key: str) -> Fate:
        """What became of an agent that this endpoint does not answer.

        Raises:
            Refused: there was none, or it may go on as soon as an explorer has its group again.
        """
        fate = await self._log.fate(key)
        if fate is None:
            raise Refused(401, "The API key names no attempt.", "invalid_api_key")
        if not fate.ended:
            raise Refused(503, "The attempt goes on as soon as this explorer has its group again.")
        return fate


def _guarded(complain: Callable[[Refused], dict[str, Any]], handler: Handler) -> Handler:
    """The handler, with what goes wrong told in the dialect of the request."""

    async def guarded(request: web.Request) -> web.StreamResponse:
        try:
            if "Origin" in request.headers:  # a page in a browser on this machine reaches loopback addresses
                raise Refused(403, "Web pages are not answered.")
            return await handler(request)
        except web.HTTPRequestEntityTooLarge:
            problem = Refused(413, f"A request has at most {MAX_BYTES // 2**20} MiB.")
        except web.HTTPException:
            raise
        except Exception as error:
            problem = _problem(error)
        headers = {"Retry-After": "1"} if problem.status in (429, 503) else {}
        return web.json_response(complain(problem), status=problem.status, headers=headers)

    return guarded


def _problem(error: Exception) -> Refused:
    """What a program is told of an error."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, PromptTooLong):
        return Refused(400, f"The context is too small: {error}", "context_length_exceeded")
    if isinstance(error, UntokenizableText | ValueError | TypeError):
        return Refused(400, str(error), "invalid_value")
    if isinstance(error, LeaseLost):
        return Refused(403, str(error))
    if isinstance(error, EngineFailed | DatabaseUnavailable):
        return Refused(503, str(error))
    if isinstance(error, TrinityError):
        return Refused(500, str(error))
    logger.error("a call was not answered", exc_info=error)
    return Refused(500, f"{type(error).__name__}: {error}")


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"The request is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise Refused(400, "The request must be a JSON object.")
    return value


def _key(request: web.Request) -> str:
    kind, _, key = request.headers.get("Authorization", "").partition(" ")
    return (key if kind.lower() == "bearer" else request.headers.get("x-api-key", "")).strip()


def _rewards(body: bytes) -> dict[str, float]:
    """A number, or several by name.

    Raises:
        Refused: they are something else.
    """
    try:
        rewards = named_rewards(json.loads(body))
    except (ValueError, TypeError, RecursionError) as error:
        raise Refused(400, f"A reward is a number, or an object of numbers by name: {error}") from None
    if not rewards:
        raise Refused(400, "A reward is a number, or an object of numbers by name.")
    return rewards


def _digest(request: web.Request, body: bytes) -> bytes:
    parts = request.path.encode(), request.headers.get(IDEMPOTENCY_KEY, "").encode(), body
    return blake2b(b"\x00".join(parts), digest_size=16).digest()


def _retry(request: web.Request) -> int | None:
    """Which repetition of a request it is, as `Agent.answer` takes it."""
    if IDEMPOTENCY_KEY in request.headers:
        return None
    count = request.headers.get(RETRY_COUNT, "0")
    return int(count) if count.isdecimal() else 0


async def _stream(
    request: web.Request, dialect: Dialect, asked: Asked, answered: Answered
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    with suppress(ConnectionError):  # the program has left; its repetition gets the same answer
        await response.prepare(request)
        for event in dialect.events(asked, answered):
            await response.write(event.encode())
        await response.write_eof()
    return response
