"""Programs whose network loses requests and answers: each token that they go on with is trained once.

The attempts of a group are conversations over HTTP. At each turn, chance decides what the network does to the
request and its answer, and the program repeats the request until it has an answer. The engine says another
number each time, so that a second sample does not look like the first.
"""

import asyncio
import json
import random
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import compress, count
from string import ascii_lowercase
from typing import Any

import aiohttp
import pytest

from tests.support.explorers import ERRORS, Explore, Says, sequences, user
from tests.support.rows import Scene
from tests.support.waiting import until
from trinity_db.explorer.attempt.policy import Policy
from trinity_db.explorer.engines.engine import Completion, Request

MEMBERS, TURNS = 6, 6
NUMBER = re.compile(r"\d+;")
REASONS = "SELECT DISTINCT left_out FROM trinity.call"
REPEATS: Sequence[dict[str, str]] = ({}, {"x-stainless-retry-count": "1"})
"""Headers of a client's repetition: most agents send none."""


def opened() -> asyncio.Event:
    gate = asyncio.Event()
    gate.set()
    return gate


class Numbers(Says):
    """Says another number each time, and can hold a conversation, which its first letter names."""

    def __init__(self) -> None:
        numbers = count()
        super().__init__(lambda prompt: f"{next(numbers)};")
        self.begun: dict[str, int] = defaultdict(int)
        """Number of samples that were begun, by conversation."""
        self.gates: dict[str, asyncio.Event] = defaultdict(opened)

    async def generate(self, request: Request) -> Completion:
        letter = self.tokenizer.decode(request.prompt_ids)[0]
        self.begun[letter] += 1
        await self.gates[letter].wait()
        return await super().generate(request)


class Program:
    """A conversation over a network that fails.

    Args:
        letter: its first message.
    """

    def __init__(
        self, letter: str, engine: Numbers, address: Any, session: aiohttp.ClientSession, seed: int
    ) -> None:
        self._letter = letter
        self._engine = engine
        self._url = f"{address.url}/v1/chat/completions"
        self._key = f"Bearer {address.key}"
        self._session = session
        self._chance = random.Random(f"{seed} {letter}")
        self._sent: list[bytes] = []
        """Requests of the turns so far."""

    async def run(self) -> str:
        """Make all turns; return the conversation."""
        messages = [user(self._letter)]
        for turn in range(TURNS):
            body = json.dumps({"model": "m", "messages": messages}).encode()
            self._sent.append(body)
            answer = await self._chance.choice(self._faults())(body)
            messages = [*messages, answer, user(f"{turn}?")]
        return "".join(message["content"] for message in messages[:-1])

    def _faults(self) -> list[Callable[[bytes], Awaitable[Any]]]:
        return [
            self._no_fault,
            self._lost_answer,
            self._cut_while_sampled,
            self._cut_stream,
            self._late_repetition,
            self._kept_open,
        ]

    async def _ask(self, body: bytes, headers: Mapping[str, str] = {}) -> Any:
        async with self._session.post(
            self._url, data=body, headers={"Authorization": self._key, **headers}
        ) as response:
            assert response.status == 200, await response.text()
            return (await response.json())["choices"][0]["message"]

    async def _again(self, body: bytes) -> Any:
        """Repeat a request, perhaps with its keys in another order."""
        turned = json.dumps(dict(reversed(json.loads(body).items()))).encode()
        return await self._ask(self._chance.choice((body, turned)), self._chance.choice(REPEATS))

    async def _no_fault(self, body: bytes) -> Any:
        return await self._ask(body)

    async def _lost_answer(self, body: bytes) -> Any:
        """A proxy takes the answer and loses it, twice."""
        await self._ask(body)
        await self._ask(body, {"x-stainless-retry-count": "1"})
        return await self._ask(body, self._chance.choice(({}, {"x-stainless-retry-count": "2"})))

    async def _cut_while_sampled(self, body: bytes) -> Any:
        """The client times out, closes its connection and repeats the request."""
        async with self._held_call(body) as call:
            call.cancel()
            await asyncio.wait([call])
            again = asyncio.create_task(self._again(body))
        return await again

    async def _cut_stream(self, body: bytes) -> Any:
        """The connection breaks after the first bytes of a stream."""
        streamed = json.dumps({**json.loads(body), "stream": True}).encode()
        async with self._session.post(
            self._url, data=streamed, headers={"Authorization": self._key}
        ) as response:
            assert await response.content.read(20)
            response.close()
        return await self._again(body)

    async def _kept_open(self, body: bytes) -> Any:
        """The client repeats the request, while a proxy keeps the first connection open."""
        async with self._held_call(body) as call:
            headers, begun = self._chance.choice(REPEATS), self._engine.begun[self._letter]
            again = asyncio.create_task(self._ask(body, headers))
            if not headers:
                await until(lambda: self._engine.begun[self._letter] > begun, "a second sample is begun")
        await call
        return await again

    async def _late_repetition(self, body: bytes) -> Any:
        """A request of this turn or of an earlier one arrives once more."""
        answer = await self._ask(body)
        await self._again(self._chance.choice(self._sent))
        return answer

    @asynccontextmanager
    async def _held_call(self, body: bytes) -> AsyncIterator["asyncio.Task[Any]"]:
        """A call whose answer is not there before the end of the context."""
        gate, begun = self._engine.gates[self._letter], self._engine.begun[self._letter]
        gate.clear()
        call = asyncio.create_task(self._ask(body))
        await until(lambda: self._engine.begun[self._letter] > begun, "the call is being sampled")
        yield call
        gate.set()


@pytest.mark.parametrize("seed", range(3))
def test_each_token_of_a_conversation_is_trained_once_whatever_answers_are_lost(
    explore: Explore, scene: Scene, seed: int
) -> None:
    engine, letters = Numbers(), iter(ascii_lowercase)
    conversations: list[str] = []

    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        async with aiohttp.ClientSession() as session:
            program = Program(next(letters), engine, await policy.address(), session, seed)
            conversations.append(await program.run())
        return 1.0

    explore(workflow, engine, size=MEMBERS)
    assert scene.values(ERRORS) == [None] * MEMBERS
    assert sorted(text for text, _ in sequences(scene)) == sorted(conversations)
    for text, marks in sequences(scene):
        sampled = NUMBER.findall(text)
        assert len(sampled) == TURNS
        assert "".join(compress(text, (mark == "x" for mark in marks))) == "".join(sampled)
    assert scene.values(REASONS) == ["repeated"]
