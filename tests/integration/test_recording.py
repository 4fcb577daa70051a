"""The recording endpoint: what programs are answered, and what is stored of it."""

import asyncio
import gc
import json
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from itertools import count
from typing import Any

import aiohttp
import openai
import pytest

from tests.support.explorers import ERRORS, Explore, Explorers, Says, give_back, sequences, stored, user
from tests.support.rows import Scene
from tests.support.waiting import until, wait_until
from trinity_db.arrays import codec
from trinity_db.explorer.attempt.policy import Policy
from trinity_db.explorer.attempt.recorded import Sampled
from trinity_db.explorer.engines.engine import Completion, Request, RequestFailed, RequestRefused
from trinity_db.postgres.connection import connect

CALLS = (
    "SELECT a.ordinal, a.retry, c.number FROM trinity.call c JOIN trinity.agent a ON a.id = c.agent_id"
    " ORDER BY a.ordinal, a.retry, c.number"
)
WAITS = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@asynccontextmanager
async def asking(policy: Policy) -> AsyncIterator[Callable[..., Any]]:
    """Asks a policy over HTTP: status and content of the answer."""
    address = await policy.address()

    async def ask(
        body: Any, path: str = "/v1/chat/completions", key: str = "", **headers: str
    ) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {key or address.key}", **headers}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with session.post(address.url + path, data=data, headers=headers) as response:
            return response.status, await response.json()

    async with aiohttp.ClientSession() as session:
        yield ask


def test_a_conversation_over_http_is_one_sequence_of_the_tokens_that_were_sampled(
    explore: Explore, scene: Scene
) -> None:
    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        address = await policy.address()
        async with openai.AsyncOpenAI(base_url=f"{address.url}/v1", api_key=address.key) as client:
            first = await client.chat.completions.create(model="m", messages=[user("a?")])
            assert first.usage is not None
            assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (2, 3)
            said = first.choices[0].message
            assert (said.role, said.content, first.choices[0].finish_reason) == ("assistant", "yes", "stop")
            again: Any = [user("a?"), said.model_dump(), user("b?")]
            stream = await client.chat.completions.create(
                model="m", messages=again, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "yes"
            assert chunks[-1].usage is not None
            assert chunks[-1].usage.total_tokens == 10
            assert [model.id async for model in await client.models.list()] == [scene.run.name]
        return 1.0

    explore(workflow)
    assert sequences(scene) == [("a?yesb?yes", "..xxx..xxx")] * 2
    assert scene.values("SELECT reward FROM trinity.experience") == [1.0, 1.0]


def test_a_call_is_stored_before_it_is_answered_and_goes_with_the_rollout(
    explore: Explore, scene: Scene
) -> None:
    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        async with asking(policy) as ask:
            for number in range(3):
                await ask({"messages": [user("?" * (number + 1))]})
                mine = (await policy.address()).id  # type: ignore[attr-defined]
                found = stored(
                    scene, f"SELECT number, prompt, finish_reason FROM trinity.call WHERE agent_id = {mine}"
                )
                assert sorted(found) == [(one, "?" * (one + 1), "stop") for one in range(number + 1)]
        return 0.0

    explore(workflow)
    assert scene.values(ERRORS) == [None, None]
    assert scene.rows(CALLS) == []
    assert scene.values("SELECT ended_at IS NOT NULL FROM trinity.agent") == [True, True]


def test_the_calls_of_an_attempt_that_failed_stay(explore: Explore, scene: Scene) -> None:
    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        async with asking(policy) as ask:
            await ask({"messages": [user("?")]})
        raise RuntimeError("lost my way")

    explore(workflow, retries=1)
    assert scene.rows(CALLS) == [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]
    data = scene.rows("SELECT codec, data, num_tokens FROM trinity.call")
    assert [codec.decode(*row).token_ids.tolist() for row in data] == [[ord(one) for one in "?yes"]] * 4


REFUSED = {
    "no JSON": (b"{", 400, "not valid JSON"),
    "no object": ([], 400, "must be a JSON object"),
    "no messages": ({}, 400, "'messages' must be a list"),
    "a message without a role": ({"messages": [{"content": "a"}]}, 400, "each with a role"),
    "top_p": (
        {"messages": [user("a")], "top_p": 0.9},
        400,
        "'top_p' is 0.9: tokens are sampled from the whole distribution",
    ),
    "several answers": ({"messages": [user("a")], "n": 2}, 400, "'n' is 2"),
    "a format": (
        {"messages": [user("a")], "response_format": {"type": "json_object"}},
        400,
        "constrained answers are not",
    ),
    "an answer that is forced": (
        {"messages": [user("a")], "tool_choice": "required"},
        400,
        "forcing a call",
    ),
    "no text": ({"messages": [user(5)]}, 400, "texts only"),
    "an image": ({"messages": [user([{"type": "image_url", "image_url": {"url": ""}}])]}, 400, "no images"),
    "no call": (
        {"messages": [user("a") | {"tool_calls": "b"}]},
        400,
        "a tool call that is not an object: 'b'",
    ),
    "no tokens": ({"messages": [user("a")], "max_tokens": 0}, 400, "must be at least 1"),
    "half a token": (
        {"messages": [user("a")], "max_tokens": 0.5},
        400,
        "'max_tokens' must be an integer",
    ),
    "too much": ({"messages": [user("a" * 5000)]}, 400, "does not fit the context"),
}


def test_what_cannot_be_answered_is_refused_in_one_line_and_leaves_a_trace(
    explore: Explore, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    said: dict[str, tuple[int, str]] = {}
    codes: set[str | None] = set()

    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        async with asking(policy) as ask:
            for name, (body, _, _) in REFUSED.items():
                status, answer = await ask(body)
                said[name] = status, answer["error"]["message"]
                codes.add(answer["error"]["code"])
            status, answer = await ask({"messages": [user("a")]}, key="unknown")
            assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
            status, answer = await ask(b"{}", **{"Content-Encoding": "gzip"})
            assert (status, answer["error"]["message"][:24]) == (400, "The body cannot be read:")
        return 0.0

    explore(workflow, requests="strict")
    for name, (_, status, message) in REFUSED.items():
        assert said[name][0] == status, name
        assert message in said[name][1], name
    assert "context_length_exceeded" in codes
    number = len(REFUSED) + 1  # an unknown key belongs to no attempt
    for error in scene.values(ERRORS):
        assert error.startswith(
            f"ValueError: the workflow sampled nothing from the policy; {number} requests were refused: "
            "The request is not valid JSON"
        )
    assert caplog.text.count("a program's request is refused: POST /v1/chat/completions: 'top_p' is 0.9") == 1
    assert caplog.text.count("a program's request is refused") == number + 1


def test_a_fault_of_the_engine_is_not_answered_like_one_of_the_request(
    explore: Explore, scene: Scene
) -> None:
    class Faulty(Says):
        async def generate(self, request: Request) -> Completion:
            completion = await super().generate(request)
            faults = {
                "r": RequestRefused("no such token"),
                "f": RequestFailed("garbled"),
                "v": ValueError("bug"),
            }
            letter = self.tokenizer.decode(request.prompt_ids)
            if letter in faults:
                raise faults[letter]
            return replace(completion, logprobs=[math.inf] * 3) if letter == "i" else completion

    statuses: dict[str, int] = {}

    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        async with asking(policy) as ask:
            for letter in "rfvi":
                statuses[letter], _ = await ask({"messages": [user(letter)]})
        return 0.0

    explore(workflow, Faulty(), size=1)
    assert statuses == {"r": 400, "f": 500, "v": 500, "i": 500}
    [error] = scene.values(ERRORS)
    assert error.endswith("; 1 request was refused: no such token")


def test_a_path_that_is_not_there_is_answered_with_those_that_are(explore: Explore, scene: Scene) -> None:
    answers: list[tuple[int, Any]] = []

    async def workflow(task: Mapping[str, Any], policy: Policy) -> None:
        address = await policy.address()
        async with aiohttp.ClientSession(headers={"x-api-key": address.key}) as session:
            for method, path in (
                ("POST", "/chat/completions"),
                ("GET", "/v1/messages"),
                ("GET", "/v1/models/small/model"),
                ("HEAD", "/"),
            ):
                async with session.request(method, address.url + path) as response:
                    answers.append((response.status, await response.json() if method != "HEAD" else None))

    explore(workflow, size=1)
    (_, unknown), (_, of_anthropic), (_, model), _ = answers
    assert [status for status, _ in answers] == [404, 404, 200, 200]
    assert unknown["error"]["message"].startswith(
        "There is no POST /chat/completions here; known: POST /v1/chat"
    )
    assert of_anthropic["type"] == "error"
    assert of_anthropic["error"]["message"].startswith("There is no GET /v1/messages here")
    assert model["id"] == "small/model"
    [error] = scene.values(ERRORS)
    assert "2 requests were refused: There is no POST /chat/completions here" in error


def test_requests_are_logged_without_keys_and_each_in_one_line(
    explore: Explore, caplog: pytest.LogCaptureFixture
) -> None:
    keys: list[str] = []

    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        address = await policy.address()
        keys.append(address.key)
        path = f"/v1/attempts/{address.key}/finnish"
        async with aiohttp.ClientSession() as session, session.post(address.url + path) as response:
            assert response.status == 404
        async with asking(policy) as ask:
            await ask({"messages": [user("a")], "a\nforged\x1b[2J line": 1})
        return 1.0

    explore(workflow, size=1)
    assert "is refused: POST /v1/attempts/KEY/finnish: There is no POST /v1/attempts/KEY/fin" in caplog.text
    assert keys[0] not in caplog.text
    assert "option 'a forged\\x1b[2J line' is left out" in caplog.text


def numbered() -> Says:
    """An engine that says another word each time."""
    numbers = count()
    return Says(lambda prompt: f"yes{next(numbers)}")


LEFT_OUT = "SELECT number, model, left_out, data IS NULL FROM trinity.call ORDER BY number"


def test_a_request_that_a_client_repeats_is_sampled_once(explore: Explore, scene: Scene) -> None:
    engine = numbered()
    repeated = {"x-stainless-retry-count": "1"}

    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        engine.gate = asyncio.Event()
        agent: Any = await policy.address()
        async with asking(policy) as ask:
            body = {"messages": [user("a")]}
            first = asyncio.create_task(ask(body))
            await until(lambda: engine.asked, "the first is being sampled")
            again = asyncio.create_task(ask(body, **repeated))
            await until(lambda: agent._under_way == 2, "both are being answered")
            twin = asyncio.create_task(ask(body))
            await until(lambda: len(engine.asked) == 2, "an equal request at the same time is another one")
            engine.gate.set()
            assert await first == await again
            assert await twin != await first
            assert await ask({**body, "stream": False}) == await twin  # the last answer, with no header
            assert await ask(body, **{"x-stainless-retry-count": "2"}) == await twin
            assert len(engine.asked) == 2
            keyed = await ask(body, **{"Idempotency-Key": "one"})
            assert await ask(body, **{"Idempotency-Key": "one"}) == keyed
            assert len(engine.asked) == 3
            for answer in (await first, await twin):
                said = answer[1]["choices"][0]["message"]
                await ask({"messages": [user("a"), said, user("b")]})
            assert (await ask(body))[1]["choices"][0]["message"]["content"] == "yes5"
        return 1.0

    explore(workflow, engine, size=1)
    assert scene.values(ERRORS) == [None]
    assert [text for text, _ in sequences(scene)] == ["ayes0byes3", "ayes1byes4", "ayes2"]
    assert scene.rows(LEFT_OUT) == [(5, "", "repeated", False)]
    assert scene.values("SELECT reward FROM trinity.experience") == [1.0] * 3


def test_agents_that_ask_the_same_again_may_get_a_sample_each_time(explore: Explore, scene: Scene) -> None:
    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        async with asking(policy) as ask:
            for _ in range(3):
                await ask({"messages": [user("a")]})
        return 1.0

    explore(workflow, numbered(), size=1, requests={"repeats": "sample"})
    assert [text for text, _ in sequences(scene)] == ["ayes0", "ayes1", "ayes2"]


def test_calls_that_name_other_models_are_answered_and_not_trained(explore: Explore, scene: Scene) -> None:
    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        async with asking(policy) as ask:
            await ask({"model": "small", "messages": [user("title?")]})
            messages = [user("a")]
            for model in ("policy", "small", "policy", "small"):
                _, answer = await ask({"model": model, "messages": messages})
                messages = [*messages, answer["choices"][0]["message"], user("b")]
        return 1.0

    explore(workflow, numbered(), size=1, requests={"train": ["policy"]})
    assert scene.values(ERRORS) == [None]
    assert sequences(scene) == [("ayes1byes2byes3", ".xxxx......xxxx")]
    assert scene.rows(LEFT_OUT) == [(number, "small", "model", False) for number in (0, 2, 4)]
    view = "SELECT step, left_out, calls, models, paths, num_tokens, num_trained, reward"
    paths = ["/v1/chat/completions"]
    assert scene.rows(f"{view} FROM trinity.sequence_view ORDER BY step, num_tokens") == [
        (0, None, 2, ["policy"], paths, 15, 8, 1.0),
        *((None, "model", 1, ["small"], paths, tokens, 0, None) for tokens in (10, 10, 20)),
    ]


def test_a_rollout_ends_as_its_last_trained_call_ended(explore: Explore, scene: Scene) -> None:
    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        async with asking(policy) as ask:
            await ask({"model": "policy", "messages": [user("a")]})
            await ask({"model": "small", "messages": [user("title?")], "max_tokens": 1})
        return 1.0

    explore(workflow, size=1, requests={"train": ["policy"]})
    assert scene.values("SELECT finish_reason FROM trinity.rollout") == ["stop"]


def test_a_conversation_that_goes_on_without_a_side_call_is_one_sequence(
    explore: Explore, scene: Scene
) -> None:
    """The side call asks about the conversation so far, and had its place in the sequence."""

    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        async with asking(policy) as ask:
            messages = [user("a")]
            for question in ("b", "c"):
                _, answer = await ask({"model": "policy", "messages": messages})
                messages = [*messages, answer["choices"][0]["message"]]
                await ask({"model": "small", "messages": [*messages, user("title?")]})
                messages = [*messages, user(question)]
            await ask({"model": "policy", "messages": messages})
        return 1.0

    explore(workflow, numbered(), size=1, requests={"train": ["policy"]})
    assert scene.values(ERRORS) == [None]
    assert sequences(scene) == [("ayes0byes2cyes4", ".xxxx.xxxx.xxxx")]
    assert scene.rows(LEFT_OUT) == [(number, "small", "model", False) for number in (1, 3)]
    assert scene.values("SELECT shares_reward FROM trinity.rollout") == [False]


def test_an_attempt_that_names_other_models_alone_fails(explore: Explore, scene: Scene) -> None:
    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        async with asking(policy) as ask:
            await ask({"model": "small", "messages": [user("a")]})
        return 1.0

    explore(workflow, size=1, requests={"train": ["policy"]})
    assert scene.values(ERRORS) == [
        "ValueError: no call of the attempt names a model of explorer.requests.train"
    ]


def test_a_conversation_is_kept_once_however_often_it_comes_back(explore: Explore, scene: Scene) -> None:
    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        messages: list[Any] = [user("a")]
        others = [one for one in gc.get_objects() if type(one) is Sampled]  # of tests before this one
        async with asking(policy) as ask:
            for _ in range(4):
                answer = await ask({"messages": messages})
                last, messages = messages, [*messages, answer[1]["choices"][0]["message"], user("b")]
            gc.collect()
            kept = [one for one in gc.get_objects() if type(one) is Sampled]
            assert all(any(one is other for other in others) for one in kept)
            assert await ask({"messages": last}) == answer
        return 0.0

    explore(workflow, size=1)
    assert scene.values(ERRORS) == [None]
    assert sequences(scene) == [("a" + "yesb" * 3 + "yes", "." + "xxx." * 3 + "xxx")]


def test_histories_that_a_program_rewrites_train_each_sampled_token_once(
    explore: Explore, scene: Scene
) -> None:
    """Turns left out in the middle, a summary in place of turns, and conversations side by side."""
    number = count()

    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        async with asking(policy) as ask:

            async def after(*messages: Any) -> list[Any]:
                _, answer = await ask({"messages": messages})
                return [*messages, answer["choices"][0]["message"]]

            whole = await after(user("s"), user("a"))
            whole = await after(*whole, user("b"))
            await after(*whole[:1], *whole[3:], user("c"))  # without the question a and its answer
            await after(user("s"), user("sum"), user("d"))
            # Two programs with the same first messages take turns, and the first conversation goes on.
            one, two = await after(user("s"), user("p")), await after(user("s"), user("p"))
            await after(*two, user("q"))
            await after(*one, user("q"))
            await after(*whole, user("e"))
        return 1.0

    says = Says(lambda prompt: f"<{next(number)}>")
    explore(workflow, says, size=1, requests={"repeats": "sample"})
    assert scene.values(ERRORS) == [None]
    assert sorted(sequences(scene)) == [
        ("sa<0>b<1>e<8>", "..xxx.xxx.xxx"),
        ("sb<1>c<2>", "......xxx"),
        ("sp<4>q<7>", "..xxx.xxx"),
        ("sp<5>q<6>", "..xxx.xxx"),
        ("ssumd<3>", ".....xxx"),
    ]
    assert scene.values("SELECT shares_reward FROM trinity.rollout") == [True]


def test_a_call_that_is_cancelled_while_it_is_stored_is_part_of_the_attempt(
    explore: Explore, scene: Scene
) -> None:
    """What the store has, a policy has that goes on in this process, as one that goes on in another."""

    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        await policy.address()
        with closing(connect(scene.database.url)) as other:
            other.execute("LOCK TABLE trinity.call")
            call = asyncio.create_task(policy.complete("a"))
            await asyncio.to_thread(wait_until, lambda: stored(scene, WAITS), "it waits for the lock")
            call.cancel()
            await asyncio.wait([call])
            assert call.cancelled()
        await policy.complete("b")
        return 0.0

    explore(workflow, size=1)
    assert sequences(scene) == [("ayes", ".xxx"), ("byes", ".xxx")]


def test_a_client_that_leaves_before_its_stream_begins_gets_the_answer_when_it_asks_again(
    explorer: Explorers, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Says()

    def connections() -> int:
        """Those that the endpoint does not know to be closed."""
        endpoint: Any = role._endpoint
        return sum(one.transport is not None for one in endpoint._runner.server.connections)

    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        engine.gate = asyncio.Event()
        async with asking(policy) as ask:
            left = asyncio.create_task(ask({"messages": [user("a")], "stream": True}))
            await until(lambda: engine.asked, "it is being sampled")
            assert connections() == 1
            left.cancel()
            await asyncio.wait([left])
            await until(lambda: not connections(), "the endpoint sees that the connection is closed")
            again = asyncio.create_task(ask({"messages": [user("a")]}))
            agent: Any = await policy.address()
            await until(lambda: agent._under_way == 2, "it asks again, without streaming")
            engine.gate.set()
            assert (await again)[0] == 200
            assert len(engine.asked) == 1
        return 0.0

    role = explorer(workflow, engine, group_size=1, groups=1)
    assert role.work()
    assert scene.values(ERRORS) == [None]
    assert sequences(scene) == [("ayes", ".xxx")]
    assert "a call failed" not in caplog.text


SPOKEN = '<tool_call>{"name":"add","arguments":{"a":1}}</tool_call>'
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}


def calls_once(prompt: str) -> str:
    """What a model says that calls a tool, and then knows the answer."""
    return "two" if prompt.endswith("2") else SPOKEN


def test_tools_are_called_by_their_ids_and_what_comes_back_keeps_the_tokens(
    explore: Explore, scene: Scene
) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}

    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        async with asking(policy) as ask:
            _, first = await ask({"messages": [user("1+1?")], "tools": [tool]})
            [choice] = first["choices"]
            message = choice["message"]
            [call] = message["tool_calls"]
            assert choice["finish_reason"] == "tool_calls"
            assert (message["content"], call["type"]) == (None, "function")
            assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
            result = {"role": "tool", "tool_call_id": call["id"], "content": "2"}
            _, last = await ask({"messages": [user("1+1?"), message, result], "tools": [tool]})
            assert last["choices"][0]["message"]["content"] == "two"
        return 0.0

    explore(workflow, Says(calls_once))
    assert scene.values(ERRORS) == [None, None]
    assert sequences(scene)[0] == (f"add1+1?{SPOKEN}2two", "......." + "x" * len(SPOKEN) + ".xxx")


def test_responses_are_answered_item_by_item(explore: Explore, scene: Scene) -> None:
    tool: Any = {"type": "function", "name": "add", "parameters": PARAMETERS, "strict": False}

    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        address = await policy.address()
        async with openai.AsyncOpenAI(base_url=f"{address.url}/v1", api_key=address.key) as client:
            first = await client.responses.create(model="m", instructions="S", input="1+1?", tools=[tool])
            [call] = first.output
            assert call.type == "function_call"
            assert (call.name, call.arguments) == ("add", '{"a": 1}')
            assert first.usage is not None
            assert (first.usage.input_tokens, first.usage.output_tokens) == (9, len(SPOKEN))
            items: Any = [
                {"role": "user", "content": [{"type": "input_text", "text": "1+1?"}]},
                call.model_dump(),
                {"type": "function_call_output", "call_id": call.call_id, "output": "2"},
            ]
            async with client.responses.stream(
                model="m", instructions="S", input=items, tools=[tool]
            ) as stream:
                kinds = [event.type async for event in stream]
                last = await stream.get_final_response()
            assert kinds[-1] == "response.completed"
            assert last.output_text == "two"
            with pytest.raises(openai.BadRequestError, match="send the whole conversation as input"):
                await client.responses.create(model="m", input="a", previous_response_id="resp_1")
        return 1.0

    explore(workflow, Says(calls_once))
    assert scene.values(ERRORS) == [None, None]
    assert sequences(scene)[0] == (f"addaS1+1?{SPOKEN}2two", "........." + "x" * len(SPOKEN) + ".xxx")


def test_messages_are_answered_block_by_block(explore: Explore, scene: Scene) -> None:
    tool = {"name": "add", "input_schema": PARAMETERS}

    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        key = (await policy.address()).key
        async with asking(policy) as ask:

            async def say(messages: list[Any], path: str = "/v1/messages", **options: Any) -> tuple[int, Any]:
                body = {"system": "S", "max_tokens": 99, "tools": [tool], "messages": messages, **options}
                status, answer = await ask(body, path, **{"Authorization": "", "x-api-key": key})
                return status, answer

            asked = user([{"type": "text", "text": "1+1?"}])
            status, counted = await say([asked], "/v1/messages/count_tokens")
            assert (status, counted) == (200, {"input_tokens": 9})
            _, first = await say([asked])
            [block] = first["content"]
            assert (first["stop_reason"], block["type"], block["input"]) == ("tool_use", "tool_use", {"a": 1})
            assert first["usage"] == {"input_tokens": 9, "output_tokens": len(SPOKEN)}
            result = {
                "type": "tool_result",
                "tool_use_id": block["id"],
                "content": [{"type": "text", "text": "2"}],
            }
            _, last = await say([asked, {"role": "assistant", "content": first["content"]}, user([result])])
            assert (last["content"], last["stop_reason"]) == ([{"type": "text", "text": "two"}], "end_turn")
            status, refused = await say([user("a" * 5000)])
            assert (status, refused["type"]) == (400, "error")
            assert refused["error"]["message"].startswith("prompt is too long")
            status, refused = await say([user([{"type": "image", "source": {}}])])
            assert (status, refused["error"]["type"]) == (400, "invalid_request_error")
        return 1.0

    explore(workflow, Says(calls_once))
    assert scene.values(ERRORS) == [None, None]
    assert sequences(scene)[0] == (f"addaS1+1?{SPOKEN}2two", "........." + "x" * len(SPOKEN) + ".xxx")


def test_a_stream_of_messages_has_the_events_of_its_protocol(explore: Explore) -> None:
    seen: list[str] = []

    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        address = await policy.address()
        body = {"max_tokens": 9, "messages": [user("a")], "stream": True}
        async with (
            aiohttp.ClientSession(headers={"x-api-key": address.key}) as session,
            session.post(f"{address.url}/v1/messages", json=body) as response,
        ):
            seen.append(await response.text())
        return 1.0

    explore(workflow, size=1)
    lines = seen[0].splitlines()
    assert [line.removeprefix("event: ") for line in lines if line.startswith("event: ")] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    said = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert said[2]["delta"] == {"type": "text_delta", "text": "yes"}
    assert said[4]["usage"] == {"output_tokens": 3}


def test_tokens_and_texts_are_continued_as_they_are(explore: Explore, scene: Scene) -> None:
    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        async with asking(policy) as ask:
            _, first = await ask({"prompt": "ab", "max_tokens": 2}, "/v1/completions")
            assert (first["choices"][0]["text"], first["choices"][0]["finish_reason"]) == ("ye", "length")
            body = {"prompt": [97, 98, 121, 101], "return_token_ids": True}
            _, second = await ask(body, "/v1/completions")
            assert second["choices"][0]["token_ids"] == [ord(one) for one in "yes"]
        return 0.0

    explore(workflow)
    assert sequences(scene) == [("abyeyes", "..xxxxx")] * 2


def test_an_attempt_whose_group_was_lost_is_told_so(explore: Explore, scene: Scene) -> None:
    said: list[tuple[int, str]] = []

    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        async with asking(policy) as ask:
            await ask({"messages": [user("a")]})
            if not said:
                await asyncio.to_thread(give_back, scene)
                status, answer = await ask({"messages": [user("b")]})
                said.append((status, answer["error"]["message"]))
        return 0.0

    explore(workflow, size=1)
    assert said == [(403, "The attempt has ended.")]
    assert scene.values("SELECT prompt FROM trinity.call") == ["a"]
    assert sorted(scene.values("SELECT state FROM trinity.rollout")) == ["finished", "refused"]
