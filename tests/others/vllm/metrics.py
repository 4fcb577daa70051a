"""What a vLLM server counts of itself."""

import asyncio

import aiohttp

from tests.support.waiting import WAIT_SECONDS

IN_FLIGHT = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
"""Requests that the server samples or keeps waiting."""
SAMPLED = ("vllm:generation_tokens_total{",)
"""Tokens since its start."""


async def count(session: aiohttp.ClientSession, url: str, names: tuple[str, ...]) -> float:
    """The sum of these metrics."""
    async with session.get(f"{url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(names))


async def until(
    session: aiohttp.ClientSession, url: str, names: tuple[str, ...], least: float, most: float = float("inf")
) -> None:
    """Wait until their sum lies between these numbers."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not least <= await count(session, url, names) <= most:
            await asyncio.sleep(0.02)
