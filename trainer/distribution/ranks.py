"""The processes that train one policy together, started by torchrun; or this process alone.

    torchrun --nproc-per-node 2 -m trinity_db train CONFIG

The first rank is the trainer, the others do what it does with the learner (`lead_follow.py`); what a step is
divided into, and put together from, goes through the methods here. Where a rank is lost, the others hear
of it at their next call and end; torchrun ends whoever does not. Models and checkpoints lie where every
rank can read them.
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

STEP_LIMIT = timedelta(minutes=10)  # that one rank may wait for another within a step; they differ by seconds
# That the others wait for the first: for rollouts, a database, a disk. That one was lost they notice at once.
PATIENCE = timedelta(days=365)
BUCKET = 1 << 24  # gradients in one message, 64 MiB: enough that a message's delay does not matter


class Ranks:
    """This process alone: what it has is all there is."""

    rank = 0
    size = 1
    device: str | None = None
    """Where this rank computes; None: as it likes."""

    @property
    def mesh(self) -> DeviceMesh:
        """The ranks in a row, for what is divided among them."""
        raise AssertionError("there is nobody to divide anything with")

    def broadcast(self, value: Any) -> Any:
        """What the first rank says; what the others say is not heard."""
        return value

    def gather(self, value: T) -> list[T]:
        """What each rank says, in their order."""
        return [value]

    def sum(self, values: Tensor) -> Tensor:
        """Element by element, of all ranks. The argument may be changed."""
        return values

    def sum_all(self, tensors: Iterable[Tensor]) -> None:
        """The same of several tensors of one dtype, in place."""


ALONE = Ranks()


class Torchrun(Ranks):
    """The ranks that torchrun started.

    Values go through gloo and the CPU; tensors through the CPU or NCCL, where they are.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        device = _own_device()
        self.rank, self.size, self.device = rank, size, str(device)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=STEP_LIMIT)
        self._calls = dist.new_group(backend="gloo", timeout=PATIENCE)
        self._mesh = init_device_mesh(device.type, (size,))

    def leave(self) -> None:
        """There will be no more calls. Returns when no thread of ours has anything left of the last one.

        One that had would want the interpreter for it, which may be ending by then, and abort the process.
        gloo's threads end with their group, and that with its last reference.
        """
        del self._calls, self._mesh
        dist.destroy_process_group()

    @property
    def mesh(self) -> DeviceMesh:
        return self._mesh

    def broadcast(self, value: Any) -> Any:
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._calls, device=torch.device("cpu"))
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
def joined() -> Iterator[Ranks]:
    """The ranks that torchrun started, this one among them, as long as they train; else this process alone.

    An error ends all of them, and one of them says it.

    Raises:
        ConfigError: torchrun started more processes here than there are GPUs.
        TrinityError: another rank was lost.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE
        return
    store, rank, size = next(rendezvous("env://", timeout=STEP_LIMIT))
    try:
        ranks = Torchrun(store, rank, size)
        yield ranks
    except BaseException as error:
        is_first = _is_first_to_fail(store)
        is_lost = _is_loss(error)
        if not is_first and (is_lost or isinstance(error, TrinityError)):
            sys.exit(1)  # the first has said it, or what it is a consequence of
        if is_lost:
            raise TrinityError(
                f"Rank {rank} lost another rank of this training; see what that one said. "
                "The same command goes on from the latest checkpoint."
            ) from error
        raise
    ranks.leave()


def end_process(ranks: Ranks) -> None:
    """End a process that torchrun started, which has done all it had to, as it stands; return in any other.

    Sharded weights keep groups alive until the interpreter is torn down, and with them gloo's threads. One
    that wants the interpreter by then aborts the process, and torchrun says that a complete run failed.
    """
    if ranks.size > 1:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def dealt(costs: Sequence[int], ranks: int) -> list[list[int]]:
    """Items dealt out to ranks, by index: the dearest first, each to the rank that has the least so far."""
    hands: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for item in sorted(range(len(costs)), key=lambda item: -costs[item]):
        least = loads.index(min(loads))
        hands[least].append(item)
        loads[least] += costs[item]
    return [sorted(hand) for hand in hands]


def _own_device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    here, there_are = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
    if here > there_are:
        raise ConfigError(
            f"torchrun started {here} processes, and there are {there_are} GPUs: lower --nproc-per-node."
        )
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def _buckets(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Neighbours together, so that each bucket begins within another BUCKET of elements."""
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
    """Whether this is how torch says that a rank does not answer; gloo's errors have no class of theirs."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
