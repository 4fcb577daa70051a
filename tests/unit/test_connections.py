"""Connections without a key: when they are closed, and that a flood of them stops nothing."""

import asyncio
import logging
import subprocess
import sys
import urllib.request
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.endpoints import started
from tests.support.idle_connections import FLOOD, flood, is_closed_by_server
from trinity_db.io.connections import RepeatLimit

KEY = "k" * 43
KEYLESS_SECONDS = 0.3
ROOT = Path(__file__).parents[2]


def request(key: str) -> bytes:
    return f"GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\n\r\n".encode()


def models(url: str) -> int:
    """The status of a request with a key, by a new connection."""
    asked = urllib.request.Request(f"{url}/v1/models", headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return int(answer.status)


def test_an_endpoint_with_few_descriptors_answers_during_a_flood_of_idle_connections(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.endpoints", KEY],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with flood(url) as idle:
            assert models(url) == 200
            assert is_closed_by_server(idle[0]), "the oldest are closed"
            assert len(idle) == FLOOD
            assert models(url) == 200
        assert len(log.read_text().splitlines()) < 100
    finally:
        process.kill()
        process.communicate()


Story = Callable[[int], Awaitable[None]]


def with_endpoint(story: Story) -> None:
    """Run a story with the port of an endpoint that knows one key."""

    async def run() -> None:
        endpoint = await started(KEY, KEYLESS_SECONDS)
        try:
            await asyncio.wait_for(story(int(endpoint.url.rpartition(":")[2])), 60)
        finally:
            await endpoint.stop()

    asyncio.run(run())


def test_idle_connections_without_a_key_are_closed_and_one_with_a_key_stays() -> None:
    async def story(port: int) -> None:
        keyed, to_keyed = await asyncio.open_connection("127.0.0.1", port)
        to_keyed.write(request(KEY))
        assert b"200 OK" in await keyed.readline()
        silent, to_silent = await asyncio.open_connection("127.0.0.1", port)
        unknown, to_unknown = await asyncio.open_connection("127.0.0.1", port)
        to_unknown.write(request("guess"))
        assert b"401" in await unknown.readline()
        assert await silent.read() == b""
        await unknown.read()  # the rest of the answer, and the end
        to_keyed.write(request(KEY))
        await keyed.readuntil(b"HTTP/1.1 200 OK")
        for writer in (to_keyed, to_silent, to_unknown):
            writer.close()

    with_endpoint(story)


def test_a_request_that_arrives_byte_by_byte_does_not_postpone_the_time_out() -> None:
    async def story(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        closed = asyncio.create_task(reader.read())
        for byte in b"GET /v1/models HTTP/1.1\r\nA: " + b"a" * 6000:
            writer.write(bytes([byte]))
            if (await asyncio.wait([closed], timeout=KEYLESS_SECONDS / 30))[0]:
                break
        else:
            pytest.fail("the connection stays open as long as bytes arrive")
        with suppress(ConnectionResetError):
            assert closed.result() == b""
        writer.close()

    with_endpoint(story)


def logged(limit: RepeatLimit, *errors: str, raised: Exception | None = None) -> list[str]:
    """What passes of errors of one logger."""
    found = []
    for error in errors:
        info = (type(raised), raised, raised.__traceback__) if raised else None
        record = logging.LogRecord("a", logging.ERROR, "", 0, error, (), info)
        if limit.filter(record):
            found.append(record.getMessage())
    return found


def test_errors_that_differ_in_numbers_only_are_logged_once_a_period_with_a_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr("trinity_db.io.connections.time.monotonic", lambda: now)
    limit = RepeatLimit(seconds=60)
    assert logged(limit, *(f"fd={number} at 0x{number:x}" for number in range(1000))) == ["fd=0 at 0x0"]
    assert logged(limit, "another", "another") == ["another"]
    now = 61.0
    assert logged(limit, "fd=7 at 0x7", "fd=8 at 0x8") == ["fd=7 at 0x7 (999 more like this were not logged)"]
    now = 122.0
    assert logged(limit, "fd=9 at 0x9") == ["fd=9 at 0x9 (1 more like this were not logged)"]


def test_exceptions_of_other_lines_are_errors_of_other_kinds() -> None:
    limit = RepeatLimit()
    raised = []
    for index in (0, 1):
        try:
            if index:
                raise ValueError
            raise ValueError
        except ValueError as error:
            raised.append(error)
    for one in raised:
        assert logged(limit, "failed", "failed", raised=one) == ["failed"]
