"""The processes that train one policy together; or this process alone.

The first rank is the trainer. It starts the others (`followers.py`), or torchrun starts all of them:

    torchrun --nproc-per-node 2 -m trinity_db train CONFIG

The other ranks repeat the calls that the first one makes on its learner (`lead_follow.py`). All exchange
between ranks goes through the methods of `Ranks`. If a rank is lost, the others get an error at their next
exchange and end. The process that started a rank, torchrun or the first rank, ends it if it hangs. Every rank
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

STEP_TIMEOUT = timedelta(minutes=10)  # for one rank to wait for another within a step; they differ by seconds
# For the other ranks to wait for the first one's next call, while it waits for rollouts, the database or a
# disk. They notice at once if the first rank is lost.
CALL_TIMEOUT = timedelta(days=365)
# Set by torchrun for each rank, beside WORLD_SIZE, which other launchers set too.
BY_TORCHRUN = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
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

    def check(self) -> None:
        """Notice between two exchanges that a rank which this process started has ended.

        Raises:
            TrinityError: it has.
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
        """Replace each tensor by its sum over all ranks. All tensors have the same dtype."""


ALONE = Ranks()


class Together(Ranks):
    """One of several ranks.

    Python values go through gloo on the CPU. Tensors go through gloo on the CPU, and through NCCL on a GPU.

    Args:
        place: the number of this rank among those of its machine.
        followers: the ranks that this one has started; None: torchrun has started all.
    """

    def __init__(
        self, store: Any, rank: int, size: int, place: int, followers: Followers | None = None
    ) -> None:
        device = _own_device(place)
        self.rank, self.size, self.device = rank, size, str(device)
        self._followers = followers
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
            together = self.sum(torch.cat([one.flatten() for one in bucket]))
            for one, total in zip(
                bucket, torch.split(together, [one.numel() for one in bucket]), strict=True
            ):
                one.copy_(total.view_as(one))


def join_ranks(count: int | None = None) -> AbstractContextManager[Ranks]:
    """Join the ranks that torchrun started; without torchrun start them. They are left at the end.

    An error ends all ranks, and one of them reports it.

    Args:
        count: how many ranks there are to be, if torchrun does not say it. None: one for each GPU that this
            process sees, and one without a GPU.

    Raises:
        ConfigError: there are more ranks here than GPUs, or the environment names ranks in part only.
        TrinityError: another rank was lost.
    """
    if "WORLD_SIZE" not in os.environ:
        size = count or max(1, torch.cuda.device_count())
        _check_gpus(size, "lower trainer.ranks")
        return _alone() if size == 1 else _started(size)
    if int(os.environ["WORLD_SIZE"]) == 1:
        return _alone()
    if missing := [name for name in BY_TORCHRUN if name not in os.environ]:
        raise ConfigError(
            f"The environment has WORLD_SIZE, but not {', '.join(missing)}: start the ranks by torchrun, or "
            "remove WORLD_SIZE."
        )
    return _joined()


@contextmanager
def _alone() -> Iterator[Ranks]:
    yield ALONE


@contextmanager
def _joined() -> Iterator[Ranks]:
    """Be the rank that the environment names, as torchrun or the first rank has set it."""
    _check_gpus(int(os.environ["LOCAL_WORLD_SIZE"]), "lower --nproc-per-node")
    store, rank, size = next(rendezvous("env://", timeout=STEP_TIMEOUT))
    with _failing_together(store, rank):
        ranks = Together(store, rank, size, int(os.environ["LOCAL_RANK"]))
        yield ranks
    ranks.leave()


@contextmanager
def _started(size: int) -> Iterator[Ranks]:
    """Be the first of so many ranks of this machine, and start the others."""
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
            sys.exit(1)  # the first rank that failed reports the error, or the cause of this one
        if is_lost:
            if followers is not None:
                followers.find_lost()
            raise TrinityError(
                f"Rank {rank} lost another rank of this training; see the messages of that rank. "
                "The same command goes on from the latest checkpoint."
            ) from error
        raise


def end_process(ranks: Ranks) -> None:
    """End one of several finished ranks at once, without Python's shutdown. Return if this process is alone.

    Sharded weights keep process groups and gloo's threads alive until the interpreter shuts down. A thread
    that asks for the interpreter then aborts the process, and a finished run would count as failed.
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


def _own_device(place: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", place)
    torch.cuda.set_device(device)
    return device


def _check_gpus(ranks: int, remedy: str) -> None:
    """Raise ConfigError if this machine has GPUs, but fewer than ranks."""
    there_are = torch.cuda.device_count()
    if 0 < there_are < ranks:
        raise ConfigError(f"{ranks} ranks need a GPU each, and this machine has {there_are}: {remedy}.")


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
