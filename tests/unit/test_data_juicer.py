"""The example that asks Data-Juicer's service: over HTTP, by a server that speaks the service's interface."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiohttp import web

from tests.support.steps import load, verdicts
from trinity_db.processors.lists.step import Context, Step
from trinity_db.schema.states import Outcome
from trinity_db.store.processing import StepVerdict

JUICER = f"{Path(__file__).parents[2]}/configs/data_juicer/juicer.py:Juicer"
OPERATORS = {"text_length_filter": {"min_len": 4}}


@dataclass
class Service:
    """Keeps texts by length, as text_length_filter does. Mistakes are answered as the real service does."""

    url: str = ""
    sessions: dict[str, Any] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    lies: bytes | None = None

    async def create(self, request: web.Request) -> web.Response:
        config = await request.json()
        if not config.get("operators"):
            return web.json_response({"error": "Failed to parse config: no operators"}, status=400)
        session = f"session-{len(self.sessions)}"
        self.sessions[session] = config
        return web.json_response({"session_id": session, "message": "Session created successfully."})

    async def process(self, request: web.Request) -> web.Response:
        form = await request.post()
        config = self.sessions.get(str(form["session_id"]))
        if config is None:
            return web.json_response({"error": "Session ID not found."}, status=404)
        sent = form["arrow_data"]
        assert isinstance(sent, web.FileField)
        with pa.ipc.open_stream(sent.file.read()) as reader:
            rows = reader.read_all().to_pylist()
        self.sizes.append(len(rows))
        if any("crash" in row["text"] for row in rows):
            error = "Experience processing failed:\nTraceback ...\nValueError: no such text"
            return web.json_response({"error": error}, status=500)
        least = config["operators"][0]["text_length_filter"]["min_len"]
        kept = [
            {**row, "__dj__stats__": {"text_len": len(row["text"])}}
            for row in rows
            if len(row["text"]) >= least
        ]
        schema = pa.schema(
            [
                ("text", pa.string()),
                ("place", pa.int64()),
                ("__dj__stats__", pa.struct([("text_len", pa.int64())])),
            ]
        )
        table = pa.Table.from_pylist(kept, schema)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        body = self.lies if self.lies is not None else sink.getvalue().to_pybytes()
        return web.Response(body=body, headers={"X-Metrics": "{}"}, content_type="application/octet-stream")


@contextmanager
def serving() -> Iterator[Service]:
    service, loop, started = Service(), asyncio.new_event_loop(), threading.Event()

    def serve() -> None:
        app = web.Application()
        app.router.add_post("/create", service.create)
        app.router.add_post("/process_experience", service.process)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        loop.run_until_complete(runner.setup())
        loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", 0).start())
        service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        started.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield service
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


@pytest.fixture
def service() -> Iterator[Service]:
    with serving() as found:
        yield found


def asked(service: Service, **options: Any) -> list[Step]:
    given = {"name": JUICER, "url": service.url, "operators": OPERATORS, **options}
    return [one.prepared(Context(None, None, 1.0)) for one in load("clean", given)]  # type: ignore[arg-type]


def judged(steps: list[Step], *responses: str) -> list[StepVerdict]:
    return verdicts("clean", steps, *({"response": response} for response in responses))


def test_rows_that_an_operator_filters_out_are_dropped(service: Service) -> None:
    found = judged(asked(service), "long enough", "no", "four")
    assert [verdict.outcome for verdict in found] == [Outcome.PASSED, Outcome.DROPPED, Outcome.PASSED]
    assert found[1].reason == "data_juicer"
    assert service.sizes == [3], "asked about together"
    assert service.sessions == {"session-0": {"operators": [{"text_length_filter": {"min_len": 4}}], "np": 1}}


def test_a_service_that_was_started_again_gets_a_new_session(service: Service) -> None:
    steps = asked(service)
    judged(steps, "long enough")
    service.sessions = {"another": {}}
    assert [verdict.outcome for verdict in judged(steps, "long enough")] == [Outcome.PASSED]
    assert list(service.sessions) == ["another", "session-1"]


def test_a_row_that_the_service_cannot_process_fails_alone(service: Service) -> None:
    good, bad = judged(asked(service), "long enough", "crash")
    assert good.outcome == Outcome.PASSED
    assert bad.outcome == Outcome.FAILED
    assert "HTTP 500: ValueError: no such text" in str(bad.error)


def test_what_is_no_table_is_a_failure(service: Service) -> None:
    service.lies = b"no table"
    [verdict] = judged(asked(service), "long enough")
    assert verdict.outcome == Outcome.FAILED


def test_a_service_that_refuses_the_operators_or_is_not_there_is_a_failure(service: Service) -> None:
    [verdict] = judged(asked(service, operators={}), "long enough")
    assert "HTTP 400: Failed to parse config: no operators" in str(verdict.error)
    [verdict] = judged(asked(service, url="http://127.0.0.1:9"), "long enough")
    assert "refused" in str(verdict.error)
