"""OpenAI's older completions, which continue a text or tokens."""

from collections.abc import Iterable
from typing import Any

from trinity_db.explorer.http.dialects.common_options import (
    CONSTRAINTS,
    OPENAI_SAMPLING,
    RECORDED,
    UNCONSTRAINED,
)
from trinity_db.explorer.http.dialects.dialect import (
    AgentDialect,
    Answered,
    Body,
    ParsedRequest,
    event,
    openai_error,
    stop_strings,
    take,
    usage,
)
from trinity_db.explorer.http.dialects.options import (
    OptionTable,
    Refused,
    RequestContext,
    follow,
    refuse,
    replace,
)

SAMPLED = "only sampled text is returned"
OPTIONS = OptionTable(
    OPENAI_SAMPLING,
    CONSTRAINTS,
    {
        "prompt": follow("one text, or the tokens of one"),
        "max_tokens": follow(),
        "return_token_ids": follow("adds the tokens of prompt and answer"),
        "echo": refuse(SAMPLED, False),
        "suffix": refuse(SAMPLED, ""),
        "logprobs": refuse(RECORDED, False),
        "response_format": replace("response_format", UNCONSTRAINED, {"type": "text"}),
    },
)


def convert(body: Body, run: RequestContext) -> ParsedRequest:
    """Convert a prompt and its sampling options.

    Raises:
        Refused: if something is missing, has the wrong type, or there are several prompts.
    """
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]  # a list of one prompt
    is_tokens = isinstance(prompt, list) and all(type(token) is int for token in prompt)
    if not prompt or not (isinstance(prompt, str) or is_tokens):
        raise Refused(400, "'prompt' must be one string, or a list of tokens.")
    options = take(body, "stream_options", dict, "an object") or {}
    return ParsedRequest(
        model=str(body.get("model", "")),
        prompt=prompt,
        max_new_tokens=take(body, "max_tokens", int, "an integer"),
        temperature=take(body, "temperature", (int, float), "a number"),
        stop=stop_strings(body.get("stop")),
        is_streamed=bool(body.get("stream")),
        options={
            "include_usage": bool(options.get("include_usage")),
            "return_token_ids": bool(body.get("return_token_ids")),
        },
    )


def write(question: ParsedRequest, answered: Answered) -> dict[str, Any]:
    """Encode the answer as one object with one choice."""
    return {**_head(question, answered), "choices": [_choice(question, answered)], "usage": usage(answered)}


def events(question: ParsedRequest, answered: Answered) -> Iterable[str]:
    """Yield the answer as one chunk and, if requested, usage."""
    yield event({**_head(question, answered), "choices": [_choice(question, answered)]})
    if question.options["include_usage"]:
        yield event({**_head(question, answered), "choices": [], "usage": usage(answered)})
    yield "data: [DONE]\n\n"


def _choice(question: ParsedRequest, answered: Answered) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": 0,
        "text": answered.text,
        "logprobs": None,
        "finish_reason": answered.finish_reason,
    }
    if question.options["return_token_ids"]:
        choice |= {"prompt_token_ids": [*answered.prompt_ids], "token_ids": [*answered.token_ids]}
    return choice


def _head(question: ParsedRequest, answered: Answered) -> dict[str, Any]:
    return {
        "id": f"cmpl-{answered.id}",
        "object": "text_completion",
        "created": answered.created,
        "model": question.model,
    }


COMPLETIONS = AgentDialect("/v1/completions", OPTIONS, convert, write, events, openai_error)
