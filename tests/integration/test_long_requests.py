"""Long requests of one program: others are answered meanwhile, and what cannot fit is refused early."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import pytest

from tests.integration.test_recording import asking
from tests.support.explorers import ERRORS, Explore, Says, Talk, user
from tests.support.rows import Scene
from tests.support.waiting import until
from trinity_db.explorer.attempt import conversations
from trinity_db.explorer.attempt.long_texts import SHORT
from trinity_db.explorer.attempt.policy import Policy
from trinity_db.explorer.engines.engine import Completion
from trinity_db.explorer.http import requests

LONG = "a" * (2 * SHORT)
CONTEXT = 8 * SHORT
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
CLAUDE = [{"name": "f", "input_schema": {"type": "object"}}]
RESPONDS = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat completions": ("/v1/chat/completions", {"messages": [user(LONG)]}),
    "chat completions with tools": ("/v1/chat/completions", {"messages": [user(LONG)], "tools": TOOLS}),
    "a stream": ("/v1/chat/completions", {"messages": [user(LONG)], "stream": True}),
    "completions": ("/v1/completions", {"prompt": LONG}),
    "completions of tokens": ("/v1/completions", {"prompt": [97] * len(LONG)}),
    "responses": ("/v1/responses", {"input": LONG, "tools": RESPONDS}),
    "messages": ("/v1/messages", {"messages": [user(LONG)], "max_tokens": SHORT, "tools": CLAUDE}),
    "count of tokens": ("/v1/messages/count_tokens", {"messages": [user(LONG)], "tools": CLAUDE}),
}


class Watched(Talk):
    """Records which threads work on long texts. They wait until another request is answered."""

    def __init__(self) -> None:
        self.chat_template = "yes"
        self.threads: dict[str, set[str]] = {}
        self.is_answered = threading.Event()
        self.has_begun = threading.Event()
        self.in_time = True

    def note(self, kind: str, length: int) -> None:
        if length > SHORT:
            self.threads.setdefault(kind, set()).add(threading.current_thread().name)
            self.has_begun.set()
            self.in_time &= self.is_answered.wait(20)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self.note("encode", len(text))
        return super().encode(text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        self.note("decode", len(token_ids))
        return super().decode(token_ids, skip_special_tokens=skip_special_tokens)

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        self.note("render", sum(len(one["content"]) for one in messages))
        return super().apply_chat_template(messages, **options)


class Repeats(Says):
    """Answers with as many tokens as the prompt has."""

    def __init__(self, tokenizer: Watched) -> None:
        super().__init__("no", context=CONTEXT)
        self.tokenizer = tokenizer

    async def generate(self, request: Any) -> Any:
        number = len(request.prompt_ids)
        return Completion([97] * number, [-0.5] * number, [self.version] * number, "stop")


@pytest.mark.parametrize("name", REQUESTS)
def test_no_long_text_is_worked_on_by_the_event_loop(
    explore: Explore, scene: Scene, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path, body = REQUESTS[name]
    tokenizer = Watched()
    for place, kind in ((requests, "parse_json"), (conversations, "parse")):
        original = getattr(place, kind)

        def watched(given: Any, *rest: Any, kind: str = kind, original: Any = original) -> Any:
            tokenizer.note(kind, len(given))
            return original(given, *rest)

        monkeypatch.setattr(place, kind, watched)
    policies: list[Policy] = []

    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        policies.append(policy)
        if len(policies) > 1:
            await until(tokenizer.has_begun.is_set, "the long text is worked on")
            async with asking(policy) as ask:
                assert (await ask({"messages": [user("?")], "max_tokens": 3}))[0] == 200
            tokenizer.is_answered.set()
            return 0.0
        address = await policy.address()
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                address.url + path, json=body, headers={"Authorization": f"Bearer {address.key}"}
            ) as response,
        ):
            assert response.status == 200, await response.text()
            await response.read()
        if "count" in name:
            await policy.complete("?", max_new_tokens=1)
        return 1.0

    explore(workflow, Repeats(tokenizer), groups=1, max_new_tokens=CONTEXT // 2)
    assert scene.values(ERRORS) == [None, None]
    assert tokenizer.in_time
    assert tokenizer.threads
    for kind, threads in tokenizer.threads.items():
        assert all(thread.startswith("long-texts") for thread in threads), (kind, threads)


def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(
    explore: Explore, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "MIN_MAX_BYTES", 2**18)  # of a body without a text, as the last one's
    tokenizer = Watched()
    tokenizer.is_answered.set()

    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        async with asking(policy) as ask:
            for body, path in (
                ({"prompt": "a" * 900_000}, "/v1/completions"),
                ({"prompt": [97] * 9_000}, "/v1/completions"),
                ({"messages": [user("a" * 900_000)]}, "/v1/chat/completions"),
                ({"messages": [user("")] * 9_000}, "/v1/chat/completions"),
                ({"messages": [user("?")], "ignored": "a" * 300_000}, "/v1/chat/completions"),
            ):
                status, said = await ask(body, path)
                assert (status, said["error"]["code"]) == (400, "context_length_exceeded")
            await ask({"prompt": "?"}, "/v1/completions")
        return 1.0

    engine = Says("yes", context=4096)
    engine.tokenizer = tokenizer
    explore(workflow, engine)
    assert scene.values(ERRORS) == [None, None]
    assert "encode" not in tokenizer.threads
