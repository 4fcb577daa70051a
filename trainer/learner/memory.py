"""Says in one line what does not fit into memory, and which keys help."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import torch

from trinity_db.arrays import Payload
from trinity_db.errors import TrinityError
from trinity_db.trainer.config import TrainerConfig

HELPS = {
    "gradient_checkpointing": "trainer.gradient_checkpointing: true",
    "lora": "trainer.lora: {}",
    "sharding": "trainer.sharding: full on more ranks",
    "offload": "trainer.offload: true",
}
"""Keys that save memory, and how they stand in a configuration."""
ON_CPU = "DefaultCPUAllocator: can't allocate memory"  # torch raises a plain RuntimeError there


@contextmanager
def model_has_to_fit(
    config: TrainerConfig, ranks: int = 1, keys: Collection[str] = ("sharding", "offload", "lora")
) -> Iterator[None]:
    """Within this `with`, too little memory for a model is an error of one line.

    Args:
        ranks: how many there are.
        keys: of the trainer, those that help here.

    Raises:
        TrinityError: there is too little. The message says what helps, and what torch says.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if (whose := _memory_of(error)) is None:
            raise
        remedies = [f"set {found}"] if (found := _keys(config, ranks, keys)) else []
        remedies.append("take a smaller model")
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
    """Within this `with`, too little memory for a step is an error of one line.

    A row is not divided over devices. So a row that does not fit by itself has to become shorter.

    Args:
        payloads: the rows. Each `width` neighbours go through the model together.
        ranks: how many there are.
        keys: of the trainer, those that help here.
        limit: tokens of a micro-batch. None: as configured.

    Raises:
        TrinityError: there is too little. The message has the rows' sizes, what helps, and what torch says.
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
            limit = config.tokens_on("cuda" if isinstance(error, torch.OutOfMemoryError) else "cpu")
        remedies = [f"lower trainer.micro_batch_tokens, which is {limit}"] if limit > together else []
        remedies += [f"set {found}"] if (found := _keys(config, ranks, keys)) else []
        remedies.append(
            "shorten rows: rollouts by explorer.max_new_tokens, imported ones in a new run by "
            "trainer.max_length"
        )
        raise _too_small(whose, f"these rows ({largest})", remedies, error) from error


def _memory_of(error: Exception) -> str | None:
    """Whose memory is too small. None: the error says something else."""
    if isinstance(error, torch.OutOfMemoryError):
        return "the GPU"
    return "this machine" if isinstance(error, MemoryError) or ON_CPU in str(error) else None


def _keys(config: TrainerConfig, ranks: int, names: Collection[str]) -> str:
    """Those of the keys that have no effect yet. Only weights that are sharded can be offloaded."""
    is_sharded = config.sharding == "full" and ranks > 1
    missing = {
        "gradient_checkpointing": config.gradient_checkpointing is not True,
        "lora": config.lora is None,
        "sharding": not is_sharded,
        "offload": is_sharded and not config.offload,
    }
    return " or ".join(HELPS[name] for name in names if missing[name])


def _too_small(whose: str, what: str, remedies: Sequence[str], error: Exception) -> TrinityError:
    said = " ".join(str(error).split())[:200]
    return TrinityError(f"The memory of {whose} is too small for {what}: {', or '.join(remedies)}. {said}")
