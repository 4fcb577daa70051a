"""What programs ask over HTTP, as the dialects of the recording endpoint read it."""

from typing import Any

import pytest

from trinity_db.explorer.config import RequestsConfig
from trinity_db.explorer.http.dialects.chat import CHAT
from trinity_db.explorer.http.dialects.completions import COMPLETIONS
from trinity_db.explorer.http.dialects.options import Refused, RequestContext
from trinity_db.explorer.http.dialects.responses import RESPONSES


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("b", "'text' must be an object"),
        ({"format": ["b"]}, "'text.format' is"),
        ({"format": {"type": "json_schema"}}, "'text.format' is"),
    ],
)
def test_a_format_that_responses_cannot_have_is_refused(text: Any, message: str) -> None:
    with pytest.raises(Refused, match=message):
        RESPONSES.read({"input": "a", "text": text}, RequestContext(RequestsConfig(response_format="strict")))


@pytest.mark.parametrize(
    ("dialect", "option", "message"),
    [
        (CHAT, {"temperature": True}, "'temperature' must be a number"),
        (CHAT, {"max_tokens": True}, "'max_tokens' must be an integer"),
        (CHAT, {"parallel_tool_calls": 1, "tools": [{"function": {"name": "f"}}]}, "must be true or false"),
        (COMPLETIONS, {"prompt": [True]}, "'prompt' must be one string, or a list of tokens"),
    ],
)
def test_a_truth_value_is_no_number(dialect: Any, option: dict[str, Any], message: str) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "prompt": "a", **option}
    with pytest.raises(Refused, match=message):
        dialect.read(body, RequestContext())


@pytest.mark.parametrize(("temperature", "sampled"), [(0, None), (1e-50, None), (0.009, None), (0.01, 0.01)])
def test_a_temperature_below_that_of_every_engine_is_that_of_the_run(
    temperature: float, sampled: float | None
) -> None:
    asked = CHAT.read(
        {"messages": [{"role": "user", "content": "a"}], "temperature": temperature}, RequestContext()
    )
    assert asked.temperature == sampled
    assert asked.replaced == ({"temperature": temperature} if sampled is None else {})
