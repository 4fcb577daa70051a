"""agent-lightning's in-memory store: rollouts with attempts, and what a rollout made in a span's attributes.

One writer calls the store in its own process; several processes reach it over its HTTP server, as its runners
do. Its package imports all of agent-lightning (LiteLLM, AgentOps, OpenAI, ...); only its store is loaded.
"""

import asyncio
import importlib.util
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

for name in ("agentlightning", "agentlightning.tracer"):  # without what their __init__ imports
    module = ModuleType(name)
    found = importlib.util.find_spec("agentlightning")
    module.__path__ = [str(Path(found.origin).parent.joinpath(*name.split(".")[1:]))]
    module.__spec__ = found if name == "agentlightning" else None
    sys.modules[name] = module

from agentlightning.store.client_server import LightningStoreClient, LightningStoreServer  # noqa: E402
from agentlightning.store.memory import InMemoryLightningStore  # noqa: E402
from agentlightning.types import EnqueueRolloutRequest, OtelResource, Span, TraceStatus  # noqa: E402

from benchmarks import data  # noqa: E402
from benchmarks.peers import frame  # noqa: E402
from benchmarks.processes import at_once, elapsed  # noqa: E402

NOTE = "not durable (in memory); several processes over its HTTP server"
NOTES = {
    "draw": "in its own process; nothing is consumed, each draw finds the same rows",
    "claims": "tasks that wait, without a payload",
    "loop": "in one process, without the agents' sleep",
}
READY_SECONDS = 60
QUEUED = 4096  # tasks that its own benchmark keeps waiting
IDLE_SECONDS = 0.001


def ingest(asked: frame.Specification) -> frame.Repetitions:
    return [asyncio.run(_ingest_here(asked)) if asked.writers == 1 else _ingest_over_http(asked)
            for _ in range(asked.repetitions)]  # fmt: skip


async def _ingest_here(asked: frame.Specification) -> dict[str, Any]:
    store = InMemoryLightningStore()
    rows = data.rows(asked.rows)
    start = time.perf_counter()
    for commit in frame.chunks(rows, asked.rows_a_commit):
        await write(store, commit)
    return frame.written(time.perf_counter() - start, rows)


def _ingest_over_http(asked: frame.Specification) -> dict[str, Any]:
    with server() as address:
        parts = [(address, *part, asked.rows_a_commit) for part in frame.each_part(asked)]
        outcomes = at_once(prepare_writer, parts)
    return frame.written(elapsed(outcomes), frame.all_parts(asked))


def prepare_writer(part: tuple[str, int, int, int]) -> Any:
    address, rows, first_group, rows_a_commit = part
    commits = frame.chunks(data.rows(rows, first_group), rows_a_commit)

    async def work(store: Any) -> None:
        for commit in commits:
            await write(store, commit)

    return lambda: asyncio.run(with_client(address, work))


async def write(store: Any, rows: list[data.Experience]) -> None:
    """The messages of a runner about finished rollouts: started, a span with arrays and texts, succeeded."""
    started = [await store.start_rollout(input={"group": row.group, "member": row.member}) for row in rows]
    await store.add_many_spans([span(one, row) for one, row in zip(started, rows, strict=True)])
    for one in started:
        await store.update_attempt(one.rollout_id, one.attempt.attempt_id, status="succeeded")


def span(rollout: Any, row: data.Experience | None, turn: int = 1) -> Span:
    attributes = {} if row is None else {
        "prompt": row.prompt,
        "response": row.response,
        "token_ids": row.token_ids.tolist(),
        "action_mask": row.action_mask.tolist(),
        "logprobs": row.logprobs.tolist(),
        "reward": row.reward,
        "version": row.version,
    }  # fmt: skip
    return Span(
        rollout_id=rollout.rollout_id,
        attempt_id=rollout.attempt.attempt_id,
        sequence_id=turn,
        trace_id="0" * 32,
        span_id=f"{turn:016x}",
        parent_id=None,
        name="rollout",
        status=TraceStatus(status_code="OK"),
        attributes=attributes,
        events=[],
        links=[],
        start_time=0.0,
        end_time=1.0,
        context=None,
        parent=None,
        resource=OtelResource(attributes={}, schema_url=""),
    )


def draw(asked: frame.Specification) -> frame.Repetitions:
    directions = {"fifo": "asc", "newest": "desc"}
    if asked.order not in directions:
        raise frame.Unsupported("it sorts by a field and draws nothing at random")
    if asked.max_staleness is not None:
        raise frame.Unsupported("it filters by state and name only")
    loop = asyncio.new_event_loop()
    store = InMemoryLightningStore()
    for commit in frame.chunks(data.rows(asked.rows), 512):
        loop.run_until_complete(write(store, commit))

    async def once() -> list[Any]:
        rollouts = await store.query_rollouts(
            status_in=["succeeded"],
            sort_by="start_time",
            sort_order=directions[asked.order],
            limit=asked.size,
        )
        drawn = []
        for rollout in rollouts:
            [found] = await store.query_spans(rollout.rollout_id)
            values = found.attributes
            ids = np.array(values["token_ids"], np.int32)
            drawn.append(
                (ids, np.array(values["action_mask"], bool), np.array(values["logprobs"], np.float32))
            )
        return drawn

    return [
        frame.timed(lambda: loop.run_until_complete(once()), asked.draws) for _ in range(asked.repetitions)
    ]


def claims(asked: frame.Specification) -> frame.Repetitions:
    found = []
    for _ in range(asked.repetitions):
        with server() as address:
            asyncio.run(with_client(address, lambda store: enqueue(store, range(asked.rows))))
            quota = asked.rows // asked.consumers // asked.size
            outcomes = at_once(prepare_consumer, [(address, asked.size, quota)] * asked.consumers)
        keys = [key for outcome in outcomes for key in outcome.value]
        found.append(frame.claimed(elapsed(outcomes), asked.rows, keys))
    return found


def prepare_consumer(part: tuple[str, int, int]) -> Any:
    address, size, quota = part

    async def work(store: Any) -> list[str]:
        keys = []
        for _ in range(quota):
            keys += [one.input["task"] for one in await store.dequeue_many_rollouts(limit=size)]
        return keys

    return lambda: asyncio.run(with_client(address, work))


async def enqueue(store: Any, tasks: range) -> list[str]:
    """The ids of new rollouts for tasks, a thousand at a time."""
    ids = []
    for first in range(tasks.start, tasks.stop, 1000):
        numbers = range(first, min(first + 1000, tasks.stop))
        requests = [EnqueueRolloutRequest(input={"task": number}) for number in numbers]
        ids += [rollout.rollout_id for rollout in await store.enqueue_many_rollouts(requests)]
    return ids


def loop(asked: frame.Specification) -> frame.Repetitions:
    """Its own benchmark's scenario without the agents' sleep: keep tasks waiting, collect batches."""
    return [asyncio.run(_loop(asked)) for _ in range(asked.repetitions)]


async def _loop(asked: frame.Specification) -> dict[str, Any]:
    store = InMemoryLightningStore()
    start = time.perf_counter()
    runners = [asyncio.create_task(_runner(store, asked.turns)) for _ in range(asked.runners)]
    waiting: list[str] = []
    enqueued = collected = 0
    while collected < asked.rows:
        while enqueued < asked.rows and len(waiting) < QUEUED:
            stop = min(enqueued + asked.size, asked.rows)
            waiting += await enqueue(store, range(enqueued, stop))
            enqueued = stop
        finished: list[Any] = []
        wanted = min(asked.size, asked.rows - collected)
        while len(finished) < wanted:
            await asyncio.sleep(IDLE_SECONDS)
            finished = await store.query_rollouts(
                rollout_id_in=waiting, status_in=["succeeded"], limit=wanted
            )
        ids = {rollout.rollout_id for rollout in finished}
        for rollout_id in ids:
            await store.query_spans(rollout_id)
        waiting = [rollout_id for rollout_id in waiting if rollout_id not in ids]
        collected += len(ids)
    seconds = time.perf_counter() - start
    for runner in runners:
        runner.cancel()
    return {"seconds": seconds, "rows": asked.rows}


async def _runner(store: Any, turns: int) -> None:
    while True:
        rollout = await store.dequeue_rollout()
        if rollout is None:
            await asyncio.sleep(IDLE_SECONDS)
            continue
        for turn in range(1, turns + 1):
            await store.add_span(span(rollout, None, turn))
        await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
        await asyncio.sleep(0)


async def with_client(address: str, work: Callable[[Any], Awaitable[Any]]) -> Any:
    client = LightningStoreClient(address)
    try:
        return await work(client)
    finally:
        await client.close()


@contextmanager
def server() -> Any:
    """The address of its HTTP server over an in-memory store, in a process of its own."""
    with socket.socket() as unused:
        unused.bind(("localhost", 0))
        port = unused.getsockname()[1]
    process = get_context("spawn").Process(target=serve, args=(port,), daemon=True)
    process.start()
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.join()


def serve(port: int) -> None:
    os.environ["AGL_LOG_LEVEL"] = "WARNING"
    store = InMemoryLightningStore(thread_safe=True)

    async def forever() -> None:
        server = LightningStoreServer(store, host="127.0.0.1", port=port, launch_mode="asyncio")
        await server.start()
        await asyncio.Event().wait()

    asyncio.run(forever())


if __name__ == "__main__":
    operations = {"ingest": ingest, "draw": draw, "claims": claims, "loop": loop}
    frame.main("agent-lightning", "agentlightning", operations, NOTE, NOTES)
