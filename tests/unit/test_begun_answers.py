"""Prompts that end with a begun answer, and variables of chat templates."""

from typing import Any

import pytest

from tests.support import chat_templates
from tests.support.echo import Letters
from trinity_db.config.shared import PromptConfig
from trinity_db.models.chat.prompts import ChatRenderer, UntokenizableText

ASKED = {"role": "user", "content": "Count to five."}
NAMES = sorted(path.stem for path in chat_templates.TEMPLATES.glob("*.jinja"))


def renderer(name: str) -> ChatRenderer:
    return ChatRenderer(chat_templates.tokenizer(chat_templates.read(name)))


def begun(content: Any, **more: Any) -> list[dict[str, Any]]:
    return [ASKED, {"role": "assistant", "content": content, **more}]


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_ends_with_the_begun_answer_and_continues_its_turn(name: str) -> None:
    render = renderer(name)
    text = render.ask(begun("1, 2,"), begun=True)
    assert text.endswith("1, 2,")
    assert render.text(begun("1, 2,"), asks=False).startswith(text)
    assert render.ask(begun("1, 2, "), begun=True) == f"{text} "
    assert render.ask(begun([{"type": "text", "text": "1, 2,"}]), begun=True) == text


def test_a_begun_answer_after_thoughts_keeps_them() -> None:
    text = renderer("qwen3").ask(begun("<think>\nEasy.\n</think>\n\n1, 2,"), begun=True)
    assert text.endswith("<|im_start|>assistant\n<think>\nEasy.\n</think>\n\n1, 2,")


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("qwen3", begun("<think>Easy.</think>1, 2,")),
        ("llama3", begun(" 1, 2,")),
        ("qwen3", begun("", tool_calls=[{"function": {"name": "add", "arguments": {}}}])),
        ("qwen3", [ASKED]),
    ],
    ids=["thoughts rewritten", "a space stripped", "tool calls", "a question"],
)
def test_an_answer_that_the_template_cannot_continue_is_refused(
    name: str, answer: list[dict[str, Any]]
) -> None:
    with pytest.raises(UntokenizableText, match="continued"):
        renderer(name).ask(answer, begun=True)


def test_a_begun_answer_without_a_chat_template_is_the_last_line() -> None:
    render = ChatRenderer(Letters(is_chat=False))
    assert render.ask(begun("1, 2,"), begun=True) == "user: Count to five.\nassistant: 1, 2,"


TEMPLATE = (
    "{% if thinks is not defined %}{% set thinks = true %}{% endif %}"
    "{% for message in messages %}{% generation %}{{ message.content }}{% endgeneration %}"
    "{% if level %}{% break %}{% endif %}{% endfor %}{{ 'thinking' }}{% if thinks %}<think>{% endif %}"
)


@pytest.mark.parametrize(
    ("variable", "is_read"), [("thinks", True), ("level", True), ("thinking", False), ("message", False)]
)
def test_the_variables_that_a_template_reads_are_known(variable: str, is_read: bool) -> None:
    assert ChatRenderer(chat_templates.tokenizer(TEMPLATE)).reads(variable) == is_read


def test_variables_of_a_request_take_precedence() -> None:
    template = "{% for message in messages %}{{ message.content }}{% endfor %}{{ level }}"
    config = PromptConfig(chat_template_kwargs={"level": "low"})
    render = ChatRenderer(chat_templates.tokenizer(template), config)
    assert render.ask([ASKED]) == "Count to five.low"
    assert render.ask([ASKED], variables={"level": "high"}) == "Count to five.high"
