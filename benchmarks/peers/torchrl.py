"""torchrl's replay buffer over memory-mapped files: rows of one fixed length, texts as bytes, in one process.

Nothing is flushed: written rows survive the end of the process, but not that of the machine.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torchrl.data import LazyMemmapStorage, TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import (
    RandomSampler,
    SamplerWithoutReplacement,
    StalenessAwareSampler,
)

from benchmarks import data
from benchmarks.peers import frame

NOTE = "not durable (memory-mapped, never flushed); in one process; rows padded to one length"
TOKENS = data.PROMPT_TOKENS[1] + data.RESPONSE_TOKENS[1]
ARRAYS = ("token_ids", "action_mask", "logprobs", "length")


def ingest(asked: frame.Specification) -> frame.Repetitions:
    if asked.writers > 1:
        raise frame.Unsupported("one process writes a memory-mapped buffer")
    rows = data.rows(asked.rows)
    found = []
    for repetition in range(asked.repetitions):
        buffer = new_buffer(asked.scratch, f"{repetition}", asked.rows)
        commits = frame.chunks(rows, asked.rows_a_commit)
        start = time.perf_counter()
        for commit in commits:
            buffer.extend(padded(commit))
        found.append(frame.written(time.perf_counter() - start, rows))
    return found


def draw(asked: frame.Specification) -> frame.Repetitions:
    if asked.order == "newest":
        raise frame.Unsupported("its samplers have no newest first")
    if asked.order == "prioritized":
        require_trees()
    if asked.max_staleness is not None and asked.order != "uniform":
        raise frame.Unsupported("its sampler with a limit of staleness draws at random")
    buffer = new_buffer(asked.scratch, "rows", asked.rows, asked.order, asked.max_staleness)
    for commit in frame.chunks(data.rows(asked.rows), 512):
        buffer.extend(padded(commit))
    if asked.max_staleness is not None:
        buffer.sampler.consumer_version = asked.rows // data.GROUP_SIZE // data.GROUPS_PER_VERSION
    if asked.order == "prioritized":
        priorities = torch.rand(asked.rows) + 0.1
        buffer.update_priority(torch.arange(asked.rows), priorities)

    def once() -> Any:
        sampled = buffer.sample(asked.size)
        lengths = sampled["length"].tolist()
        arrays = [sampled[name].numpy() for name in ARRAYS[:3]]
        return [[array[row, :length] for array in arrays] for row, length in enumerate(lengths)]

    return [frame.timed(once, asked.draws) for _ in range(asked.repetitions)]


def require_trees() -> None:
    """Its priorities live in sum trees, which only its C++ extension has."""
    try:
        import torchrl._torchrl  # noqa: F401
    except ImportError:
        reason = (
            f"its C++ extension, which holds the priorities, does not load with torch {torch.__version__}"
        )
        raise frame.Unsupported(reason) from None


def new_buffer(
    scratch: str, name: str, rows: int, order: str = "uniform", max_staleness: int | None = None
) -> Any:
    storage = LazyMemmapStorage(rows, scratch_dir=Path(scratch, name))
    if order == "prioritized":
        return TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=0.5, storage=storage, batch_size=64)
    samplers = {"fifo": lambda: SamplerWithoutReplacement(shuffle=False), "uniform": RandomSampler}
    if max_staleness is not None:
        sampler = StalenessAwareSampler(max_staleness=max_staleness, version_key="policy_version")
    else:
        sampler = samplers[order]()
    return TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=64)


def padded(rows: list[data.Experience]) -> TensorDict:
    """Rows as one dictionary of tensors, each filled up to the longest that there can be."""
    size = len(rows)
    columns = {
        "token_ids": np.zeros((size, TOKENS), np.int32),
        "action_mask": np.zeros((size, TOKENS), np.bool_),
        "logprobs": np.zeros((size, TOKENS), np.float32),
        "text": np.zeros((size, TOKENS * data.CHARACTERS_PER_TOKEN), np.uint8),
        "length": np.array([len(row.token_ids) for row in rows], np.int32),
        "reward": np.array([row.reward for row in rows], np.float32),
        "policy_version": np.array([row.version for row in rows], np.int32),
        "group": np.array([row.group for row in rows], np.int64),
    }
    for index, row in enumerate(rows):
        columns["token_ids"][index, : len(row.token_ids)] = row.token_ids
        columns["action_mask"][index, : len(row.token_ids)] = row.action_mask
        columns["logprobs"][index, row.prompt_tokens : len(row.token_ids)] = row.logprobs
        text = np.frombuffer((row.prompt + row.response).encode(), np.uint8)
        columns["text"][index, : len(text)] = text
    return TensorDict({name: torch.from_numpy(column) for name, column in columns.items()}, [size])


if __name__ == "__main__":
    frame.main("torchrl", "torchrl", {"ingest": ingest, "draw": draw}, NOTE)
