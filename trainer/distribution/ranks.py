"""The processes that train one policy together, started by torchrun; or this process alone.

    torchrun --nproc-per-node 2 -m trinity_db train CONFIG

The first rank is the trainer. The other ranks repeat the calls that it makes on its learner
(`lead_follow.py`). All exchange between ranks goes through the methods of `Ranks`. If a rank is lost, the
others get an error at their next exchange and end; torchrun ends a rank that hangs. Every rank must be able
to read the folders of models and checkpoints.
"""

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import accumulate
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.rendezvous import rendezvous

from trinity_db.errors import ConfigError, TrinityError

T = TypeVar("T")

STEP_TIMEOUT = timedelta(minutes=10)  # for one rank to wait for another within a step; they differ by seconds
# For the other ranks to wait for the first one's next call, while it waits for rollouts, the database or a
# disk. They notice at once if the first rank is lost.
CALL_TIMEOUT = timedelta(days=365)
BUCKET = 1 << 24  # elements of gradients in one message, 64 MiB: then the latency of messages does not matter


class Ranks:
    """This process alone. Each exchange returns what the process itself gives."""

    rank = 0
    size = 1
    device: str | None = None
    """The device that this rank computes on; None: the first GPU if there is one, else the CPU."""

    @property
    def mesh(self) -> DeviceMesh:
        """All ranks in one dimension, as FSDP takes them."""
        raise AssertionError("one process shards nothing")

    def broadcast(self, value: Any) -> Any:
        """Return the first rank's value on every rank. The values of the other ranks are ignored."""
        return value

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks on every rank, ordered by rank."""
        return [value]

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks, element by element. The argument may be changed."""
        return values

    def sum_all(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks. All tensors have the same dtype."""


ALONE = Ranks()


class Torchrun(Ranks):
    """The ranks that torchrun started.

    Python values go through gloo on the CPU. Tensors go through gloo on the CPU, and through NCCL on a GPU.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        device = _own_device()
        self.rank, self.size, self.device = rank, size, str(device)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=STEP_TIMEOUT)
        self._call_group = dist.new_group(backend="gloo", timeout=CALL_TIMEOUT)
        self._mesh = init_device_mesh(device.type, (size,))

    def leave(self) -> None:
        """End the process groups, and wait until gloo's threads have ended.

        A thread that still holds something of the last exchange would ask for the interpreter to free it. The
        interpreter may be shutting down by then, and the process would abort. gloo's threads end with their
        group, and the group ends with its last reference.
        """
        del self._call_group, self._mesh
        dist.destroy_process_group()

    @property
    def mesh(self) -> DeviceMesh:
        return self._mesh

    def broadcast(self, value: Any) -> Any:
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._call_group, device=torch.device("cpu"))
        return box[0]

    def gather(self, value: T) -> list[T]:
        box: list[Any] = [None] * self.size
        dist.all_gather_object(box, value)
        return box

    def sum(self, values: Tensor) -> Tensor:
        dist.all_reduce(values)
        return values

    def sum_all(self, tensors: Iterable[Tensor]) -> None:
        for bucket in _buckets(tensors):
            together = self.sum(torch.cat([one.flatten() for one in bucket]))
            for one, total in zip(
                bucket, torch.split(together, [one.numel() for one in bucket]), strict=True
            ):
                one.copy_(total.view_as(one))


@contextmanager
def join_ranks() -> Iterator[Ranks]:
    """Join the ranks that torchrun started, and leave them at the end. Without torchrun, train alone.

    An error ends all ranks, and one of them reports it.

    Raises:
        ConfigError: torchrun started more processes here than there are GPUs.
        TrinityError: another rank was lost.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE
        return
    store, rank, size = next(rendezvous("env://", timeout=STEP_TIMEOUT))
    try:
        ranks = Torchrun(store, rank, size)
        yield ranks
    except BaseException as error:
        is_first = _is_first_to_fail(store)
        is_lost = _is_loss(error)
        if not is_first and (is_lost or isinstance(error, TrinityError)):
            sys.exit(1)  # the first rank that failed reports the error, or the cause of this one
        if is_lost:
            raise TrinityError(
                f"Rank {rank} lost another rank of this training; see the messages of that rank. "
                "The same command goes on from the latest checkpoint."
            ) from error
        raise
    ranks.leave()


def end_process(ranks: Ranks) -> None:
    """End a finished process of torchrun at once, without Python's shutdown. Return if this process is alone.

    Sharded weights keep process groups and gloo's threads alive until the interpreter shuts down. A thread
    that asks for the interpreter then aborts the process, and torchrun would report a finished run as failed.
    """
    if ranks.size > 1:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def split_by_cost(costs: Sequence[int], ranks: int) -> list[list[int]]:
    """Return the indices of each rank's items. The costliest go first, to the rank with the least so far."""
    items_of: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for item in sorted(range(len(costs)), key=lambda item: -costs[item]):
        least = loads.index(min(loads))
        items_of[least].append(item)
        loads[least] += costs[item]
    return [sorted(items) for items in items_of]


def _own_device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    here, there_are = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
    if here > there_are:
        raise ConfigError(
            f"torchrun started {here} processes, and this machine has {there_are} GPUs: lower "
            "--nproc-per-node."
        )
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def _buckets(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Group neighbouring tensors: those that begin within the same BUCKET of elements."""
    tensors = list(tensors)
    ends = accumulate(one.numel() for one in tensors)
    buckets: dict[int, list[Tensor]] = {}
    for one, end in zip(tensors, ends, strict=True):
        buckets.setdefault((end - one.numel()) // BUCKET, []).append(one)
    return list(buckets.values())


def _is_first_to_fail(store: Any) -> bool:
    try:
        return bool(store.add("failures", 1) == 1)
    except RuntimeError:  # torchrun is gone, and the store with it
        return True


def _is_loss(error: BaseException) -> bool:
    """Whether torch reports that another rank does not answer. gloo raises a plain RuntimeError."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
