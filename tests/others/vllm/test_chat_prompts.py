"""Prompts of conversations have the tokens that vLLM's chat endpoint makes of the same request.

The templates are those of `tests/unit/chat_templates`. The differences with those of 70 models are in
docs/decisions.md.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors
from transformers import Qwen2Config

from tests.support.chat_templates import TEMPLATES, TOOLS, read, tokenizer
from trinity_db.models.chat.prompts import ChatRenderer, UntokenizableText, prompt_ids

pytestmark = pytest.mark.timeout(900)
NAMES = sorted(file.stem for file in TEMPLATES.glob("*.jinja"))
# What its chat endpoint does with a request before the engine, without the engine.
RENDERS = """
import asyncio, json, sys
from vllm import AsyncEngineArgs
from vllm.config import VllmConfig
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.renderers import renderer_from_config
from vllm.renderers.online_renderer import OnlineRenderer

model = AsyncEngineArgs(model=sys.argv[1]).create_model_config()
online = OnlineRenderer(
    model,
    renderer_from_config(VllmConfig(model_config=model)),
    request_logger=None,
    chat_template=None,
    chat_template_content_format="auto",
    trust_request_chat_template=True,
)

async def rendered(body):
    try:
        _, [prompt] = await online.render_chat(ChatCompletionRequest.model_validate(body))
    except Exception as error:
        return str(error)
    return prompt["prompt_token_ids"]

async def main():
    return [await rendered(body) for body in json.load(sys.stdin)]

print(json.dumps(asyncio.run(main())))
"""

Message = dict[str, Any]
ASK: Message = {"role": "user", "content": "What is 1 + 2?"}
THREE: Message = {"role": "assistant", "content": "It is 3."}
CALLS: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": id, "type": "function", "function": {"name": "add", "arguments": f'{{"a": {number}}}'}}
        for id, number in (("abcdefgh1", 1), ("abcdefgh2", 2))
    ],
}
ONE_CALL: Message = {**CALLS, "tool_calls": CALLS["tool_calls"][:1]}
RESULTS: list[Message] = [
    {"role": "tool", "tool_call_id": "abcdefgh1", "name": "add", "content": "one"},
    {"role": "tool", "tool_call_id": "abcdefgh2", "name": "add", "content": "\ntwo é"},
]
CONVERSATIONS: dict[str, tuple[list[Message], list[Message]]] = {
    "a question": ([ASK], []),
    "a system prompt": ([{"role": "system", "content": " Add. "}, ASK], []),
    "several turns": ([ASK, THREE, ASK, {**THREE, "content": "<think>so</think>\n\n3"}, ASK], []),
    "a part": ([{"role": "user", "content": [{"type": "text", "text": "1 + 2"}]}], []),
    "a thought": ([ASK, {**THREE, "reasoning": "One and two."}, ASK], []),
    "tools": ([ASK], TOOLS),
    "a call and its result": ([ASK, ONE_CALL, RESULTS[0]], TOOLS),
    "parallel calls": ([ASK, CALLS, *RESULTS], TOOLS),
    "a thought before calls": ([ASK, {**CALLS, "reasoning": "I add."}, *RESULTS], TOOLS),
}


@pytest.fixture(scope="module")
def reader() -> Any:
    """A tokenizer that adds a BOS and an EOS to plain texts, with the marks of all templates."""
    made = tokenizer("".join(map(read, NAMES)))
    marks = [(mark, made.convert_tokens_to_ids(mark)) for mark in ("<s>", "</s>")]
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=marks
    )
    return made


def test_prompts_have_the_tokens_of_the_chat_endpoint(python: Path, tmp_path: Path, reader: Any) -> None:
    reader.save_pretrained(tmp_path)
    config = Qwen2Config(vocab_size=len(reader), hidden_size=64, num_attention_heads=2, num_hidden_layers=1)
    config.architectures = ["Qwen2ForCausalLM"]
    config.save_pretrained(tmp_path)

    ours: dict[str, list[int]] = {}
    asked: list[dict[str, Any]] = []
    for name in NAMES:
        reader.chat_template = read(name)
        renderer = ChatRenderer(reader)
        for title, (messages, tools) in CONVERSATIONS.items():
            try:
                ours[f"{name}, {title}"] = prompt_ids(renderer.ask(messages, tools), reader)
            except UntokenizableText:
                continue
            # Without a parser for calls the endpoint shows tools only if it is told not to call them.
            offered = {"tools": tools, "tool_choice": "none"} if tools else {}
            asked.append({"messages": messages, "chat_template": reader.chat_template, **offered})
    assert {name.split(",")[0] for name in ours} == set(NAMES)
    assert {name.split(", ")[1] for name in ours} == set(CONVERSATIONS)

    command = [str(python), "-c", RENDERS, str(tmp_path)]
    ended = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    theirs = dict(zip(ours, json.loads(ended.stdout.splitlines()[-1]), strict=True))
    for case, ids in theirs.items():
        assert isinstance(ids, list), f"{case}: {ids}"
        assert reader.decode(ours[case]) == reader.decode(ids), case
        assert ours[case] == ids, case
