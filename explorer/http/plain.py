"""A plain endpoint of one policy version for evaluation clients: greedy by default, and recording nothing.

The protocols are those of the recording endpoint, without keys of attempts. Completions also return the
log-probabilities of the prompt's tokens (`echo` and `logprobs`).
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence
from typing import Any, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trinity_db.config.shared import PromptConfig
from trinity_db.explorer.attempt.long_texts import CHARACTERS, check_fits, work_on
from trinity_db.explorer.attempt.policy import Policy
from trinity_db.explorer.config import MIN_TEMPERATURE, RequestsConfig
from trinity_db.explorer.engines.engine import (
    Completion,
    Engine,
    EngineFailed,
    Request,
    Scores,
    generate,
    score,
)
from trinity_db.explorer.http.agents import Agent
from trinity_db.explorer.http.dialects.completions import COMPLETIONS
from trinity_db.explorer.http.dialects.dialect import AgentDialect, ParsedRequest, stop_strings
from trinity_db.explorer.http.dialects.options import Refused
from trinity_db.explorer.http.endpoint import MAX_REPORTED, Endpoint, for_log
from trinity_db.explorer.http.listener import EndpointAddress
from trinity_db.explorer.http.log import CallLog
from trinity_db.explorer.http.requests import Handler, body_of, key_of, parsed
from trinity_db.models.chat.prompts import prompt_ids
from trinity_db.store.calls import Call, Fate, hash_of

logger = logging.getLogger(__name__)

SEED_BITS = 63


class NoLog(CallLog):
    """Stores nothing: there are no attempts."""

    def __init__(self) -> None:
        self.has_agents = False

    async def add(self, call: Call) -> None:
        """Forget a call."""

    async def fate(self, key: str) -> Fate | None:
        """Return None: no key belongs to an attempt."""


class _Completion(BaseModel):
    """A request for completions."""

    model_config = ConfigDict(extra="forbid")

    prompt: str | list[int] | list[str] | list[list[int]]
    model: str = ""
    max_tokens: int | None = Field(None, ge=0)
    temperature: float = Field(0.0, ge=0)
    seed: int | None = Field(None, ge=0, lt=2**63)
    stop: str | list[str] | None = None
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=1)
    n: Literal[1] = 1
    best_of: Literal[1] = 1
    top_p: Literal[1] = 1
    presence_penalty: Literal[0] = 0
    frequency_penalty: Literal[0] = 0
    stream: Literal[False] = False
    user: str = ""

    @property
    def stops(self) -> Sequence[str]:
        return stop_strings(self.stop)

    @property
    def sampling_seed(self) -> int:
        """The requested seed, or a random one, so that repeated requests with a temperature differ."""
        return secrets.randbits(SEED_BITS) if self.seed is None else self.seed

    @property
    def prompts(self) -> list[Any]:
        """The prompts, each a text or tokens."""
        is_one = isinstance(self.prompt, str) or not self.prompt or isinstance(self.prompt[0], int)
        return [self.prompt] if is_one else [*self.prompt]


class PlainEndpoint(Endpoint):
    """Serves an engine's version to clients that know the key, if there is one, until its engine fails.

    Args:
        max_new_tokens: limit of a response for requests without one.
    """

    def __init__(
        self,
        engine: Engine,
        model: str,
        address: EndpointAddress,
        rules: RequestsConfig,
        prompts: PromptConfig,
        max_new_tokens: int,
    ) -> None:
        super().__init__(NoLog(), model, address, rules)
        self._engine = engine
        self._prompts = prompts
        self._max_new_tokens = max_new_tokens
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the server is to stop; if the engine has failed, with its error."""

    def end(self, failure: EngineFailed | None = None) -> None:
        """Let the server stop. The engine's first failure counts: each request in flight reports one."""
        if self.ended.done():
            return
        if failure is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(failure)

    async def _agent(self, request: web.Request) -> Agent:
        """Return an agent for this request alone, whose policy has the request's temperature.

        Raises:
            Refused: if the key is wrong.
        """
        self._check_key(request)
        body = await self._parsed(request) if request.method == "POST" else {}
        policy = Policy(
            self._engine,
            lambda text: prompt_ids(text, self._engine.tokenizer),
            prompts=self._prompts,
            temperature=_temperature(body.get("temperature")),
            max_new_tokens=self._max_new_tokens,
            seed=0,
        )
        # Ids of answers and of tool calls are made of this number, and so is the seed.
        policy.calls.begun = secrets.randbits(SEED_BITS)
        return Agent(0, self.url, "", (0, 0), policy, self._log, lambda: None)

    async def _parsed(self, request: web.Request) -> dict[str, Any]:
        body = await body_of(request, self._engine.context)
        return await work_on(len(body), lambda: parsed(body))

    def _check_key(self, request: web.Request) -> None:
        wanted = self._address.key
        if wanted is not None and not secrets.compare_digest(hash_of(key_of(request)), hash_of(wanted)):
            raise Refused(401, "The API key is wrong.", "invalid_api_key")
        self._connections.accept_key(request.transport)

    def _report(self, question: ParsedRequest) -> None:
        """Log each kind of option that is left out once. Temperature 0 is followed here."""
        for path, option in question.kinds.items():
            if path == "temperature" or path in self._reported or len(self._reported) == MAX_REPORTED:
                continue
            self._reported.add(path)
            logger.warning("a client's option '%s' is left out: %s", for_log(path), option.text)

    def _answers(self, dialect: AgentDialect) -> Handler:
        handler = self._complete if dialect is COMPLETIONS else super()._answers(dialect)

        async def answer(request: web.Request) -> web.StreamResponse:
            try:
                return await handler(request)
            except EngineFailed as error:
                self.end(error)
                raise

        return answer

    async def _complete(self, request: web.Request) -> web.Response:
        """Answer a request for completions, of one prompt or several."""
        self._check_key(request)
        body = await self._parsed(request)
        try:  # as in the other protocols, null is like no value
            question = _Completion.model_validate(
                {key: value for key, value in body.items() if value is not None}
            )
        except ValidationError as error:
            first = error.errors()[0]
            raise Refused(400, f"'{'.'.join(map(str, first['loc']))}': {first['msg']}.") from None
        if question.logprobs is not None and question.temperature and question.max_tokens != 0:
            raise Refused(400, "'logprobs' needs temperature 0, or max_tokens 0.", "unsupported_value")
        answers = await asyncio.gather(*(self._choice(question, prompt) for prompt in question.prompts))
        numbers = {name: sum(usage[name] for _, usage in answers) for name in answers[0][1]}
        return web.json_response(
            {
                "id": f"cmpl-{secrets.token_hex(8)}",
                "object": "text_completion",
                "created": int(time.time()),
                "model": question.model,
                "choices": [choice | {"index": index} for index, (choice, _) in enumerate(answers)],
                "usage": numbers | {"total_tokens": sum(numbers.values())},
            }
        )

    async def _choice(
        self, question: _Completion, prompt: str | list[int]
    ) -> tuple[dict[str, Any], dict[str, int]]:
        """Complete one prompt; return the choice and its numbers of tokens."""
        ids = prompt if isinstance(prompt, list) else await work_on(len(prompt), lambda: self._ids(prompt))
        needs_scores = question.echo and question.logprobs is not None
        scores = await score(self._engine, ids) if needs_scores else None
        completion = None
        if question.max_tokens != 0:
            limit = question.max_tokens or self._max_new_tokens
            temperature = _temperature(question.temperature)
            request = Request(ids, limit, temperature, question.sampling_seed, question.stops)
            completion = await generate(self._engine, request)
        sampled = [] if completion is None else completion.token_ids
        characters = CHARACTERS * (len(ids) + len(sampled))
        choice = await work_on(characters, lambda: self._described(question, ids, scores, completion))
        return choice, {"prompt_tokens": len(ids), "completion_tokens": len(sampled)}

    def _ids(self, prompt: str) -> list[int]:
        check_fits(prompt, self._engine.tokenizer, self._engine.context)
        return [*prompt_ids(prompt, self._engine.tokenizer)]

    def _described(
        self, question: _Completion, ids: list[int], scores: Scores | None, completion: Completion | None
    ) -> dict[str, Any]:
        """Return a choice with its text and, if requested, the log-probabilities of its tokens."""
        decode = self._engine.tokenizer.decode
        shown = ids if question.echo else []
        sampled = [] if completion is None else completion.token_ids
        text = decode(sampled, skip_special_tokens=True) if sampled else ""
        for stop in question.stops:
            text = text.partition(stop)[0]
        choice = {
            "text": (decode(shown) if shown else "") + text,
            "finish_reason": "length" if completion is None else completion.finish_reason,
            "logprobs": None,
        }
        if question.logprobs is None:
            return choice
        logprobs, tops = list[float | None](), list[dict[str, float] | None]()
        if scores is not None:
            logprobs, tops = [None, *scores.logprobs], [None]
            for token, logprob, (best, highest) in zip(
                ids[1:], scores.logprobs, scores.likeliest, strict=True
            ):
                tops.append({decode([token]): logprob, decode([best]): highest})
        if completion is not None:
            logprobs += completion.logprobs
            pairs = zip(sampled, completion.logprobs, strict=True)
            tops += [{decode([token]): logprob} for token, logprob in pairs]
        tokens = [decode([token]) for token in (*shown, *sampled)]
        choice["logprobs"] = {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops}
        return choice


def _temperature(value: Any) -> float:
    """Return the temperature of a request; 0, greedy, without one or below the lowest."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and value >= MIN_TEMPERATURE else 0.0
