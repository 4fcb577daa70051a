"""Trinity-RFT's SQL storage on the same PostgreSQL, by its own writer and reader, without Ray actors.

Its actors would add the pickling of every row; `wrap_in_ray=False` is its own switch. Its reader of
experiences takes the newest that were not consumed, `SFT` data is read in order; it has no random order.
"""

import asyncio
import os
import sys
import time
from types import ModuleType
from typing import Any

os.environ["TRINITY_LOG_LEVEL"] = "WARNING"  # one line a write otherwise
datasets = ModuleType("datasets")  # named in a signature only, and large
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

NOTE = "durable, on the same PostgreSQL server; without Ray actors; MB/s of raw bytes"
SCHEMAS = {"newest": "experience", "fifo": "sft"}


def ingest(asked: frame.Specification) -> frame.Repetitions:
    create(asked.url, "rows")
    found = []
    for _ in range(asked.repetitions):
        parts = [(asked.url, *part, asked.rows_a_commit) for part in frame.each_part(asked)]
        found.append(frame.written(elapsed(at_once(prepare_writer, parts)), frame.all_parts(asked)))
    return found


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


def draw(asked: frame.Specification) -> frame.Repetitions:
    if asked.order not in SCHEMAS:
        raise frame.Unsupported("its SQL reader has two orders: oldest first and newest first")
    if asked.max_staleness is not None and asked.order == "fifo":
        raise frame.Unsupported("its reader in order takes no limit of staleness")
    storage = config(asked.url, "rows", SCHEMAS[asked.order])
    loop = asyncio.new_event_loop()
    fill(loop, storage, asked.rows)
    reader = SQLReader(storage)
    newest = asked.rows // data.GROUP_SIZE // data.GROUPS_PER_VERSION
    limit = {} if asked.max_staleness is None else {"min_model_version": newest - asked.max_staleness}

    def once() -> list[Any]:
        rows = loop.run_until_complete(reader.read(asked.size, **limit))
        return [(row.tokens.numpy(), row.logprobs.numpy(), row.action_mask.numpy()) for row in rows]

    return [frame.timed(once, asked.draws) for _ in range(asked.repetitions)]


def claims(asked: frame.Specification) -> frame.Repetitions:
    found = []
    for repetition in range(asked.repetitions):
        name = f"rows{repetition}"
        fill(asyncio.new_event_loop(), config(asked.url, name), asked.rows)
        quota = asked.rows // asked.consumers // asked.size
        outcomes = at_once(prepare_consumer, [(asked.url, name, asked.size, quota)] * asked.consumers)
        keys = [key for outcome in outcomes for key in outcome.value]
        found.append(frame.claimed(elapsed(outcomes), asked.rows, keys))
    return found


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
            except StopAsyncIteration:  # it waited in vain: others took what was left, or it was lost
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
    """Make the tables, so that writers do not do it at once."""
    asyncio.run(SQLWriter(config(url, name)).acquire())


def fill(loop: asyncio.AbstractEventLoop, storage: StorageConfig, rows: int) -> None:
    writer = SQLWriter(storage)
    for commit in frame.chunks(data.rows(rows), 512):
        loop.run_until_complete(writer.write([experience(row) for row in commit]))


def experience(row: data.Experience) -> Experience:
    """A row as its explorers make one; the mask covers the response."""
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
    frame.main("Trinity-RFT", "trinity-rft", {"ingest": ingest, "draw": draw, "claims": claims}, NOTE)
