"""Trinity-RFT's SQL storage on the same PostgreSQL, with its writer and reader and without Ray actors.

Actors would pickle every row; `wrap_in_ray=False` disables them. The reader of experiences returns the newest
that were not consumed, the reader of `sft` data the oldest; neither has a random order.
"""

import asyncio
import os
import sys
import time
from types import ModuleType
from typing import Any

os.environ["TRINITY_LOG_LEVEL"] = "WARNING"  # else it logs each write
datasets = ModuleType("datasets")  # large, and only used in a signature
datasets.Dataset = object
sys.modules["datasets"] = datasets

import torch  # noqa: E402
from trinity.buffer.reader.sql_reader import SQLReader  # noqa: E402
from trinity.buffer.writer.sql_writer import SQLWriter  # noqa: E402
from trinity.common.config import StorageConfig  # noqa: E402
from trinity.common.experience import EID, Experience  # noqa: E402

from benchmarks import data  # noqa: E402
from benchmarks.peers import frame  # noqa: E402
from benchmarks.processes import at_once, elapsed  # noqa: E402

SCHEMAS = {"newest": "experience", "fifo": "sft"}


def ingest(specification: frame.Specification) -> frame.Repetitions:
    create(specification.url, "rows")
    repetitions = []
    for _ in range(specification.repetitions):
        parts = [
            (specification.url, *part, specification.rows_a_commit) for part in frame.each_part(specification)
        ]
        repetitions.append({"seconds": elapsed(at_once(prepare_writer, parts)), "rows": specification.rows})
    return repetitions


def prepare_writer(part: tuple[str, int, int, int]) -> Any:
    url, rows, first_group, rows_a_commit = part
    commits = frame.chunks(data.rows(rows, first_group), rows_a_commit)
    loop = asyncio.new_event_loop()
    writer = SQLWriter(config(url, "rows"))
    loop.run_until_complete(writer.acquire())  # connects

    async def write() -> None:
        for commit in commits:
            await writer.write([experience(row) for row in commit])

    return lambda: loop.run_until_complete(write())


def draw(specification: frame.Specification) -> frame.Repetitions:
    if specification.order not in SCHEMAS:
        raise frame.Unsupported("its SQL reader only has the orders oldest first and newest first")
    if specification.max_staleness is not None and specification.order == "fifo":
        raise frame.Unsupported("its reader of oldest rows has no limit of staleness")
    storage = config(specification.url, "rows", SCHEMAS[specification.order])
    loop = asyncio.new_event_loop()
    fill(loop, storage, specification.rows)
    reader = SQLReader(storage)
    newest = specification.rows // data.GROUP_SIZE // data.GROUPS_PER_VERSION
    limit = (
        {}
        if specification.max_staleness is None
        else {"min_model_version": newest - specification.max_staleness}
    )

    def once() -> list[Any]:
        rows = loop.run_until_complete(reader.read(specification.size, **limit))
        return [(row.tokens.numpy(), row.logprobs.numpy(), row.action_mask.numpy()) for row in rows]

    return [frame.timed(once, specification.draws) for _ in range(specification.repetitions)]


def claims(specification: frame.Specification) -> frame.Repetitions:
    repetitions = []
    for repetition in range(specification.repetitions):
        name = f"rows{repetition}"
        fill(asyncio.new_event_loop(), config(specification.url, name), specification.rows)
        quota = specification.rows // specification.consumers // specification.size
        outcomes = at_once(
            prepare_consumer, [(specification.url, name, specification.size, quota)] * specification.consumers
        )
        keys = [key for outcome in outcomes for key in outcome.value]
        repetitions.append(frame.claimed(elapsed(outcomes), specification.rows, keys))
    return repetitions


def prepare_consumer(part: tuple[str, str, int, int]) -> Any:
    url, name, size, quota = part
    loop = asyncio.new_event_loop()
    reader = SQLReader(config(url, name))
    loop.run_until_complete(reader._get_async_storage())  # connects

    async def consume() -> list[tuple[str, int]]:
        keys = []
        for _ in range(quota):
            try:
                keys += [(row.eid.task, row.eid.run) for row in await reader.read(size)]
            except StopAsyncIteration:  # timed out: other consumers took the rest, or rows were lost
                break
        return keys

    return lambda: loop.run_until_complete(consume())


def config(url: str, name: str, schema: str = "experience") -> StorageConfig:
    return StorageConfig(
        name=name,
        storage_type="sql",
        path=url,
        wrap_in_ray=False,
        schema_type=schema,
        batch_size=64,
        max_read_timeout=10,
        replay_buffer=None,
    )


def create(url: str, name: str) -> None:
    """Create the tables, so that writers do not do so concurrently."""
    asyncio.run(SQLWriter(config(url, name)).acquire())


def fill(loop: asyncio.AbstractEventLoop, storage: StorageConfig, rows: int) -> None:
    writer = SQLWriter(storage)
    for commit in frame.chunks(data.rows(rows), 512):
        loop.run_until_complete(writer.write([experience(row) for row in commit]))


def experience(row: data.Experience) -> Experience:
    """Convert a row; the mask covers the response."""
    return Experience(
        eid=EID(task=row.group, run=row.member, suffix=str(time.monotonic_ns())),
        tokens=torch.tensor(row.token_ids),
        logprobs=torch.tensor(row.logprobs),
        prompt_length=row.prompt_tokens,
        action_mask=torch.tensor(row.action_mask[row.prompt_tokens :]),
        reward=row.reward,
        prompt_text=row.prompt,
        response_text=row.response,
        info={"model_version": row.version},
    )


if __name__ == "__main__":
    frame.main("Trinity-RFT", "trinity-rft", {"ingest": ingest, "draw": draw, "claims": claims})
