"""Thoughts are told from answers by the marks of several models."""

import asyncio
from typing import Any

import openai
import pytest

from tests.support.chat_templates import tokenizer
from tests.support.echo import Scripted
from trinity_db.config.shared import DEFAULT_PROMPTS
from trinity_db.explorer.config import DEFAULT_REQUESTS
from trinity_db.explorer.http.listener import EndpointAddress
from trinity_db.explorer.http.plain import PlainEndpoint
from trinity_db.models.chat.decoding import response_text
from trinity_db.models.chat.thoughts import MARKS, Marks, after_thoughts, cut, split

EXPLAINS = """{{ '[SYSTEM]Think in [THINK]here[/THINK] first.[/SYSTEM]' }}
{%- for message in messages %}
  {%- if message.role == 'user' %}{{ '[INST]' ~ message.content ~ '[/INST]' }}
  {%- else %}{{ message.content ~ eos_token }}{% endif %}
{%- endfor %}"""
"""As Mistral's: its own system prompt has the marks."""


@pytest.mark.parametrize("marks", MARKS)
def test_a_thought_is_between_the_marks_of_its_model(marks: Marks) -> None:
    opening, closing = marks
    whole = f"{opening}\nHm.\n{closing}\n\n4"
    assert split(whole) == split(whole.removeprefix(opening), f"2+2?{opening}\n") == ("Hm.", "4")
    assert split(f"{opening}Hm") == ("Hm", "")
    assert split(whole, known=[other for other in MARKS if other != marks]) == ("", whole)
    assert after_thoughts(f"{opening}3{closing}5{whole}").strip() == "4"
    assert (
        after_thoughts(f"{opening}4") == after_thoughts("4", opening) == after_thoughts(whole + opening) == ""
    )
    assert cut(whole) == (whole[:-3], "\n\n4")
    assert cut("4") == ("", "4")


def test_marks_that_a_system_prompt_explains_stay_in_the_text() -> None:
    reader = tokenizer(EXPLAINS)
    sampled = reader.encode("[THINK]Hm.[/THINK]4</s>", add_special_tokens=False)
    assert response_text(sampled, reader) == "[THINK]Hm.[/THINK]4"


@pytest.mark.parametrize(("template", "thought"), [(EXPLAINS, "Hm."), ("no thoughts", None)])
def test_programs_get_thoughts_apart_if_the_template_has_their_marks(
    template: str, thought: str | None
) -> None:
    engine = Scripted("[THINK]Hm.[/THINK]yes")
    engine.tokenizer.chat_template = template

    async def ask() -> Any:
        endpoint = PlainEndpoint(engine, "m", EndpointAddress(), DEFAULT_REQUESTS, DEFAULT_PROMPTS, 99)
        await endpoint.start()
        try:
            async with openai.AsyncOpenAI(base_url=f"{endpoint.url}/v1", api_key="none") as client:
                question: Any = [{"role": "user", "content": "a"}]
                answer = await client.chat.completions.create(model="m", messages=question)
                return answer.choices[0].message
        finally:
            await endpoint.stop()

    message = asyncio.run(ask())
    assert getattr(message, "reasoning_content", None) == thought
    assert message.content == ("yes" if thought else "[THINK]Hm.[/THINK]yes")
