"""Reports in one line what does not fit into memory, and which keys help."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import torch

from trinity_db.arrays.codec import Payload
from trinity_db.errors import TrinityError
from trinity_db.trainer.config import TrainerConfig

HELPS = {
    "gradient_checkpointing": "trainer.gradient_checkpointing: true",
    "lora": "trainer.lora: {}",
    "sharding": "trainer.sharding: full on more ranks",
    "offload": "trainer.offload: true",
}
"""Keys that save memory, with the line for the configuration."""
ON_CPU = "DefaultCPUAllocator: can't allocate memory"  # a plain RuntimeError of torch


@contextmanager
def model_has_to_fit(
    config: TrainerConfig, ranks: int = 1, keys: Collection[str] = ("sharding", "offload", "lora")
) -> Iterator[None]:
    """Within this `with`, report insufficient memory for a model as an error of one line.

    Args:
        ranks: Number of ranks.
        keys: Keys of the trainer that help here.

    Raises:
        TrinityError: if memory is insufficient, with remedies and torch's message.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if (whose := _memory_of(error)) is None:
            raise
        remedies = [f"set {setting}"] if (setting := _keys(config, ranks, keys)) else []
        remedies.append("use a smaller model")
        raise _too_small(whose, "the model", remedies, error) from error


@contextmanager
def rows_have_to_fit(
    config: TrainerConfig,
    payloads: Sequence[Payload],
    width: int = 1,
    ranks: int = 1,
    keys: Collection[str] = ("gradient_checkpointing", "sharding", "offload"),
    limit: int | None = None,
) -> Iterator[None]:
    """Within this `with`, report insufficient memory for a step as an error of one line.

    A row is not divided over devices, so a row that does not fit alone must become shorter.

    Args:
        payloads: The rows. Each `width` consecutive rows go through the model together.
        ranks: Number of ranks.
        keys: Keys of the trainer that help here.
        limit: Tokens of a micro-batch. None: the configured limit.

    Raises:
        TrinityError: if memory is insufficient, with the rows' sizes, remedies and torch's message.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if (whose := _memory_of(error)) is None:
            raise
        lengths = [payload.num_tokens for payload in payloads]
        together = max(sum(lengths[first : first + width]) for first in range(0, len(lengths), width))
        largest = f"its longest row has {max(lengths)} tokens, and one device computes all of a row"
        if limit is None:
            limit = config.most_tokens
        remedies = [f"lower trainer.micro_batch_tokens, which is {limit}"] if limit > together else []
        remedies += [f"set {setting}"] if (setting := _keys(config, ranks, keys)) else []
        remedies.append(
            "shorten rows: rollouts with explorer.max_new_tokens, imported ones in a new run with "
            "trainer.max_length"
        )
        raise _too_small(whose, f"these rows ({largest})", remedies, error) from error


def _memory_of(error: Exception) -> str | None:
    """Return whose memory is too small; None if the error has another cause."""
    if isinstance(error, torch.OutOfMemoryError):
        return "the GPU"
    return "this machine" if isinstance(error, MemoryError) or ON_CPU in str(error) else None


def _keys(config: TrainerConfig, ranks: int, names: Collection[str]) -> str:
    """Return the keys that have no effect yet. Only sharded weights can be offloaded."""
    is_sharded = config.sharding == "full" and ranks > 1
    missing = {
        "gradient_checkpointing": config.gradient_checkpointing is not True,
        "lora": config.lora is None,
        "sharding": not is_sharded,
        "offload": is_sharded and not config.offload,
    }
    return " or ".join(HELPS[name] for name in names if missing[name])


def _too_small(whose: str, subject: str, remedies: Sequence[str], error: Exception) -> TrinityError:
    reason = " ".join(str(error).split())[:200]
    return TrinityError(
        f"The memory of {whose} is too small for {subject}: {', or '.join(remedies)}. {reason}"
    )
