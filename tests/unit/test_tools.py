"""Tools: functions as a model sees them, the calls that it writes, and what a call gives."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.utils import get_json_schema

from tests.support.echo import Echo, Letters
from trinity_db.config.shared import PromptConfig
from trinity_db.errors import ConfigError
from trinity_db.explorer.attempt.policy import Policy
from trinity_db.explorer.attempt.tools import Tool, ToolCall, answer, parse, schemas_of, tools_of
from trinity_db.explorer.attempt.workflow import single_turn
from trinity_db.explorer.engines.engine import Completion, Request
from trinity_db.models.chat.prompts import prompt_ids

HERMES = """{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == "tool" %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


FORGETFUL = HERMES.replace(
    "{{ message.content }}\n{%- for call",
    "{% set asks = messages | selectattr('role', 'equalto', 'user') | list %}"
    "{{ message.content if asks[-1] in messages[:loop.index0] else message.content.split('</think>')[-1] }}\n"
    "{%- for call",
)


def add(a: int, b: float = 1, how: str = "up") -> float:
    """Add two numbers.

    Both may be negative.

    Args:
        a: the first number.
        b: the second number,
            or nothing.
        how: to round.

    Returns:
        their sum.
    """
    return a + b


async def shout(word: Literal["a", "b"]) -> list[str]:
    """Say it loudly."""
    return [word.upper()]


def fail() -> None:
    """Fail."""
    raise KeyError("my bug")


def run_out() -> Any:
    """Take one of none."""
    return next(iter(()))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """One token for each printable character, and markers as Qwen has them."""
    marks = ["<|im_start|>", "<|im_end|>"]
    letters = {character: place for place, character in enumerate(["\n", *map(chr, range(32, 127))])}
    plain = Tokenizer(models.WordLevel(letters, unk_token=" "))
    plain.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    plain.decoder = decoders.Fuse()
    made = PreTrainedTokenizerFast(
        tokenizer_object=plain, eos_token="<|im_end|>", additional_special_tokens=marks[:1]
    )
    made.chat_template = HERMES
    return made


def joined(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


class Scripted(Echo):
    """An engine that says texts one after the other, each ended by the end token."""

    def __init__(self, tokenizer: Any, says: Sequence[str]) -> None:
        super().__init__(context=10_000)
        self.tokenizer = tokenizer
        self._says = iter(says)

    async def generate(self, request: Request) -> Completion:
        self.asked.append(request)
        said = joined(self.tokenizer, next(self._says) + "<|im_end|>")
        return Completion(said, [-0.5] * len(said), [0] * len(said), "stop")


def policy(engine: Scripted) -> Policy:
    return Policy(
        engine,
        lambda prompt: prompt_ids(prompt, engine.tokenizer),
        prompts=PromptConfig(prompt_template="{prompt}"),
        temperature=1.0,
        max_new_tokens=9,
        seed=3,
    )


def test_a_function_is_shown_as_the_transformers_library_shows_it() -> None:
    theirs = get_json_schema(add)["function"]
    [ours] = schemas_of([add])
    for about in ours["function"]["parameters"]["properties"].values():
        about.pop("default", None)  # which they leave out
    assert ours == {"type": "function", "function": {key: theirs[key] for key in ours["function"]}}


def test_a_schema_may_stand_for_a_tool_and_an_adapter_may_bring_its_own() -> None:
    schema = tools_of([add])["add"].schema
    brought = Tool("mine", lambda **given: given, "Mine.", {"type": "object", "properties": {"x": {}}})
    assert schemas_of([schema, brought]) == [schema, brought.schema]
    call = ToolCall("mine", {"x": "é"})
    assert asyncio.run(answer(call, tools_of([brought])))["content"] == '{"x": "é"}'


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ([lambda x: x], "Tool '<lambda>' has no docstring"),
        ([add, add], "Two tools are named 'add'"),
        ([json.JSONEncoder().encode, lambda: None], "has no docstring"),
    ],
)
def test_what_a_model_cannot_call_is_refused(tools: list[Callable[..., Any]], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        tools_of(tools)


def test_a_parameter_that_no_json_can_give_is_refused() -> None:
    def odd(engine: Echo) -> None:
        """Take an engine."""

    with pytest.raises(ConfigError, match="Tool 'odd' cannot be shown to a model"):
        tools_of([odd])


@pytest.mark.parametrize(
    ("call", "content"),
    [
        (ToolCall("add", {"a": 1, "b": 2.5}), "3.5"),
        (ToolCall("add", {"a": "4"}), "5"),
        (ToolCall("shout", {"word": "a"}), '["A"]'),
        (ToolCall("shout", {"word": "c"}), "Error: word: Input should be 'a' or 'b'"),
        (ToolCall("add", {}), "Error: a: Missing required argument"),
        (ToolCall("add", {"a": 1, "z": 1}), "Error: z: Unexpected keyword argument"),
        (ToolCall("ad", {"a": 1}), "Error: there is no tool 'ad'; did you mean 'add'?"),
        (ToolCall("fly", {}), "Error: there is no tool 'fly'; known: add, shout, fail, run_out."),
        (ToolCall("fail", {}), "Error: KeyError: 'my bug'"),
        (ToolCall("run_out", {}), "Error: RuntimeError: it raised StopIteration"),
        (ToolCall("", {}, "the tool call is not valid JSON"), "Error: the tool call is not valid JSON"),
    ],
)
def test_what_goes_wrong_in_a_call_is_told_to_the_model(call: ToolCall, content: str) -> None:
    told = answer(call, tools_of([add, shout, fail, run_out]))
    message = asyncio.run(asyncio.wait_for(told, 10))
    assert message == {"role": "tool", "tool_call_id": "", "name": call.name, "content": content}


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("no call", "no call", []),
        (" spaces stay ", " spaces stay ", []),
        ('so: <tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', "so:", [("f", {"a": 1})]),
        (
            '<tool_call>{"name": "f"}</tool_call>\n<tool_call>{"name": "g", "arguments": {}}</tool_call>',
            "",
            [("f", {}), ("g", {})],
        ),
        ('<tool_call>{"name": "f", "arguments": {}}', "", [("f", {})]),
        ('<think><tool_call>x</tool_call></think><tool_call>{"name": "f"}</tool_call>', None, [("f", {})]),
        (
            "<tool_call>\n<function=add>\n<parameter=a>\n12\n</parameter>\n<parameter=how>\n12\n</parameter>\n"
            "<parameter=b>\nx y\n</parameter>\n</function>\n</tool_call>",
            "",
            [("add", {"a": 12, "how": "12", "b": "x y"})],
        ),
        (
            f"<tool_call><function=f><parameter=a>{'[' * 5000}</parameter></function></tool_call>",
            "",
            [("f", {"a": "[" * 5000})],
        ),
    ],
)
def test_calls_are_read_in_their_order(
    tokenizer: Any, text: str, content: str | None, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    ids = joined(tokenizer, text + "<|im_end|>")
    found, made = parse(ids, "", tokenizer, schemas_of([add]))
    assert found == ("<think><tool_call>x</tool_call></think>" if content is None else content)
    assert [(call.name, call.arguments) for call in made] == calls


@pytest.mark.parametrize(
    "parameters",
    [None, "a", {}, {"properties": "a"}, {"properties": {"a": True}}, {"properties": {"a": "b"}}],
)
def test_a_schema_that_says_nothing_of_an_argument_leaves_its_value(tokenizer: Any, parameters: Any) -> None:
    schema = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    ids = joined(tokenizer, "<tool_call><function=f><parameter=a>1</parameter></function></tool_call>")
    _, [call] = parse(ids, "", tokenizer, [schema])
    assert (call.problem, call.arguments) == (None, {"a": 1})


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ('{"name": "f", "argu', "the tool call is not valid JSON: Unterminated string"),
        ("[" * 100_000, "the tool call is not valid JSON: maximum recursion"),
        ('["f"]', "a tool call must have the form"),
        ('{"name": 5}', "a tool call must have the form"),
        ('{"name": "f", "arguments": [1]}', "a tool call must have the form"),
        ("<function=f><parameter=a>1", "a tool call must have the form <function=…>…</function>, closed"),
    ],
)
def test_a_call_that_cannot_be_read_says_why(block: str, problem: str) -> None:
    class Says(Letters):
        def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
            return f"<tool_call>{block}</tool_call>"

    _, [call] = parse([], "", Says(is_chat=True), [])
    assert str(call.problem).startswith(problem)
    assert (call.name, call.arguments) == ("", {})


def test_a_conversation_with_tools_is_one_sequence_in_which_only_answers_are_trained(tokenizer: Any) -> None:
    """Though the template would write the calls with other spaces than the policy did."""
    said = 'Hm.\n<tool_call>{"name":"add","arguments":{"a":1}}</tool_call><tool_call>oops</tool_call>'
    engine = Scripted(tokenizer, [said, "It is 2."])
    asked = policy(engine)
    messages = [{"role": "user", "content": "1 + 1?"}]
    added = asyncio.run(asked.act(messages, [add]))
    assert [message["role"] for message in added] == ["assistant", "tool", "tool", "assistant"]
    assert [message["content"] for message in added[1:]] == [
        "2",
        "Error: the tool call is not valid JSON: Expecting value: line 1 column 1 (char 0)",
        "It is 2.",
    ]
    ids = [call["id"] for call in added[0]["tool_calls"]]
    assert ids == [message["tool_call_id"] for message in added[1:3]]
    assert len(set(ids)) == 2
    [step] = asked.steps(None)
    sampled = tokenizer.decode(step.payload.token_ids[step.payload.action_mask])
    assert sampled == f"{said}<|im_end|>It is 2.<|im_end|>"
    assert [*step.payload.token_ids][: len(engine.asked[1].prompt_ids)] == engine.asked[1].prompt_ids


def test_a_template_that_rewrites_history_begins_another_sequence_and_trains_each_sampled_token_once(
    tokenizer: Any,
) -> None:
    """Qwen 3 keeps reasoning up to the next question of the user, and then removes it."""
    call = '<think>add</think><tool_call>{"name":"add","arguments":{"a":1}}</tool_call>'
    says = [call, "<think>so</think>2.", "<think>easy</think>Yes."]
    engine = Scripted(tokenizer, says)
    asked = policy(engine)
    tokenizer.chat_template = FORGETFUL

    async def attempt() -> None:
        messages = [{"role": "user", "content": "1 + 1?"}]
        messages += await asked.act(messages, [add])
        messages.append({"role": "user", "content": "Sure?"})
        await asked.act(messages, [add])

    try:
        asyncio.run(attempt())
    finally:
        tokenizer.chat_template = HERMES
    prompts = [tokenizer.decode(one.prompt_ids) for one in engine.asked]
    assert prompts[1].startswith(prompts[0] + call)
    assert "<think>" not in prompts[2]
    sampled = [tokenizer.decode(one.payload.token_ids[one.payload.action_mask]) for one in asked.steps(None)]
    assert sampled == [f"{says[0]}<|im_end|>{says[1]}<|im_end|>", f"{says[2]}<|im_end|>"]


def test_an_answer_with_calls_that_was_changed_is_written_as_it_is_now(tokenizer: Any) -> None:
    engine = Scripted(tokenizer, ['<tool_call>{"name":"add","arguments":{"a":1}}</tool_call>', "2"])
    asked = policy(engine)

    async def attempt() -> None:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "?"}]
        said = await asked.chat(messages, tools=[add])
        message = {**said.message, "content": "I add."}
        await asked.chat([*messages, message], tools=[add])

    asyncio.run(attempt())
    assert (
        'I add.<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
        in engine.tokenizer.decode(engine.asked[1].prompt_ids)
    )
    assert len(asked.steps(None)) == 2


def test_what_a_client_library_adds_to_a_call_leaves_its_tokens_as_they_were(tokenizer: Any) -> None:
    """OpenAI's gives the arguments a second time, read, where an answer is a stream."""
    engine = Scripted(tokenizer, ['<tool_call>{"name":"add","arguments":{"a":1}}</tool_call>', "2"])
    asked = policy(engine)

    async def attempt() -> None:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "?"}]
        [call] = (await asked.chat(messages, tools=[add])).message["tool_calls"]
        added = {**call, "index": 0, "function": {**call["function"], "parsed_arguments": None}}
        said = {"role": "assistant", "content": None, "tool_calls": [added]}
        await asked.chat([*messages, said], tools=[add])

    asyncio.run(attempt())
    assert len(asked.steps(None)) == 1


def test_a_limit_of_turns_ends_with_an_answer_whose_calls_are_not_made(tokenizer: Any) -> None:
    made: list[int] = []

    def count() -> None:
        """Count."""
        made.append(1)

    call = '<tool_call>{"name": "count"}</tool_call>'
    asked = policy(Scripted(tokenizer, [call] * 5))
    added = asyncio.run(asked.act([{"role": "user", "content": "?"}], [count], turns=3))
    assert added[-1]["role"] == "assistant"
    assert len(made) == 2
    with pytest.raises(ValueError, match="turns is 0"):
        asyncio.run(asked.act([{"role": "user", "content": "?"}], [count], turns=0))


def test_a_tokenizer_that_says_how_calls_are_written_is_asked() -> None:
    class Says:
        response_template = "..."

        def decode(self, token_ids: Sequence[int], **options: bool) -> str:
            return "odd<|im_end|>"

        def parse_response(self, text: str, *, prefix: str, tools: list[Any]) -> dict[str, Any]:
            assert (text, prefix, len(tools)) == ("odd<|im_end|>", "prompt", 1)
            function = {"name": "f", "arguments": {"a": 1}}
            return {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}

    content, [call] = parse([], "prompt", Says(), schemas_of([add]))
    assert (content, call) == ("", ToolCall("f", {"a": 1}))


@pytest.mark.parametrize(
    ("offered", "shown"),
    [([{"type": "function", "function": {"name": "add"}}], True), (["python"], False), (None, False)],
)
def test_a_single_turn_shows_the_tools_that_its_task_offers(
    tokenizer: Any, offered: Any, shown: bool
) -> None:
    engine = Scripted(tokenizer, ["Sure."])
    task = {"messages": [{"role": "user", "content": "1 + 2?"}], "tools": offered}
    asyncio.run(single_turn(task, policy(engine)))
    [request] = engine.asked
    asked = tokenizer.decode(request.prompt_ids)
    system = '<|im_start|>system\n{"type": "function", "function": {"name": "add"}}\n<|im_end|>\n'
    assert asked == (system if shown else "") + "<|im_start|>user\n1 + 2?<|im_end|>\n<|im_start|>assistant\n"
