"""A taskset of verifiers v1, played by the package in an interpreter of its own."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from tests.others.environments.conftest import HERE
from trinity_db.explorer.config import EnvironmentConfig
from trinity_db.explorer.environments.played import Environment

PYTHON = str(HERE.parents[2] / ".venv-verifiers" / "bin" / "python")


async def say_cba(request: web.Request) -> web.StreamResponse:
    """Answer as a chat completion that is streamed; a key that is not known is refused."""
    if request.headers["Authorization"] != "Bearer k1":
        return web.json_response({"error": {"message": "no such attempt"}}, status=401)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    of = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "policy"}
    said = {"index": 0, "delta": {"role": "assistant", "content": "cba"}, "finish_reason": None}
    for choice in (said, {"index": 0, "delta": {}, "finish_reason": "stop"}):
        await response.write(f"data: {json.dumps({**of, 'choices': [choice]})}\n\n".encode())
    await response.write(b"data: [DONE]\n\n")
    return response


async def attempts(keys: list[str]) -> list[Any]:
    """What attempts come to in which the policy always says cba, one after the other; errors are among it."""
    application = web.Application()
    application.router.add_post("/v1/chat/completions", say_cba)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert runner.addresses
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    play = Environment(EnvironmentConfig(name="verifiers", python=PYTHON, taskset="backwards", processes=1))

    def policy(key: str) -> Any:
        async def address() -> Any:
            return SimpleNamespace(url=url, key=key)

        return SimpleNamespace(address=address)

    try:
        tried = [play({"index": index % 2}, policy(key)) for index, key in enumerate(keys)]
        return await asyncio.gather(*tried, return_exceptions=True)
    finally:
        await runner.cleanup()


def test_its_harness_asks_the_policy_and_an_error_on_its_record_is_no_reward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE / "servers"))
    right, wrong, refused = asyncio.run(attempts(["k1", "k1", "k2"]))
    assert (right, wrong) == ({"right": 1.0}, {"right": 0.0})
    assert "RuntimeError: " in str(refused)
    assert "401" in str(refused) or "no such attempt" in str(refused)
