"""Entries that several protocols have in their tables of options."""

from collections.abc import Mapping
from typing import Any

from trinity_db.config.shared import RENDERER_ARGUMENTS
from trinity_db.explorer.config import MIN_TEMPERATURE
from trinity_db.explorer.http.dialects.options import (
    Option,
    RequestContext,
    follow,
    no_effect,
    refuse,
    replace,
    replace_unless,
)

Entries = Mapping[str, Option]

WHOLE = "tokens are sampled from the whole distribution, with which the trainer compares"
UNCONSTRAINED = "constrained answers are not supported, since they change the distribution that is trained"
FORCED = "forcing a call changes the sampled distribution, so the policy decides whether it calls a tool"
HOSTED = "the policy can only call functions with a schema"
TEXTS = "the policy reads texts only, no images or files"
TEMPLATE = "given to the chat template"
BILLING = "the endpoint has no billing, tiers or regions"
CACHE = "only speeds up a request"
NO_VARIABLE = "the model's chat template has no variable for it"
RECORDED = "log-probabilities are recorded with the call, but not returned"


def _has_variable(value: Any, key: str, run: RequestContext) -> bool:
    return run.reads(key)


def _thinking_can_change(value: Any, key: str, run: RequestContext) -> bool:
    return run.thinking is not None


def effort_can_change(value: Any, key: str, run: RequestContext) -> bool:
    """Whether the chat template has levels of effort; switching thoughts off needs a switch alone."""
    return run.reads("reasoning_effort") or (value == "none" and run.thinking is not None)


def _is_not_greedy(value: Any, key: str, run: RequestContext) -> bool:
    """Whether a value is no temperature below the lowest one; the dialect refuses what is none at all."""
    return isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MIN_TEMPERATURE


def one_call_is_possible(value: Any, key: str, run: RequestContext) -> bool:
    """Whether sampling can stop after the first tool call, for a request that wants one at most."""
    wants_one = value is (key == "disable_parallel_tool_use")
    return run.has_call_end or not wants_one


TEMPERATURE: Entries = {
    "temperature": replace_unless(
        "temperature",
        "greedy samples cannot be trained on, so the run's temperature is used",
        f"from {MIN_TEMPERATURE}, stored with the tokens",
        _is_not_greedy,
    ),
}
SAMPLING: Entries = {
    **TEMPERATURE,
    "top_p": refuse(WHOLE, 1),
    "top_k": refuse(WHOLE, 0, -1),
    "min_p": refuse(WHOLE, 0),
    "typical_p": refuse(WHOLE, 1),
    "presence_penalty": refuse(WHOLE, 0),
    "frequency_penalty": refuse(WHOLE, 0),
    "repetition_penalty": refuse(WHOLE, 1),
    "logit_bias": refuse(WHOLE, {}),
}
OPENAI_SAMPLING: Entries = {
    **SAMPLING,
    "n": refuse("each call has one answer", 1),
    "best_of": refuse("each call has one answer", 1),
    "seed": replace("others", "the run seeds each call, so that the attempts of a group differ"),
    "stop": follow("a string or a list; the answer ends before it, and the stored tokens include it"),
    "model": follow("any name, or one of `explorer.requests.models`; echoed in the answer"),
    "stream": follow(),
    "stream_options": follow(),
    "stream_options.include_usage": follow("usage in the last chunk"),
    "stream_options.include_obfuscation": no_effect("nothing is added to the chunks"),
    "user": no_effect("names the end user"),
}
OPENAI_ACCOUNT: Entries = {
    "metadata": no_effect("the client's own labels"),
    "store": no_effect("answers are stored with the attempt, and are not served again"),
    "safety_identifier": no_effect("names the end user"),
    "user": no_effect("names the end user"),
    "service_tier": no_effect(BILLING),
    "prompt_cache_key": no_effect(CACHE),
    "prompt_cache_options": no_effect(CACHE),
    "prompt_cache_retention": no_effect(CACHE),
    "moderation": replace("others", "the endpoint moderates nothing"),
}
CONSTRAINTS: Entries = {
    name: replace("response_format", UNCONSTRAINED)
    for name in (
        *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"),  # vLLM
        *("regex", "ebnf", "json_schema"),  # SGLang
    )
}
VARIABLES: Entries = {
    "chat_template_kwargs": follow(),
    "chat_template_kwargs.*": replace_unless(
        "others", NO_VARIABLE, "variables that the model's chat template reads", _has_variable
    ),
    **{
        f"chat_template_kwargs.{name}": refuse("the endpoint itself sets this variable")
        for name in sorted(RENDERER_ARGUMENTS)
    },
    "enable_thinking": replace_unless(
        "others",
        NO_VARIABLE,
        "sets the template's variable `enable_thinking` or `thinking`",
        _thinking_can_change,
    ),
}
