"""Reverb: an in-memory server in its own process, with writers and clients.

A row is an item of one step. `Client.writer` accepts arrays of any length; the newer `trajectory_writer`
requires one length and is slower here. Texts are bytes.
"""

import os
import socket
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

import numpy as np

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import reverb

from benchmarks import data
from benchmarks.peers import frame
from benchmarks.processes import at_once, elapsed

TABLE = "rows"
READY_SECONDS = 120


def ingest(specification: frame.Specification) -> frame.Repetitions:
    repetitions = []
    for _ in range(specification.repetitions):
        with server("uniform", specification.rows) as address:
            parts = [(address, *part, specification.rows_a_commit) for part in frame.each_part(specification)]
            outcomes = at_once(prepare_writer, parts)
        repetitions.append({"seconds": elapsed(outcomes), "rows": specification.rows})
    return repetitions


def prepare_writer(part: tuple[str, int, int, int]) -> Any:
    address, rows, first_group, rows_a_commit = part
    commits = frame.chunks(data.rows(rows, first_group), rows_a_commit)
    client = reverb.Client(address)
    client.server_info()

    def write() -> None:
        with client.writer(max_sequence_length=1, chunk_length=1) as writer:
            for commit in commits:
                append(writer, commit)

    return write


def draw(specification: frame.Specification) -> frame.Repetitions:
    if specification.max_staleness is not None:
        raise frame.Unsupported("no policy versions")
    with server(specification.order, specification.rows) as address:
        client = fill(address, specification.rows)

        def once() -> list[Any]:
            return [steps[0].data for steps in client.sample(TABLE, specification.size)]

        return [frame.timed(once, specification.draws) for _ in range(specification.repetitions)]


def claims(specification: frame.Specification) -> frame.Repetitions:
    repetitions = []
    for _ in range(specification.repetitions):
        with server("fifo", specification.rows, max_times_sampled=1) as address:
            fill(address, specification.rows)
            quota = specification.rows // specification.consumers // specification.size
            outcomes = at_once(
                prepare_consumer, [(address, specification.size, quota)] * specification.consumers
            )
        keys = [key for outcome in outcomes for key in outcome.value]
        repetitions.append(frame.claimed(elapsed(outcomes), specification.rows, keys))
    return repetitions


def prepare_consumer(part: tuple[str, int, int]) -> Any:
    address, size, quota = part
    client = reverb.Client(address)
    client.server_info()

    def consume() -> list[tuple[int, int]]:
        keys = []
        for _ in range(quota):
            keys += [tuple(steps[0].data[0].tolist()) for steps in client.sample(TABLE, size)]
        return keys

    return consume


@contextmanager
def server(order: str, rows: int, max_times_sampled: int = 0) -> Any:
    """Run a server with one table. Yields its address."""
    with socket.socket() as unused:
        unused.bind(("localhost", 0))
        port = unused.getsockname()[1]
    process = get_context("spawn").Process(
        target=serve, args=(port, order, rows, max_times_sampled), daemon=True
    )
    process.start()
    address = f"localhost:{port}"
    reverb.Client(address).server_info(timeout=READY_SECONDS)
    try:
        yield address
    finally:
        process.kill()
        process.join()


def serve(port: int, order: str, rows: int, max_times_sampled: int) -> None:
    selectors = {
        "fifo": reverb.selectors.Fifo,
        "newest": reverb.selectors.Lifo,
        "uniform": reverb.selectors.Uniform,
        "prioritized": lambda: reverb.selectors.Prioritized(1.0),
    }
    table = reverb.Table(
        TABLE,
        sampler=selectors[order](),
        remover=reverb.selectors.Fifo(),
        max_size=rows,
        max_times_sampled=max_times_sampled,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )
    reverb.Server([table], port=port).wait()


def fill(address: str, rows: int) -> reverb.Client:
    client = reverb.Client(address)
    with client.writer(max_sequence_length=1, chunk_length=1) as writer:
        for commit in frame.chunks(data.rows(rows), 512):
            append(writer, commit)
    return client


def append(writer: Any, rows: list[data.Experience]) -> None:
    """Write rows and wait until the server has stored them."""
    for row in rows:
        writer.append(
            [
                np.array(row.key),
                row.token_ids,
                row.action_mask,
                row.logprobs,
                np.frombuffer(row.prompt.encode(), np.uint8),
                np.frombuffer(row.response.encode(), np.uint8),
                np.float32(row.reward),
                np.int32(row.version),
            ]
        )
        writer.create_item(TABLE, num_timesteps=1, priority=1.0 + row.member)
    writer.flush()


if __name__ == "__main__":
    frame.main("Reverb", "dm-reverb", {"ingest": ingest, "draw": draw, "claims": claims})
