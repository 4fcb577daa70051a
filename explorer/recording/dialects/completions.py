"""OpenAI's older completions: a text or tokens are continued."""

from collections.abc import Iterable
from typing import Any

from trinity_db.explorer.recording.dialects.dialect import (
    Answered,
    Asked,
    Body,
    Dialect,
    Refused,
    event,
    openai_error,
    refuse_bias,
    stop_strings,
    take,
    usage,
)


def read(body: Body) -> Asked:
    """The prompt and the options that it is continued by.

    Raises:
        Refused: there are several prompts, or an option would change what is trained.
    """
    refuse_bias(body)
    for key in ("echo", "suffix", "logprobs"):
        if body.get(key):
            raise Refused(
                400, f"'{key}' is not supported: an answer is what the policy sampled.", "unsupported_value"
            )
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]  # a list of one prompt
    is_tokens = isinstance(prompt, list) and all(isinstance(token, int) for token in prompt)
    if not prompt or not (isinstance(prompt, str) or is_tokens):
        raise Refused(400, "'prompt' must be one text, or the tokens of one.")
    options = take(body, "stream_options", dict, "an object") or {}
    return Asked(
        model=str(body.get("model", "")),
        prompt=prompt,
        max_new_tokens=take(body, "max_tokens", int, "a whole number"),
        temperature=take(body, "temperature", (int, float), "a number"),
        stop=stop_strings(body.get("stop")),
        is_streamed=bool(body.get("stream")),
        options={
            "include_usage": bool(options.get("include_usage")),
            "return_token_ids": bool(body.get("return_token_ids")),
        },
    )


def write(asked: Asked, answered: Answered) -> dict[str, Any]:
    """One object with one choice."""
    return {**_head(asked, answered), "choices": [_choice(asked, answered)], "usage": usage(answered)}


def events(asked: Asked, answered: Answered) -> Iterable[str]:
    """The answer as one chunk, and usage where it is asked for."""
    yield event({**_head(asked, answered), "choices": [_choice(asked, answered)]})
    if asked.options["include_usage"]:
        yield event({**_head(asked, answered), "choices": [], "usage": usage(answered)})
    yield "data: [DONE]\n\n"


def _choice(asked: Asked, answered: Answered) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": 0,
        "text": answered.text,
        "logprobs": None,
        "finish_reason": answered.finish_reason,
    }
    if asked.options["return_token_ids"]:
        choice |= {"prompt_token_ids": [*answered.prompt_ids], "token_ids": [*answered.token_ids]}
    return choice


def _head(asked: Asked, answered: Answered) -> dict[str, Any]:
    return {
        "id": f"cmpl-{answered.id}",
        "object": "text_completion",
        "created": answered.created,
        "model": asked.model,
    }


COMPLETIONS = Dialect("/v1/completions", read, write, events, openai_error)
