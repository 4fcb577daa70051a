"""TransferQueue: a controller and two storage units as Ray actors on this machine, with clients.

Arrays of different lengths are jagged tensors; texts are not converted. The sequential sampler returns each
row once, in order.
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

FIELDS = ["key", "token_ids", "action_mask", "logprobs", "prompt", "response", "reward", "version"]
TASK = "train"
OBJECT_STORE_BYTES = 1 << 30  # not used by its simple storage
EMPTY_SECONDS = 0.01


def ingest(specification: frame.Specification) -> frame.Repetitions:
    repetitions = []
    with cluster() as address:
        for repetition in range(specification.repetitions):
            parts = [
                (address, f"{repetition}", *part, specification.rows_a_commit)
                for part in frame.each_part(specification)
            ]
            repetitions.append(
                {"seconds": elapsed(at_once(prepare_writer, parts)), "rows": specification.rows}
            )
            transfer_queue.get_client().clear_partition(f"{repetition}")
    return repetitions


def prepare_writer(part: tuple[str, str, int, int, int]) -> Any:
    address, partition, rows, first_group, rows_a_commit = part
    commits = frame.chunks(data.rows(rows, first_group), rows_a_commit)
    connect(address)

    def write() -> None:
        for commit in commits:
            put(partition, commit)

    return write


def draw(specification: frame.Specification) -> frame.Repetitions:
    if specification.order != "fifo":
        raise frame.Unsupported("its samplers only go through rows in order")
    if specification.max_staleness is not None:
        raise frame.Unsupported("no policy versions")
    with cluster():
        client = transfer_queue.get_client()
        fill("rows", specification.rows)

        def once() -> list[Any]:
            drawn = take(client, "rows", specification.size)
            return [[row.numpy() for row in drawn[name].unbind()] for name in FIELDS[1:4]]

        repetitions = []
        for _ in range(specification.repetitions):
            repetitions.append(
                frame.timed(once, min(specification.draws, specification.rows // specification.size - 1))
            )
            client.reset_consumption("rows", TASK)
        return repetitions


def claims(specification: frame.Specification) -> frame.Repetitions:
    repetitions = []
    with cluster() as address:
        for repetition in range(specification.repetitions):
            partition = f"{repetition}"
            fill(partition, specification.rows)
            quota = specification.rows // specification.consumers // specification.size
            outcomes = at_once(
                prepare_consumer, [(address, partition, specification.size, quota)] * specification.consumers
            )
            keys = [key for outcome in outcomes for key in outcome.value]
            repetitions.append(frame.claimed(elapsed(outcomes), specification.rows, keys))
            transfer_queue.get_client().clear_partition(partition)
    return repetitions


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
    """Return rows that this task has not taken yet; wait until there are enough."""
    while True:
        meta = client.get_meta(FIELDS, size, partition, task_name=TASK)
        if meta.size:
            return client.get_data(meta)
        time.sleep(EMPTY_SECONDS)


def put(partition: str, rows: list[data.Experience]) -> None:
    """Write rows and wait until they are stored."""
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
    """Start a Ray cluster with a queue and connect this process. Yields its address."""
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
    frame.main("TransferQueue", "TransferQueue", operations)
