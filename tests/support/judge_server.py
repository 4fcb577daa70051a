"""A server that speaks OpenAI's chat completions without a model: a test says what it answers.

It runs in a thread, so that a processor in the test's own thread can ask it.
"""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

Behaviour = Any
"""What it does about a response: the text that it answers, or a list of that and more fields of the choice;
or a status with headers and a message; or "hang", or "die"."""


class JudgeServer:
    """Tests set `says` while it runs; each call of it is one request."""

    def __init__(self) -> None:
        self.says: dict[str, list[Behaviour]] = {}
        """By response: what it does at the first request, the second and so on; the last one stays."""
        self.asked: list[dict[str, Any]] = []
        """Bodies of all requests, in order."""
        self.keys: list[str | None] = []
        self.url = ""

    def about(self, body: dict[str, Any]) -> str:
        """The response that a request is about."""
        response = body["messages"][1]["content"].rpartition(" response\n")[0].rpartition("\nend ")[0]
        return str(response.rpartition(" response\n")[2])

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        self.keys.append(request.headers.get("Authorization"))
        steps = self.says[self.about(body)]
        said = steps.pop(0) if len(steps) > 1 else steps[0]
        if said == "hang":
            await asyncio.sleep(60)
        if said == "die":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if isinstance(said, tuple):
            status, headers, message = said
            return web.json_response({"error": {"message": message}}, status=status, headers=headers)
        text, more = said if isinstance(said, list) else (said, {})
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop", **more}
        usage = {"prompt_tokens": 120, "completion_tokens": 30}
        return web.json_response({"model": "judge-7b", "choices": [choice], "usage": usage})


def marks(**given: Any) -> str:
    """An answer as it is asked for."""
    return json.dumps({name: {"words": f"as to {name}", "mark": mark} for name, mark in given.items()})


class WriterServer(JudgeServer):
    """The same for a model that writes: what it says goes by the task that it is shown."""

    def about(self, body: dict[str, Any]) -> str:
        return str(body["messages"][1]["content"])


@contextmanager
def writer_server() -> Iterator[WriterServer]:
    """It runs until the block ends."""
    server = WriterServer()
    with _serving(server):
        yield server


@contextmanager
def judge_server() -> Iterator[JudgeServer]:
    """It runs until the block ends."""
    server = JudgeServer()
    with _serving(server):
        yield server


@contextmanager
def _serving(server: JudgeServer) -> Iterator[None]:
    loop = asyncio.new_event_loop()
    started = threading.Event()

    async def serve() -> web.AppRunner:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", server.complete)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        return runner

    def run() -> None:
        runner = loop.run_until_complete(serve())
        started.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
