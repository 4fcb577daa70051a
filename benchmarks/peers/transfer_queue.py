"""TransferQueue: a controller and two storage units as Ray actors on this machine, and clients of theirs.

Rows have arrays of their own length, as jagged tensors; texts travel as they are. Its sequential sampler
hands each row out once, in order.
"""

import os
import time
from contextlib import contextmanager
from typing import Any

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["TQ_LOGGING_LEVEL"] = "WARNING"

import ray
import torch
import transfer_queue
from tensordict import NonTensorStack, TensorDict

from benchmarks import data
from benchmarks.peers import frame
from benchmarks.processes import at_once, elapsed

NOTE = "not durable (in memory); on a Ray cluster of this machine"
FIELDS = ["key", "token_ids", "action_mask", "logprobs", "prompt", "response", "reward", "version"]
TASK = "train"
OBJECT_STORE_BYTES = 1 << 30  # its simple storage does not use it
EMPTY_SECONDS = 0.01


def ingest(asked: frame.Specification) -> frame.Repetitions:
    found = []
    with cluster() as address:
        for repetition in range(asked.repetitions):
            parts = [
                (address, f"{repetition}", *part, asked.rows_a_commit) for part in frame.each_part(asked)
            ]
            found.append(frame.written(elapsed(at_once(prepare_writer, parts)), frame.all_parts(asked)))
            transfer_queue.get_client().clear_partition(f"{repetition}")
    return found


def prepare_writer(part: tuple[str, str, int, int, int]) -> Any:
    address, partition, rows, first_group, rows_a_commit = part
    commits = frame.chunks(data.rows(rows, first_group), rows_a_commit)
    connect(address)

    def write() -> None:
        for commit in commits:
            put(partition, commit)

    return write


def draw(asked: frame.Specification) -> frame.Repetitions:
    if asked.order != "fifo":
        raise frame.Unsupported("its samplers go through the rows in order")
    if asked.max_staleness is not None:
        raise frame.Unsupported("it knows no versions")
    with cluster():
        client = transfer_queue.get_client()
        fill("rows", asked.rows)

        def once() -> list[Any]:
            drawn = take(client, "rows", asked.size)
            return [[row.numpy() for row in drawn[name].unbind()] for name in FIELDS[1:4]]

        found = []
        for _ in range(asked.repetitions):
            found.append(frame.timed(once, min(asked.draws, asked.rows // asked.size - 1)))
            client.reset_consumption("rows", TASK)
        return found


def claims(asked: frame.Specification) -> frame.Repetitions:
    found = []
    with cluster() as address:
        for repetition in range(asked.repetitions):
            partition = f"{repetition}"
            fill(partition, asked.rows)
            quota = asked.rows // asked.consumers // asked.size
            outcomes = at_once(prepare_consumer, [(address, partition, asked.size, quota)] * asked.consumers)
            keys = [key for outcome in outcomes for key in outcome.value]
            found.append(frame.claimed(elapsed(outcomes), asked.rows, keys))
            transfer_queue.get_client().clear_partition(partition)
    return found


def prepare_consumer(part: tuple[str, str, int, int]) -> Any:
    address, partition, size, quota = part
    connect(address)
    client = transfer_queue.get_client()

    def consume() -> list[tuple[int, ...]]:
        keys = []
        for _ in range(quota):
            drawn = take(client, partition, size)
            keys += [tuple(row.tolist()) for row in drawn["key"].unbind()]
        return keys

    return consume


def take(client: Any, partition: str, size: int) -> TensorDict:
    """Rows that this task has not taken yet; waits until there are so many."""
    while True:
        meta = client.get_meta(FIELDS, size, partition, task_name=TASK)
        if meta.size:
            return client.get_data(meta)
        time.sleep(EMPTY_SECONDS)


def put(partition: str, rows: list[data.Experience]) -> None:
    """Write rows, and wait until they are stored."""
    fields = TensorDict(
        {
            "key": torch.tensor([row.key for row in rows]),
            "token_ids": jagged([row.token_ids for row in rows]),
            "action_mask": jagged([row.action_mask for row in rows]),
            "logprobs": jagged([row.logprobs for row in rows]),
            "prompt": NonTensorStack(*[row.prompt for row in rows]),
            "response": NonTensorStack(*[row.response for row in rows]),
            "reward": torch.tensor([row.reward for row in rows]),
            "version": torch.tensor([row.version for row in rows]),
        },
        batch_size=[len(rows)],
    )
    keys = [f"{row.group}-{row.member}" for row in rows]
    transfer_queue.kv_batch_put(keys=keys, partition_id=partition, fields=fields)


def jagged(arrays: list[Any]) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.tensor(array) for array in arrays], layout=torch.jagged)


def fill(partition: str, rows: int) -> None:
    for commit in frame.chunks(data.rows(rows), 512):
        put(partition, commit)


@contextmanager
def cluster() -> Any:
    """The address of a new Ray cluster with a queue; this process is its first client."""
    context = ray.init(
        num_cpus=8, include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES, log_to_driver=False
    )
    transfer_queue.init()
    try:
        yield context.address_info["address"]
    finally:
        transfer_queue.close()
        ray.shutdown()


def connect(address: str) -> None:
    ray.init(address=address, log_to_driver=False)
    transfer_queue.init()


if __name__ == "__main__":
    operations = {"ingest": ingest, "draw": draw, "claims": claims}
    frame.main("TransferQueue", "TransferQueue", operations, NOTE)
