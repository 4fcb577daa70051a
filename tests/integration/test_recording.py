"""The recording endpoint: what programs are answered, what is stored of it, what becomes of attempts."""

import asyncio
import json
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from tests.echo import Digits, Echo
from tests.rows import Scene, wait_until_blocked
from trinity_db import arrays
from trinity_db.database import connect
from trinity_db.errors import ConfigError
from trinity_db.explorer.config import ExplorerConfig
from trinity_db.explorer.engines.engine import Completion, Request
from trinity_db.explorer.policy import Policy
from trinity_db.explorer.recording.command import Command
from trinity_db.explorer.recording.listener import Place
from trinity_db.explorer.recording.offers import Offers
from trinity_db.explorer.service import Explorer
from trinity_db.explorer.workflow import Workflow
from trinity_db.models import folder_digest
from trinity_db.store.groups import Pace

CALLS = (
    "SELECT a.ordinal, a.retry, c.number FROM trinity.call c JOIN trinity.agent a ON a.id = c.agent_id"
    " ORDER BY a.ordinal, a.retry, c.number"
)
ERRORS = "SELECT error FROM trinity.rollout ORDER BY id"
ASK = """
import json, os, urllib.request
def ask(content, path="/chat/completions"):
    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + path
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as response:
        return json.load(response)
"""


class Talk(Digits):
    """A tokenizer that writes a token as one character, and conversations with a system too."""

    response_template = None

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        return "".join(message["content"] for message in messages)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return "".join(map(chr, token_ids))


class Says(Echo):
    """An engine that says the same each time, or what a function makes of the prompt."""

    tokenizer = Talk()

    def __init__(self, answer: str | Callable[[str], str] = "yes", context: int = 4096) -> None:
        super().__init__(context=context)
        self.answer = answer
        self.gate: asyncio.Event | None = None
        """Where there is one, responses wait for it."""

    async def generate(self, request: Request) -> Completion:
        await super().generate(request)
        if self.gate is not None:
            await self.gate.wait()
        prompt = self.tokenizer.decode(request.prompt_ids)
        said = self.answer if isinstance(self.answer, str) else self.answer(prompt)
        tokens = self.tokenizer.encode(said, add_special_tokens=False)[: request.max_new_tokens]
        reason = "stop" if len(tokens) == len(said) else "length"
        return Completion(tokens, [-0.5] * len(tokens), [self.version] * len(tokens), reason)  # type: ignore[arg-type]


Explore = Callable[..., Explorer]


@pytest.fixture
def explore(scene: Scene, tmp_path: Path) -> Iterator[Explore]:
    """Explores one group with a workflow, to its end."""
    folder = tmp_path / "version-0"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    with scene.database.transaction() as tx:
        tx.execute(
            "UPDATE trinity.policy_version SET checkpoint = %s, checkpoint_hash = %s WHERE run_id = %s",
            [str(folder), folder_digest.digest(folder), scene.run.id],
        )
    made: list[Explorer] = []

    def explore(
        workflow: Workflow,
        engine: Echo | None = None,
        size: int = 2,
        place: Place | None = None,
        **options: Any,
    ) -> Explorer:
        config = ExplorerConfig(group_size=size, **options)
        pace = Pace(max_staleness=0, per_version=1)
        role = Explorer(
            scene.database,
            scene.run,
            config,
            workflow,
            engine or Says(),
            pace,
            scene.selection,
            "{prompt}",
            place=place,
        )
        role.worker_id = scene.explorer
        made.append(role)
        if place is None:
            assert role.work()
        return role

    yield explore
    for role in made:
        role.release()


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Callable[[str], Command]]:
    """Makes a workflow of a program's text; the program may `ask` the policy."""
    made: list[Command] = []

    def command(program: str) -> Command:
        path = tmp_path / f"agent-{len(made)}.py"
        path.write_text(ASK + program)
        made.append(Command(f"{sys.executable} -S '{path}'"))
        return made[-1]

    yield command
    for one in made:
        one.close()


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


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


def stored(scene: Scene, statement: str) -> list[tuple[Any, ...]]:
    """What is committed, as another connection sees it."""
    with closing(connect(scene.database.url)) as other:
        return [tuple(row.values()) for row in other.execute(statement.encode())]


def sequences(scene: Scene) -> list[tuple[str, str]]:
    """Of each experience the text, and below it an x for each token that was sampled."""
    rows = scene.rows("SELECT codec, data, num_tokens FROM trinity.payload ORDER BY experience_id")
    found = [arrays.decode(*row) for row in rows]
    return [
        (Talk().decode(one.token_ids.tolist()), "".join(".x"[int(sampled)] for sampled in one.action_mask))
        for one in found
    ]


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
                await ask({"messages": [user("?")]})
                mine = (await policy.address()).id  # type: ignore[attr-defined]
                found = stored(
                    scene, f"SELECT number, prompt, finish_reason FROM trinity.call WHERE agent_id = {mine}"
                )
                assert sorted(found) == [(one, "?", "stop") for one in range(number + 1)]
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
    assert [arrays.decode(*row).token_ids.tolist() for row in data] == [[ord(one) for one in "?yes"]] * 4


REFUSED = {
    "no JSON": (b"{", 400, "no JSON"),
    "no object": ([], 400, "must be a JSON object"),
    "no messages": ({}, 400, "'messages' must be a list"),
    "a message without a role": ({"messages": [{"content": "a"}]}, 400, "each with a role"),
    "top_p": (
        {"messages": [user("a")], "top_p": 0.9},
        400,
        "'top_p' is 0.9; the policy is trained on what it",
    ),
    "several answers": ({"messages": [user("a")], "n": 2}, 400, "'n' is 2"),
    "a format": (
        {"messages": [user("a")], "response_format": {"type": "json_object"}},
        400,
        "answers are not const",
    ),
    "an answer that is forced": (
        {"messages": [user("a")], "tool_choice": "required"},
        400,
        "to force a call",
    ),
    "no text": ({"messages": [user(5)]}, 400, "texts only"),
    "an image": ({"messages": [user([{"type": "image_url", "image_url": {"url": ""}}])]}, 400, "no images"),
    "no call": ({"messages": [user("a") | {"tool_calls": "b"}]}, 400, "a tool call that is no object: 'b'"),
    "no tokens": ({"messages": [user("a")], "max_tokens": 0}, 400, "at least one token"),
    "half a token": (
        {"messages": [user("a")], "max_tokens": 0.5},
        400,
        "'max_tokens' must be a whole number",
    ),
    "too much": ({"messages": [user("a" * 5000)]}, 400, "does not fit the context"),
}


def test_what_cannot_be_answered_is_refused_in_one_line_and_nothing_is_sampled(
    explore: Explore, scene: Scene
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
        return 0.0

    explore(workflow)
    for name, (_, status, message) in REFUSED.items():
        assert said[name][0] == status, name
        assert message in said[name][1], name
    assert "context_length_exceeded" in codes
    assert set(scene.values(ERRORS)) == {"ValueError: the workflow asked the policy for nothing"}


def test_a_request_that_a_client_repeats_is_sampled_once(explore: Explore, scene: Scene) -> None:
    engine = Says()
    repeated = {"x-stainless-retry-count": "1"}

    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        engine.gate = asyncio.Event()
        async with asking(policy) as ask:
            body = {"messages": [user("a")]}
            first = asyncio.create_task(ask(body))
            while not engine.asked:
                await asyncio.sleep(0.001)
            again = asyncio.create_task(ask(body, **repeated))  # the first is still under way
            await asyncio.sleep(0.01)
            engine.gate.set()
            assert await first == await again
            assert await ask(body, **{"x-stainless-retry-count": "2"}) == await first
            assert len(engine.asked) == 1
            assert await ask(body) != await first  # nothing says that this is the same request
            keyed = await ask(body, **{"Idempotency-Key": "one"})
            assert await ask(body, **{"Idempotency-Key": "one"}) == keyed
            assert len(engine.asked) == 3
        return 0.0

    explore(workflow, engine, size=1)
    assert scene.values(ERRORS) == [None]


def test_a_client_that_leaves_before_its_stream_begins_is_no_error(
    explore: Explore, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Says()

    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        engine.gate = asyncio.Event()
        async with asking(policy) as ask:
            left = asyncio.create_task(ask({"messages": [user("a")], "stream": True}))
            while not engine.asked:
                await asyncio.sleep(0.001)
            left.cancel()
            await asyncio.wait([left])
            await asyncio.sleep(0.05)  # the endpoint sees that the connection is closed
            engine.gate.set()
            assert (await ask({"messages": [user("b")]}))[0] == 200
        return 0.0

    explore(workflow, engine, size=1)
    assert scene.values(ERRORS) == [None]
    assert "was not answered" not in caplog.text


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
    assert sequences(scene)[0] == (f"1+1?{SPOKEN}2two", "...." + "x" * len(SPOKEN) + ".xxx")


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
            assert (first.usage.input_tokens, first.usage.output_tokens) == (5, len(SPOKEN))
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
    assert sequences(scene)[0] == (f"S1+1?{SPOKEN}2two", "....." + "x" * len(SPOKEN) + ".xxx")


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
            assert (status, counted) == (200, {"input_tokens": 5})
            _, first = await say([asked])
            [block] = first["content"]
            assert (first["stop_reason"], block["type"], block["input"]) == ("tool_use", "tool_use", {"a": 1})
            assert first["usage"] == {"input_tokens": 5, "output_tokens": len(SPOKEN)}
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
    assert sequences(scene)[0] == (f"S1+1?{SPOKEN}2two", "....." + "x" * len(SPOKEN) + ".xxx")


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


def give_back(scene: Scene) -> None:
    """Take the groups from the explorer, as after a silence."""
    with closing(connect(scene.database.url)) as other:
        other.execute("UPDATE trinity.rollout_group SET worker_id = NULL WHERE state = 'open'")
        other.commit()


@dataclass
class Served:
    """An explorer that gives attempts to whatever program asks, in a thread of its own."""

    role: Explorer
    url: str

    def post(self, path: str, body: Any = None, key: str = "", **headers: str) -> tuple[int, Any]:
        data = b"" if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", **headers}
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method="POST")
        try:
            with urllib.request.urlopen(request) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def say(self, key: str, *texts: str, **headers: str) -> tuple[int, Any]:
        return self.post("/v1/chat/completions", {"messages": [user(text) for text in texts]}, key, **headers)


@pytest.fixture
def serve(explore: Explore) -> Callable[..., AbstractContextManager[Served]]:
    """Serves attempts until the end of the block."""

    @contextmanager
    def serve(seconds: float | None = None, key: str | None = None, **options: Any) -> Iterator[Served]:
        offers = Offers(seconds)
        with closing(socket.create_server(("127.0.0.1", 0))) as probe:
            port = probe.getsockname()[1]
        role = explore(offers, place=Place("127.0.0.1", port, offers, key), **options)
        thread = threading.Thread(target=role.work)
        thread.start()
        try:
            until_listening(port)
            yield Served(role, f"http://127.0.0.1:{port}")
        finally:
            role.stop()
            role.wake()
            thread.join()
            role.release()

    return serve


def until_listening(port: int) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.01)
    raise AssertionError("the endpoint does not listen")


Serve = Callable[..., AbstractContextManager[Served]]


def test_agents_of_other_people_take_attempts_and_end_them(serve: Serve, scene: Scene) -> None:
    with serve(key="secret") as served:
        for wrong in ("wrong", "fälsch"):
            assert served.post("/v1/attempts", key=wrong)[0] == 401
            assert served.say(wrong, "a?")[0] == 401
        keys = []
        for _ in range(2):
            status, given = served.post("/v1/attempts", key="secret")
            assert (status, given["base_url"]) == (201, f"{served.url}/v1")
            assert "prompt" in given["task"]
            keys.append(given["key"])
        assert served.post("/v1/attempts", key="secret")[0] == 429  # the pace allows one group of two
        assert served.say(keys[0], "a?")[0] == 200
        assert served.post(f"/v1/attempts/{keys[0]}/reward", {"style": 0.5}) == (
            200,
            {"rewards": {"style": 0.5}},
        )
        status, ended = served.post(f"/v1/attempts/{keys[0]}/finish", 1)
        assert (status, ended["state"]) == (200, "finished")
        assert stored(scene, "SELECT state FROM trinity.rollout") == [("finished",)]
        assert stored(scene, "SELECT name, value FROM trinity.reward_event ORDER BY 1") == [
            ("style", 0.5),
            ("workflow", 1.0),
        ]
        assert served.say(keys[0], "b?") == (403, error("The attempt has ended."))
        assert served.post(f"/v1/attempts/{keys[1]}/fail", {"error": "no tools"}) == (
            200,
            {"state": "failed"},
        )
        assert served.say(keys[1], "b?")[0] == 403
        # A page in a browser reaches this address too, and cannot keep from saying where it comes from.
        assert served.post("/v1/attempts", key="secret", Origin="http://page.example")[0] == 403
    assert scene.values(ERRORS) == [None, "AttemptFailed: no tools"]


def error(message: str) -> Any:
    return {"error": {"message": message, "type": "permission_error", "param": None, "code": None}}


def test_a_reward_after_the_end_is_a_reward_event_like_any_other(serve: Serve, scene: Scene) -> None:
    with serve(size=1) as served:
        key = served.post("/v1/attempts")[1]["key"]
        served.say(key, "a?")
        assert served.post(f"/v1/attempts/{key}/finish", {"judge": 1})[1]["state"] == "finished"
        assert served.post(f"/v1/attempts/{key}/reward", {"judge": -1})[0] == 200
        assert served.post(f"/v1/attempts/{key}/reward", "much")[0] == 400
        assert served.post("/v1/attempts/unknown/reward", 1)[0] == 401
        assert served.post(f"/v1/attempts/{key}/fail")[1] == {"state": "finished"}
    assert scene.values("SELECT reward FROM trinity.experience") == [-1.0]
    assert scene.values("SELECT reward_mean FROM trinity.rollout_group") == [-1.0]


def test_a_reward_that_is_being_stored_when_the_attempt_ends_counts(serve: Serve, scene: Scene) -> None:
    with serve(size=1) as served, ThreadPoolExecutor(2) as threads:
        key = served.post("/v1/attempts")[1]["key"]
        served.say(key, "a?")
        with closing(connect(scene.database.url)) as other:
            other.execute("SELECT FROM trinity.agent FOR UPDATE")
            late = threads.submit(served.post, f"/v1/attempts/{key}/reward", {"late": 1})
            wait_until_blocked(scene.database, late)
            ended = threads.submit(served.post, f"/v1/attempts/{key}/finish")
            time.sleep(0.1)  # the workflow returns
        assert late.result() == (200, {"rewards": {"late": 1}})
        assert ended.result()[1]["state"] == "finished"
        assert stored(scene, "SELECT name, value FROM trinity.reward_event") == [("late", 1.0)]


def test_an_agent_that_never_ends_is_a_failed_rollout(serve: Serve, scene: Scene) -> None:
    with serve(seconds=0.3, size=1) as served:
        key = served.post("/v1/attempts")[1]["key"]
        served.say(key, "a?")
        until_written(scene, 1)
    assert scene.values(ERRORS) == ["TookTooLong: took longer than 0.3 s"]
    assert scene.values("SELECT prompt FROM trinity.call") == ["a?"]


def test_an_attempt_that_took_too_long_is_offered_again_to_another_agent(serve: Serve, scene: Scene) -> None:
    with serve(seconds=0.5, size=1, retries=1) as served:
        late = served.post("/v1/attempts")[1]["key"]
        served.say(late, "a?")
        status, given = served.post("/v1/attempts")  # it waits for the next offer
        assert status == 201
        assert served.say(late, "b?")[0] == 403
        served.say(given["key"], "c?")
        assert served.post(f"/v1/attempts/{given['key']}/finish")[1]["state"] == "finished"
    assert sequences(scene) == [("c?yes", "..xxx")]


def until_written(scene: Scene, count: int) -> None:
    deadline = time.monotonic() + 10
    while len(stored(scene, "SELECT FROM trinity.rollout")) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_agent_goes_on_with_its_key_when_the_endpoint_is_another_one(serve: Serve, scene: Scene) -> None:
    """What was said before is one sequence with what follows, and no answered call is sampled again."""
    engine = Says()
    repeated = {"x-stainless-retry-count": "1"}
    with serve(engine=engine, size=1) as served:
        key = served.post("/v1/attempts")[1]["key"]
        first = served.say(key, "a?")
        served.post(f"/v1/attempts/{key}/reward", {"style": 0.5})
    give_back(scene)
    with serve(engine=engine, size=1) as served:
        until_answered(served, key)
        assert served.say(key, "a?", **repeated) == first
        assert len(engine.asked) == 1
        said = {"role": "assistant", "content": "yes"}
        served.post("/v1/chat/completions", {"messages": [user("a?"), said, user("b?")]}, key)
        assert served.post(f"/v1/attempts/{key}/finish")[1]["state"] == "finished"
    assert sequences(scene) == [("a?yesb?yes", "..xxx..xxx")]
    assert scene.values("SELECT reward FROM trinity.experience") == [0.5]
    assert scene.values("SELECT count(*) FROM trinity.agent") == [1]


def until_answered(served: Served, key: str) -> None:
    deadline = time.monotonic() + 10
    while served.post("/v1/messages/count_tokens", {"messages": [user("?")]}, key)[0] == 503:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_program_makes_the_attempt_and_its_last_line_is_the_reward(
    explore: Explore, scene: Scene, command: Callable[[str], Command], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITY_DB_URL", "postgresql://secret")
    monkeypatch.setenv("PGPASSWORD", "secret")
    program = (
        "task = json.loads(os.environ['TRINITY_TASK'])\n"
        "assert not [name for name in os.environ if name.startswith(('PG', 'TRINITY_DB'))]\n"
        "assert ask(task['prompt'])['choices'][0]['message']['content'] == 'yes'\n"
        "print('done\\n0.25')\n"
    )
    explore(command(program))
    assert scene.values(ERRORS) == [None, None]
    assert scene.values("SELECT reward FROM trinity.experience") == [0.25, 0.25]


def test_a_program_that_fails_is_a_failed_rollout_with_its_last_words(
    explore: Explore, scene: Scene, command: Callable[[str], Command]
) -> None:
    explore(command("ask('a'); raise SystemExit('no more ideas')"))
    assert scene.values(ERRORS) == ["ProgramFailed: the program ended with status 1: no more ideas"] * 2


SAY = """
def say(what, value):
    url = os.environ["OPENAI_BASE_URL"] + "/attempts/" + os.environ["OPENAI_API_KEY"] + "/" + what
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(value).encode(), method="POST"))
ask("a")
"""


def test_what_a_program_says_to_have_earned_counts_beside_its_last_line(
    explore: Explore, scene: Scene, command: Callable[[str], Command]
) -> None:
    explore(command(SAY + "say('reward', {'style': 0.5, 'workflow': 9}); print(0.25)"), size=1)
    assert scene.rows("SELECT name, value FROM trinity.reward_event ORDER BY 1") == [
        ("style", 0.5),
        ("workflow", 0.25),
    ]


def test_a_program_that_says_that_it_has_finished_ends_by_itself(
    explore: Explore, scene: Scene, command: Callable[[str], Command]
) -> None:
    explore(command(SAY + "say('finish', 0.5); print('done')"), size=1, attempt_seconds=20)
    assert scene.rows("SELECT name, value FROM trinity.reward_event") == [("workflow", 0.5)]


def test_a_program_that_says_that_it_failed_is_a_failed_rollout(
    explore: Explore, scene: Scene, command: Callable[[str], Command]
) -> None:
    explore(command(SAY + "say('fail', {'error': 'no tools'}); print(0.25)"), size=1)
    assert scene.values(ERRORS) == ["AttemptFailed: no tools"]


def test_a_program_that_takes_too_long_is_killed_with_what_it_started(
    explore: Explore, scene: Scene, command: Callable[[str], Command], tmp_path: Path
) -> None:
    program = (
        f"import subprocess, time\nchild = subprocess.Popen(['sleep', '600'])\n"
        f"open('{tmp_path}/' + str(child.pid), 'w').close()\ntime.sleep(600)\n"
    )
    explore(command(program), attempt_seconds=0.7)
    assert scene.values(ERRORS) == ["took longer than 0.7 s"] * 2
    children = [int(path.name) for path in tmp_path.iterdir() if path.name.isdecimal()]
    assert len(children) == 2
    assert not [child for child in children if is_running(child)]


def is_running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_program_that_is_not_there_is_found_out_before_the_run() -> None:
    with pytest.raises(ConfigError, match="there is no program 'no-such-agent' on the PATH"):
        Command("no-such-agent --fast")
