"""A network between program and endpoint that fails: a request meets one fault, its repetitions none."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import aiohttp
from aiohttp import web

from tests.support.waiting import until

JOIN_SECONDS = 0.1  # from a repetition to the end of the sample that it may join
HOP = ("host", "content-length", "transfer-encoding", "connection", "accept-encoding", "content-encoding")
"""Headers of a connection, not of a request."""


class Sampler(Protocol):
    """An engine that can be held."""

    begun: int
    """Number of samples that were begun."""
    gate: asyncio.Event
    """Samples wait for it."""


Ask = Callable[[], Awaitable[tuple[int, Mapping[str, str], bytes]]]
"""Sends the request to the endpoint; status, headers and content of its answer."""
Fault = Callable[[web.Request, Ask, Sampler], Awaitable[web.StreamResponse]]


async def cut(request: web.Request, ask: Ask, sampler: Sampler) -> web.StreamResponse:
    """Break the connection in the middle of the answer."""
    status, headers, content = await ask()
    response = web.StreamResponse(status=status, headers=headers)
    await response.prepare(request)
    await response.write(content[: len(content) // 2])
    return _broken(request)


async def swallow(request: web.Request, ask: Ask, sampler: Sampler) -> web.StreamResponse:
    """Read the answer, and break the connection."""
    await ask()
    return _broken(request)


async def drop(request: web.Request, ask: Ask, sampler: Sampler) -> web.StreamResponse:
    """Break both connections while the answer is sampled, which ends after the request was repeated."""
    begun = sampler.begun
    sampler.gate.clear()
    asked = asyncio.ensure_future(ask())
    await until(lambda: sampler.begun > begun, "the answer is being sampled")
    asked.cancel()
    await asyncio.wait([asked])
    return _broken(request)


async def none(request: web.Request, ask: Ask, sampler: Sampler) -> web.StreamResponse:
    """Deliver the answer."""
    return _whole(*await ask())


def _whole(status: int, headers: Mapping[str, str], content: bytes) -> web.Response:
    return web.Response(status=status, headers=headers, body=content)


def _broken(request: web.Request) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


@asynccontextmanager
async def failing_network(url: str, faults: Sequence[Fault], sampler: Sampler) -> AsyncIterator[str]:
    """Yield the URL of a proxy in front of an endpoint. The requests meet these faults in turn, then none."""
    rest = iter(faults)
    seen: set[str] = set()

    async def forward(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        kept = {name: value for name, value in request.headers.items() if name.lower() not in HOP}

        async def ask() -> tuple[int, Mapping[str, str], bytes]:
            async with session.request(
                request.method, url + request.raw_path, data=body, headers=kept
            ) as answer:
                content = await answer.read()
                return answer.status, {"Content-Type": answer.headers["Content-Type"]}, content

        if request.method != "POST":
            return await none(request, ask, sampler)
        if (content := _content(body)) in seen:
            asked = asyncio.ensure_future(none(request, ask, sampler))
            asyncio.get_running_loop().call_later(JOIN_SECONDS, sampler.gate.set)
            return await asked
        seen.add(content)
        return await next(rest, none)(request, ask, sampler)

    application = web.Application(client_max_size=2**26)
    application.router.add_route("*", "/{path:.*}", forward)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _content(body: bytes) -> str:
    """What repetitions of a request share; they may ask for a stream or not."""
    asked: dict[str, Any] = json.loads(body)
    kept = {name: value for name, value in asked.items() if name not in ("stream", "stream_options")}
    return json.dumps(kept, sort_keys=True)
