"""Options of programs' requests: each is followed, replaced and stored, or refused, in every protocol."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle
from typing import Any

import aiohttp
import anthropic
import openai
import pytest

from tests.support import chat_templates
from tests.support.echo import Echo
from tests.support.explorers import ERRORS, Explore, user
from tests.support.rows import Scene
from trinity_db.arrays import codec
from trinity_db.explorer.attempt.policy import Policy
from trinity_db.explorer.engines.engine import Completion, Request
from trinity_db.explorer.engines.stops import cut_off
from trinity_db.models.chat.prompts import UntokenizableText

END = "<|im_end|>"
OPENED = "<|im_start|>assistant\n"
NO_THOUGHT = "<think>\n\n</think>\n\n"


@cache
def tokenizer_of(template: str) -> Any:
    return chat_templates.tokenizer(chat_templates.read(template))


class Speaks(Echo):
    """An engine with a public form of chat template that says texts in turn, and ends each of its turns."""

    def __init__(self, *says: str, template: str = "qwen3") -> None:
        super().__init__(context=20_000)
        self.tokenizer: Any = tokenizer_of(template)
        self._says = cycle(says or ["yes"])

    async def generate(self, request: Request) -> Completion:
        await super().generate(request)
        ids = self.tokenizer.encode(next(self._says) + END, add_special_tokens=False)
        said = Completion(ids, [-0.5] * len(ids), [self.version] * len(ids), "stop")
        return cut_off(self.tokenizer, said, request.stop)


@dataclass
class Reply:
    """An answer, whatever its protocol."""

    text: str
    thought: str = ""
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    ending: Any = None


class Clients:
    """The public client libraries, with one connection each."""

    def __init__(self, url: str, key: str) -> None:
        self._openai: Any = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
        self._anthropic: Any = anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0)

    async def __aenter__(self) -> "Clients":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._openai.close()
        await self._anthropic.close()

    async def ask(self, protocol: str, is_streamed: bool, body: dict[str, Any]) -> Reply:
        """Send a request, with the conversation as `messages` in each protocol."""
        extra = {key: value for key, value in body.items() if key != "messages"}
        ask = {"chat": self._chat, "responses": self._responses, "messages": self._messages}[protocol]
        return await ask(is_streamed, body["messages"], extra)

    async def _chat(self, is_streamed: bool, messages: Any, extra: Any) -> Reply:
        asked = {"model": "m", "messages": messages, "extra_body": extra}
        answer = await _sent(self._openai.chat.completions, "get_final_completion", is_streamed, asked)
        [choice] = answer.choices
        called = [call.function for call in choice.message.tool_calls or []]
        calls = [(function.name, json.loads(function.arguments)) for function in called]
        thought = getattr(choice.message, "reasoning_content", "")
        return Reply(choice.message.content or "", thought, calls, choice.finish_reason)

    async def _responses(self, is_streamed: bool, messages: Any, extra: Any) -> Reply:
        asked = {"model": "m", "input": messages, "extra_body": extra}
        answer = await _sent(self._openai.responses, "get_final_response", is_streamed, asked)
        called = [item for item in answer.output if item.type == "function_call"]
        calls = [(item.name, json.loads(item.arguments)) for item in called]
        thoughts = [item.content for item in answer.output if item.type == "reasoning"]
        thought = "".join(part.text for parts in thoughts for part in parts)
        return Reply(answer.output_text, thought, calls, answer.status)

    async def _messages(self, is_streamed: bool, messages: Any, extra: Any) -> Reply:
        asked = {"model": "m", "max_tokens": 999, "messages": messages, "extra_body": extra}
        answer = await _sent(self._anthropic.messages, "get_final_message", is_streamed, asked)
        text = "".join(block.text for block in answer.content if block.type == "text")
        calls = [(block.name, block.input) for block in answer.content if block.type == "tool_use"]
        thought = "".join(block.thinking for block in answer.content if block.type == "thinking")
        return Reply(text, thought, calls, (answer.stop_reason, answer.stop_sequence))


async def _sent(resource: Any, final: str, is_streamed: bool, asked: dict[str, Any]) -> Any:
    if not is_streamed:
        return await resource.create(**asked)
    async with resource.stream(**asked) as stream:
        return await getattr(stream, final)()


REFUSALS = (openai.APIStatusError, anthropic.APIStatusError)


Requests = Sequence[tuple[str, dict[str, Any]]]
"""Protocols and bodies, with the conversation as `messages` in each."""


class Program:
    """A program that sends each request twice: for a whole answer, and for a stream."""

    def __init__(self, explore: Explore, scene: Scene) -> None:
        self._explore = explore
        self._scene = scene

    def asks(self, engine: Speaks, requests: Requests, /, **options: Any) -> list[Reply]:
        """Send requests in turn, and return two answers to each."""
        replies: list[Reply] = []

        async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
            address = await policy.address()
            async with Clients(address.url, address.key) as clients:
                for protocol, body in requests:
                    for is_streamed in (False, True):
                        replies.append(await clients.ask(protocol, is_streamed, body))
            return 1.0

        self._explore(workflow, engine, size=1, requests={"repeats": "sample"}, **options)
        assert self._scene.values(ERRORS) == [None]
        return replies

    def refusals(self, engine: Speaks, requests: Requests, /, **options: Any) -> list[str]:
        """Send requests that are refused with status 400 either way; return the reason of each."""
        reasons: list[str] = []

        async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
            address = await policy.address()
            async with Clients(address.url, address.key) as clients:
                for protocol, body in requests:
                    for is_streamed in (False, True):
                        with pytest.raises(REFUSALS) as raised:
                            await clients.ask(protocol, is_streamed, body)
                        assert raised.value.status_code == 400
                        reasons.append(raised.value.response.json()["error"]["message"])
            return 1.0

        self._explore(workflow, engine, size=1, **options)
        assert engine.asked == []
        assert reasons[::2] == reasons[1::2]
        assert len(reasons) == 2 * len(requests)
        return reasons[::2]


@pytest.fixture
def program(explore: Explore, scene: Scene) -> Program:
    return Program(explore, scene)


def trained(scene: Scene, tokenizer: Any) -> list[list[tuple[str, bool]]]:
    """Of each stored sequence the texts that were given and sampled, in order; True: sampled."""
    found = []
    for row in scene.rows("SELECT codec, data, num_tokens FROM trinity.payload ORDER BY experience_id"):
        payload = codec.decode(*row)
        parts: list[tuple[list[int], bool]] = []
        for token, is_sampled in zip(payload.token_ids.tolist(), payload.action_mask.tolist(), strict=True):
            if not parts or parts[-1][1] != is_sampled:
                parts.append(([], is_sampled))
            parts[-1][0].append(token)
        found.append([(tokenizer.decode(ids), is_sampled) for ids, is_sampled in parts])
    return found


BEGUN: Mapping[str, Any] = {
    "chat": {
        "messages": [user("Count."), {"role": "assistant", "content": "1, 2,"}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
    "responses": {
        "messages": [
            {"role": "user", "content": "Count."},
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "incomplete",
                "content": [{"type": "output_text", "text": "1, 2,", "annotations": []}],
            },
        ],
    },
    "messages": {"messages": [user("Count."), {"role": "assistant", "content": "1, 2,"}]},
}


def test_a_begun_answer_is_continued_and_only_the_continuation_is_trained(
    program: Program, scene: Scene
) -> None:
    engine = Speaks(" 3")
    begun = {"role": "assistant", "content": "1, 2,", "prefix": True}
    requests = [*BEGUN.items(), ("chat", {"messages": [user("Count."), begun]})]
    replies = program.asks(engine, requests)
    assert [reply.text for reply in replies] == [" 3"] * 8
    prompt = f"<|im_start|>user\nCount.{END}\n{OPENED}{NO_THOUGHT}1, 2,"
    assert trained(scene, engine.tokenizer) == [[(prompt, False), (f" 3{END}", True)]] * 8


def test_an_answer_that_a_stop_string_ended_is_continued_in_one_sequence(
    program: Program, scene: Scene
) -> None:
    engine = Speaks("1, 2, 3", "1, 2, 3", " 3", " 4", template="qwen2_5")
    asked: Any = [user("Count.")]
    begun = [*asked, {"role": "assistant", "content": "1, 2,"}]
    first, again, *rest = program.asks(
        engine,
        [("messages", {"messages": asked, "stop_sequences": ["2,"]}), ("messages", {"messages": begun})],
    )
    assert first == again == Reply("1, ", "", [], ("stop_sequence", "2,"))
    assert [reply.text for reply in rest] == [" 3", " 4"]
    sequences = trained(scene, engine.tokenizer)
    assert {sequence[-1] for sequence in sequences} == {(f"1, 2, 3{END}", True), (f"1, 2, 4{END}", True)}


def test_a_workflow_continues_a_begun_answer(explore: Explore, scene: Scene) -> None:
    engine = Speaks(" 3")

    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        begun = [user("Count."), {"role": "assistant", "content": "1, 2,"}]
        assert await policy.chat(begun) == " 3"
        assert await policy.chat(begun, begun=False) == " 3"
        with pytest.raises(UntokenizableText, match="continued"):
            await policy.chat([user("Count.")], begun=True)
        return 1.0

    explore(workflow, engine, size=1)
    assert scene.values(ERRORS) == [None]
    prompts = [sequence[0][0] for sequence in trained(scene, engine.tokenizer)]
    assert prompts[0].endswith(f"{OPENED}{NO_THOUGHT}1, 2,")
    assert prompts[1].endswith(f"1, 2,{END}\n{OPENED}")


NOT_BEGUN: Sequence[tuple[str, dict[str, Any], str]] = [
    ("chat", {"messages": [user("a")], "continue_final_message": True}, "the assistant"),
    (
        "chat",
        {**BEGUN["chat"], "add_generation_prompt": True},
        "'add_generation_prompt' must be false with a begun answer",
    ),
    (
        "chat",
        {"messages": [user("a")], "add_generation_prompt": False},
        "'add_generation_prompt' must be",
    ),
    (
        "chat",
        {"messages": [{"role": "assistant", "content": "a", "prefix": True}, user("b")]},
        "'prefix' must be on the last message",
    ),
    (
        "responses",
        {"messages": [user("a"), {"role": "assistant", "content": "b"}]},
        "'input' ends with an answer",
    ),
    (
        "messages",
        {
            "messages": [
                user("a"),
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "1", "name": "add", "input": {}}],
                },
            ]
        },
        "has tool calls",
    ),
    (
        "messages",
        {"messages": [user("a"), {"role": "assistant", "content": "<think>b</think>c"}]},
        "rewrites the begun answer",
    ),
]


def test_an_answer_that_cannot_be_continued_is_refused(program: Program) -> None:
    reasons = program.refusals(Speaks(), [(protocol, body) for protocol, body, _ in NOT_BEGUN])
    for (_, _, expected), reason in zip(NOT_BEGUN, reasons, strict=True):
        assert expected in reason


NO_THOUGHTS: Sequence[tuple[str, dict[str, Any], str]] = [
    ("chat", {"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs.enable_thinking"),
    ("chat", {"enable_thinking": False}, "enable_thinking"),
    ("chat", {"reasoning_effort": "none"}, "reasoning_effort"),
    ("responses", {"reasoning": {"effort": "none"}}, "reasoning.effort"),
    ("responses", {"enable_thinking": False}, "enable_thinking"),
    ("messages", {"thinking": {"type": "disabled"}}, "thinking.type"),
    ("messages", {"enable_thinking": False}, "enable_thinking"),
]
WITHOUT_THOUGHTS = [(protocol, {"messages": [user("a")], **option}) for protocol, option, _ in NO_THOUGHTS]


def test_thoughts_are_switched_off_in_the_prompt(program: Program, scene: Scene) -> None:
    engine = Speaks()
    replies = program.asks(engine, WITHOUT_THOUGHTS)
    prompt = f"<|im_start|>user\na{END}\n{OPENED}{NO_THOUGHT}"
    assert trained(scene, engine.tokenizer) == [[(prompt, False), (f"yes{END}", True)]] * len(replies)


def test_thoughts_that_the_template_cannot_switch_off_are_reported(
    program: Program, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    program.asks(Speaks(template="qwen2_5"), WITHOUT_THOUGHTS)
    stored = scene.values("SELECT replaced FROM trinity.call ORDER BY number")
    places = [place for replaced in stored for place in replaced]
    assert places == [place for _, _, place in NO_THOUGHTS for _ in range(2)]
    assert {value for replaced in stored for value in replaced.values()} == {False, "none", "disabled"}
    for place in places:
        assert caplog.text.count(f"'{place}' is left out") == 1


def test_a_strict_run_refuses_thoughts_that_it_cannot_switch_off(program: Program) -> None:
    reasons = program.refusals(Speaks(template="qwen2_5"), WITHOUT_THOUGHTS, requests="strict")
    for (_, _, place), reason in zip(NO_THOUGHTS, reasons, strict=True):
        assert f"'{place}' is" in reason


def test_the_tokens_of_a_prompt_are_counted_as_it_is_sampled(explore: Explore, scene: Scene) -> None:
    engine = Speaks()
    counted: list[int] = []

    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        address = await policy.address()
        async with anthropic.AsyncAnthropic(base_url=address.url, api_key=address.key) as client:
            for asked in ([user("a")], BEGUN["messages"]["messages"]):
                options: Any = {"model": "m", "messages": asked, "thinking": {"type": "disabled"}}
                counted.append((await client.messages.count_tokens(**options)).input_tokens)
                await client.messages.create(max_tokens=9, **options)
        return 1.0

    explore(workflow, engine, size=1)
    assert scene.values(ERRORS) == [None]
    assert counted == [len(request.prompt_ids) for request in engine.asked]


FUNCTION = {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}}
TOOLS: Mapping[str, Any] = {
    "chat": [{"type": "function", "function": FUNCTION}],
    "responses": [{"type": "function", **FUNCTION}],
    "messages": [{"name": "add", "input_schema": FUNCTION["parameters"]}],
}
ENDED = {"chat": "tool_calls", "responses": "completed", "messages": ("tool_use", None)}


def called(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "add", "arguments": {arguments}}}\n</tool_call>'


def test_one_call_at_a_time_stops_after_the_first(program: Program, scene: Scene) -> None:
    both = f"{called('{}')}\n{called('{}')}"
    engine = Speaks(both)
    requests: list[tuple[str, dict[str, Any]]] = []
    for protocol, tools in TOOLS.items():
        body = {"messages": [user("a")], "tools": tools}
        option: dict[str, Any] = {"parallel_tool_calls": False}
        if protocol == "messages":
            option = {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
        requests += [(protocol, body), (protocol, {**body, **option})]
    replies = program.asks(engine, requests)
    sampled = [sequence[1] for sequence in trained(scene, engine.tokenizer)]
    assert [[name for name, _ in reply.calls] for reply in replies] == [
        *(["add", "add"], ["add", "add"]),
        *(["add"], ["add"]),
    ] * 3
    assert [reply.ending for reply in replies] == [ending for ending in ENDED.values() for _ in range(4)]
    assert [text for text, _ in sampled] == [f"{both}{END}", f"{both}{END}", called("{}"), called("{}")] * 3


UNREADABLE = [
    r'{"q": "a \ud83d b"}',
    r'{"\ud83d": 1}',
    '{"q": NaN}',
    '{"q": 1e999}',
    "[1]",
    '"a"',
    "null",
]
"""Arguments with half a character, without a value in JSON, and other than an object."""


def test_a_call_that_no_protocol_can_carry_is_text(program: Program, scene: Scene) -> None:
    texts = [called(arguments) for arguments in UNREADABLE for _ in range(2)]
    engine = Speaks(*texts)
    requests = [
        (protocol, {"messages": [user("a")], "tools": tools})
        for protocol, tools in TOOLS.items()
        for _ in UNREADABLE
    ]
    replies = program.asks(engine, requests)
    assert [(reply.text, reply.calls) for reply in replies] == [(text, []) for text in texts] * 3
    sampled = [sequence[1] for sequence in trained(scene, engine.tokenizer)]
    assert sampled == [(f"{text}{END}", True) for text in texts] * 3


PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


def test_half_a_character_in_a_request_does_not_break_its_answer(explore: Explore, scene: Scene) -> None:
    answers: list[tuple[int, str]] = []

    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        address = await policy.address()
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {address.key}"}) as session:
            for protocol, path in PATHS.items():
                asked = "input" if protocol == "responses" else "messages"
                for is_streamed in ("false", "true"):
                    for option in (r'"model": "\ud83d"', '"temperature": NaN'):
                        conversation = json.dumps([user("a")])
                        body = f'{{{option}, "stream": {is_streamed}, "{asked}": {conversation}}}'
                        async with session.post(address.url + path, data=body) as response:
                            answers.append((response.status, await response.text()))
        return 1.0

    explore(workflow, Speaks(), size=1)
    assert scene.values(ERRORS) == [None]
    assert [status for status, _ in answers] == [200, 400] * 6
    for (_, answer), (_, reason) in zip(answers[::2], answers[1::2], strict=True):
        assert r"\ud83d" in answer
        assert "NaN is not a number of JSON" in reason


def test_an_option_that_is_nested_deeply_fails_no_call(explore: Explore, scene: Scene) -> None:
    answers: list[int] = []

    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        address = await policy.address()
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {address.key}"}) as session:
            for depth in (150, 900, 50_000):
                body = f'{{"messages": [{json.dumps(user("a"))}], "n{depth}": {"[" * depth}{"]" * depth}}}'
                async with session.post(address.url + PATHS["chat"], data=body) as response:
                    answers.append(response.status)
        return 1.0

    explore(workflow, Speaks(), size=1)
    assert scene.values(ERRORS) == [None]
    assert answers == [200, 200, 400]
    stored = scene.values("SELECT replaced::text FROM trinity.call ORDER BY number")
    assert [text.count("[") for text in stored] == [99, 99]  # and the object around them
    assert all("nested too deeply" in text for text in stored)


OLD: Sequence[tuple[dict[str, Any], str]] = [
    ({"functions": [FUNCTION]}, "'functions' is"),
    ({"function_call": {"name": "add"}}, "'function_call' is"),
    ({"messages": [user("a"), {"role": "function", "name": "add", "content": "4"}]}, "'messages[1]' is"),
    (
        {
            "messages": [
                user("a"),
                {"role": "assistant", "content": "", "function_call": {"name": "add", "arguments": "{}"}},
                user("b"),
            ]
        },
        "'messages[1].function_call' is",
    ),
    ({"messages": [{"role": "model", "content": "a"}]}, "'messages[0]' is"),
]


def test_the_older_form_of_tools_and_other_roles_are_refused_by_name(program: Program) -> None:
    reasons = program.refusals(Speaks(), [("chat", {"messages": [user("a")], **body}) for body, _ in OLD])
    for (_, expected), reason in zip(OLD, reasons, strict=True):
        assert expected in reason


def test_arguments_that_are_not_an_object_are_refused(program: Program) -> None:
    block = {"type": "tool_use", "id": "1", "name": "add", "input": [1]}
    asked = [user("a"), {"role": "assistant", "content": [block]}, user("b")]
    [reason] = program.refusals(Speaks(), [("messages", {"messages": asked})])
    assert "'messages[1].content[0].input' must be an object" in reason


def test_thoughts_of_another_model_are_shown_where_the_template_shows_them(program: Program) -> None:
    call = {"type": "tool_use", "id": "1", "name": "add", "input": {}}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    result = {"type": "tool_result", "tool_use_id": "1", "content": "4", "is_error": False}
    asked = [user("a"), {"role": "assistant", "content": [thought, call]}, user([result])]
    items = [
        {"role": "user", "content": "a"},
        {
            "type": "reasoning",
            "id": "1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm."}],
        },
        {"type": "function_call", "call_id": "1", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "4"},
    ]
    engine = Speaks()
    program.asks(
        engine,
        [
            ("messages", {"messages": asked, "tools": TOOLS["messages"]}),
            ("responses", {"messages": items, "tools": TOOLS["responses"]}),
        ],
    )
    for request in engine.asked:
        assert "<think>\nHm.\n</think>" in engine.tokenizer.decode(request.prompt_ids)


def test_thoughts_are_a_part_of_their_own_in_each_protocol(program: Program) -> None:
    engine = Speaks(
        "<think>\nHm.\n</think>\n\n" + called("{}"), "<think>\nHm.\n</think>\n\nyes", "<think>\nHm"
    )
    requests = [
        (protocol, {"messages": [user(text)], "tools": tools})
        for protocol, tools in TOOLS.items()
        for text in ("a", "b", "c")
    ]
    replies = program.asks(engine, [request for request in requests for _ in "a"])
    expected = {("", "Hm.", "add"), ("yes", "Hm.", ""), ("", "Hm", "")}
    said = [(reply.text, reply.thought, "".join(name for name, _ in reply.calls)) for reply in replies]
    assert set(said[:6]) == set(said[6:12]) == set(said[12:]) == expected


@pytest.mark.parametrize("is_shown", [True, False])
def test_a_conversation_with_thoughts_and_tools_is_one_sequence(
    explore: Explore, scene: Scene, is_shown: bool
) -> None:
    """Programs send thoughts back, with other white space around them, or leave them out."""
    thought = "<think>\nHm.\n</think>\n\n"
    engine = Speaks(*[thought + called("{}"), f"{thought} yes "] * 3)

    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        address = await policy.address()
        async with aiohttp.ClientSession(headers={"x-api-key": address.key}) as session:
            for protocol, tools in TOOLS.items():
                messages: list[Any] = [user(protocol)]
                for _ in range(2):
                    key = "input" if protocol == "responses" else "messages"
                    body = {"model": "m", "max_tokens": 999, key: messages, "tools": tools}
                    async with session.post(address.url + PATHS[protocol], json=body) as response:
                        answer = await response.json()
                    messages = [*messages, *passed_back(protocol, answer, is_shown)]
        return 1.0

    explore(workflow, engine, size=1)
    assert scene.values(ERRORS) == [None]
    for sequence, protocol in zip(trained(scene, engine.tokenizer), PATHS, strict=True):
        (prompt, _), first, (result, _), second = sequence
        assert protocol in prompt
        assert "4" in result
        assert first == (f"{thought}{called('{}')}{END}", True)
        assert second == (f"{thought} yes {END}", True)


def passed_back(protocol: str, answer: Any, is_shown: bool) -> list[Any]:
    """The answer as programs send it back, with the result of its call."""
    if protocol == "chat":
        message = answer["choices"][0]["message"]
        thought = message.pop("reasoning_content")
        shown = {"content": f"<think>{thought}\n\n</think>\n\n\n"} if is_shown else {}
        result = {
            "role": "tool",
            "tool_call_id": (message.get("tool_calls") or [{"id": ""}])[0]["id"],
            "content": "4",
        }
        return [message | shown, result]
    if protocol == "responses":
        items = [item for item in answer["output"] if is_shown or item["type"] != "reasoning"]
        ids = [item["call_id"] for item in items if item["type"] == "function_call"]
        return [*items, *({"type": "function_call_output", "call_id": id, "output": "4"} for id in ids)]
    blocks = [block for block in answer["content"] if is_shown or block["type"] != "thinking"]
    ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": id, "content": "4"} for id in ids]
    return [{"role": "assistant", "content": blocks}, user(results)]


REPLACED: Sequence[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("chat", {"temperature": 0}, {"temperature": 0}),
    ("chat", {"tool_choice": "required"}, {"tool_choice": "required"}),
    ("messages", {"tool_choice": {"type": "any"}}, {"tool_choice.type": "any"}),
    (
        "chat",
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_object"}},
    ),
    (
        "responses",
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": {}}}},
        {"text.format": {"type": "json_schema", "name": "a", "schema": {}}},
    ),
    (
        "messages",
        {"output_config": {"format": {"type": "json_schema", "schema": {}}}},
        {"output_config.format": {"type": "json_schema", "schema": {}}},
    ),
    (
        "responses",
        {"tools": [{"type": "web_search"}, *TOOLS["responses"]]},
        {"tools[0]": {"type": "web_search"}},
    ),
    (
        "messages",
        {"tools": [*TOOLS["messages"], {"type": "bash_20250124", "name": "bash"}]},
        {"tools[1]": {"type": "bash_20250124", "name": "bash"}},
    ),
    ("messages", {"output_format": {"type": "json_schema"}}, {"output_format": {"type": "json_schema"}}),
    ("messages", {"mcp_servers": [{"name": "a"}]}, {"mcp_servers": [{"name": "a"}]}),
    ("chat", {"guided_json": {}}, {"guided_json": {}}),
    ("messages", {"top_pp": ["\x00"]}, {"top_pp": [""]}),
]
UNFOLLOWED = [
    (protocol, {"messages": [user("a")], "tools": TOOLS[protocol], **option})
    for protocol, option, _ in REPLACED
]


def test_an_option_that_cannot_be_followed_is_replaced_and_its_value_is_stored(
    program: Program, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Speaks()
    program.asks(engine, UNFOLLOWED)
    stored = scene.rows("SELECT prompt, data, replaced FROM trinity.call ORDER BY number")
    assert stored == [("", None, given) for _, _, given in REPLACED for _ in range(2)]
    assert {asked.temperature for asked in engine.asked} == {1.0}
    for asked in engine.asked:
        assert '"name": "add"' in engine.tokenizer.decode(asked.prompt_ids)
    assert caplog.text.count("'temperature' is left out") == 1
    assert caplog.text.count("is left out") == len(REPLACED)


def test_a_strict_run_refuses_what_it_cannot_follow(program: Program) -> None:
    reasons = program.refusals(Speaks(), UNFOLLOWED, requests="strict")
    for (_, _, given), reason in zip(REPLACED, reasons, strict=True):
        [place] = given
        assert f"'{place}' is" in reason
        assert "explorer.requests." in reason


def test_tools_that_the_chat_template_does_not_show_are_refused(program: Program) -> None:
    requests = [(protocol, {"messages": [user("a")], "tools": tools}) for protocol, tools in TOOLS.items()]
    [reason] = set(program.refusals(Speaks(template="phi3"), requests))
    assert reason.startswith("The chat template shows no tools: set model.chat_template")


def test_only_the_named_models_are_answered(explore: Explore, scene: Scene) -> None:
    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        address = await policy.address()
        async with openai.AsyncOpenAI(base_url=f"{address.url}/v1", api_key=address.key) as client:
            ask: Any = client.chat.completions.create
            await ask(model="policy", messages=[user("a")])
            with pytest.raises(openai.NotFoundError, match="'model' is 'small'; known: policy"):
                await ask(model="small", messages=[user("a")])
        return 1.0

    explore(workflow, Speaks(), size=1, requests={"models": ["policy"]})
    assert scene.values(ERRORS) == [None]


def test_calls_without_replaced_options_leave_with_the_rollout(program: Program, scene: Scene) -> None:
    messages = [user("a")]
    program.asks(Speaks(), [("chat", {"messages": messages}), ("chat", {"messages": messages, "seed": 1})])
    assert scene.rows("SELECT number, replaced FROM trinity.call ORDER BY 1") == [
        (2, {"seed": 1}),
        (3, {"seed": 1}),
    ]
