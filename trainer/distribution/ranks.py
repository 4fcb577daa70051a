"""The processes that train one policy together; or this process alone.

The first rank is the trainer. It starts the others (`followers.py`), or torchrun starts all of them:

    torchrun --nproc-per-node 2 -m trinity_db train CONFIG

The other ranks repeat the calls that the first one makes on its learner (`lead_follow.py`). All communication
between ranks uses the methods of `Ranks`. If a rank is lost, the others get an error in their next collective
call and exit. The process that started a rank, torchrun or the first rank, kills it if it hangs. Every rank
must be able to read the folders of models and checkpoints.
"""

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from itertools import accumulate
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.rendezvous import rendezvous

from trinity_db.errors import ConfigError, TrinityError
from trinity_db.trainer.distribution.followers import Followers

T = TypeVar("T")

STEP_TIMEOUT = timedelta(minutes=10)  # for ranks to wait for each other within a step; they differ by seconds
# For the other ranks to wait for the first one's next call, while it waits for rollouts, the database or a
# disk. A lost first rank is detected immediately.
CALL_TIMEOUT = timedelta(days=365)
# Set by torchrun for each rank, in addition to WORLD_SIZE, which other launchers set too.
BY_TORCHRUN = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
BUCKET = 1 << 24  # elements of gradients in one message, 64 MiB: large enough to make latency irrelevant


class Ranks:
    """A single process. Each collective call returns the process's own value."""

    rank = 0
    size = 1
    device: str | None = None
    """Device of this rank; None: the first GPU if there is one, else the CPU."""

    @property
    def mesh(self) -> DeviceMesh:
        """One-dimensional mesh of all ranks, for FSDP."""
        raise AssertionError("one process shards nothing")

    def check(self) -> None:
        """Check, between collective calls, that no rank started by this process has ended.

        Raises:
            TrinityError: if one has.
        """

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
        """Replace each tensor with its sum over all ranks. All tensors have the same dtype."""


ALONE = Ranks()


class Together(Ranks):
    """One of several ranks.

    Python values are exchanged with gloo on the CPU. Tensors use gloo on the CPU, and NCCL on a GPU.

    Args:
        local_rank: Number of this rank on its machine.
        followers: Ranks started by this one; None: torchrun has started all.
    """

    def __init__(
        self, store: Any, rank: int, size: int, local_rank: int, followers: Followers | None = None
    ) -> None:
        device = _own_device(local_rank)
        self.rank, self.size, self.device = rank, size, str(device)
        self._followers = followers
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=STEP_TIMEOUT)
        self._call_group = dist.new_group(backend="gloo", timeout=CALL_TIMEOUT)
        self._mesh = init_device_mesh(device.type, (size,))

    def leave(self) -> None:
        """Destroy the process groups, and wait until gloo's threads have ended.

        A thread that still references the last exchange would need the interpreter to free it. If the
        interpreter is shutting down by then, the process aborts. gloo's threads end with their group, and the
        group ends with its last reference.
        """
        del self._call_group, self._mesh
        dist.destroy_process_group()

    @property
    def mesh(self) -> DeviceMesh:
        return self._mesh

    def check(self) -> None:
        if self._followers is not None:
            self._followers.check()

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
            together = self.sum(torch.cat([tensor.flatten() for tensor in bucket]))
            for tensor, total in zip(
                bucket, torch.split(together, [tensor.numel() for tensor in bucket]), strict=True
            ):
                tensor.copy_(total.view_as(tensor))


def join_ranks(count: int | None = None) -> AbstractContextManager[Ranks]:
    """Join the ranks that torchrun started; without torchrun start them. They end with the context.

    An error ends all ranks, and one of them reports it.

    Args:
        count: Number of ranks, if torchrun does not set it. None: one per GPU visible to this process, and
            one without a GPU.

    Raises:
        ConfigError: if there are more ranks here than GPUs, or the environment variables are incomplete.
        TrinityError: if another rank was lost.
    """
    if "WORLD_SIZE" not in os.environ:
        size = count or max(1, torch.cuda.device_count())
        _check_gpus(size, "lower trainer.ranks")
        return _alone() if size == 1 else _started(size)
    if int(os.environ["WORLD_SIZE"]) == 1:
        return _alone()
    if missing := [name for name in BY_TORCHRUN if name not in os.environ]:
        raise ConfigError(
            f"The environment has WORLD_SIZE, but not {', '.join(missing)}: start the ranks with torchrun, "
            "or remove WORLD_SIZE."
        )
    return _joined()


@contextmanager
def _alone() -> Iterator[Ranks]:
    yield ALONE


@contextmanager
def _joined() -> Iterator[Ranks]:
    """Join with the rank in the environment, set by torchrun or the first rank."""
    _check_gpus(int(os.environ["LOCAL_WORLD_SIZE"]), "lower --nproc-per-node")
    store, rank, size = next(rendezvous("env://", timeout=STEP_TIMEOUT))
    with _failing_together(store, rank):
        ranks = Together(store, rank, size, int(os.environ["LOCAL_RANK"]))
        yield ranks
    ranks.leave()


@contextmanager
def _started(size: int) -> Iterator[Ranks]:
    """Become the first of `size` ranks on this machine, and start the others."""
    # Port 0: the system chooses a free one. The store keeps it, so no other process takes it meanwhile.
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", 0, size, True, STEP_TIMEOUT, wait_for_workers=False
    )
    with Followers(size, store.port) as followers:
        with _failing_together(store, 0, followers):
            ranks = Together(store, 0, size, 0, followers)
            yield ranks
        ranks.leave()


@contextmanager
def _failing_together(store: Any, rank: int, followers: Followers | None = None) -> Iterator[None]:
    """Let one rank report an error that ends all."""
    try:
        yield
    except BaseException as error:
        is_first = _is_first_to_fail(store)
        is_lost = _is_loss(error)
        if not is_first and (is_lost or isinstance(error, TrinityError)):
            sys.exit(1)  # the first rank that failed reports its error, which caused this one
        if is_lost:
            if followers is not None:
                followers.find_lost()
            raise TrinityError(
                f"Rank {rank} lost another rank of this training; see the messages of that rank. "
                "Run the same command to resume from the latest checkpoint."
            ) from error
        raise


def end_process(ranks: Ranks) -> None:
    """End one of several finished ranks immediately, without Python's shutdown. Return if this process is
    alone.

    Sharded weights keep process groups and gloo's threads alive until the interpreter shuts down. A thread
    that needs the interpreter then aborts the process, and a finished run would count as failed.
    """
    if ranks.size > 1:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def split_by_cost(costs: Sequence[int], ranks: int) -> list[list[int]]:
    """Return the indices of each rank's items. The costliest are assigned first, to the rank with the lowest
    sum."""
    items_of: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for item in sorted(range(len(costs)), key=lambda item: -costs[item]):
        least = loads.index(min(loads))
        items_of[least].append(item)
        loads[least] += costs[item]
    return [sorted(items) for items in items_of]


def _own_device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def _check_gpus(ranks: int, remedy: str) -> None:
    """Raise ConfigError if this machine has GPUs, but fewer than ranks."""
    there_are = torch.cuda.device_count()
    if 0 < there_are < ranks:
        raise ConfigError(f"{ranks} ranks need a GPU each, but this machine has {there_are}: {remedy}.")


def _buckets(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Group consecutive tensors that start within the same BUCKET of elements."""
    tensors = list(tensors)
    ends = accumulate(tensor.numel() for tensor in tensors)
    buckets: dict[int, list[Tensor]] = {}
    for tensor, end in zip(tensors, ends, strict=True):
        buckets.setdefault((end - tensor.numel()) // BUCKET, []).append(tensor)
    return list(buckets.values())


def _is_first_to_fail(store: Any) -> bool:
    try:
        return bool(store.add("failures", 1) == 1)
    except RuntimeError:  # torchrun is gone, and the store with it
        return True


def _is_loss(error: BaseException) -> bool:
    """Whether torch reports that another rank does not answer. gloo raises a plain RuntimeError."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
