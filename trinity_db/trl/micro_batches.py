"""Rows of a batch as the tensors that the loss of TRL's GRPOTrainer reads."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinity_db.api.trainer import Row
from trinity_db.errors import TrinityError


@dataclass(frozen=True)
class Layout:
    """How rows are divided, and what they have to fit."""

    number: int
    """Micro-batches of a step."""
    size: int
    """Most rows of a micro-batch."""
    temperature: float
    """At which TRL computes log-probabilities."""
    run_temperature: float
    """At which a row without temperatures was sampled."""
    pad_id: int


def micro_batches(rows: Sequence[Row], layout: Layout) -> Iterator[dict[str, Tensor]]:
    """Divide the rows of a step into micro-batches of equal size, in their order.

    The last ones are filled with copies of a row that train nothing, so that each row has the same weight in
    the mean of a micro-batch.

    Raises:
        TrinityError: if the rows do not fit the layout.
    """
    _check(rows, layout)
    size = -(-len(rows) // layout.number)
    fill = size * layout.number - len(rows)
    sequences = [*map(_sequence, rows), *[_filling(rows[-1])] * fill]
    count = torch.tensor(sum(int(sequence.mask.sum()) for sequence in sequences))
    for start in range(0, len(sequences), size):
        yield _tensors(sequences[start : start + size], layout.pad_id) | {"num_items_in_batch": count}


@dataclass(frozen=True, eq=False)
class _Sequence:
    prompt: NDArray[np.int32]
    """The tokens before the first one that is trained."""
    completion: NDArray[np.int32]
    """[c] All tokens after the prompt."""
    mask: NDArray[np.bool_]
    """[c] True for trained tokens."""
    logprobs: NDArray[np.float32] | None
    """[c] As sampled; 0 for tokens that are not trained."""
    advantage: float


def _sequence(row: Row) -> _Sequence:
    # Nothing predicts the first token, so it belongs to the prompt even if it was sampled.
    start = max(1, int(row.action_mask.argmax()))
    mask = row.action_mask[start:]
    logprobs = None
    if row.logprobs is not None:
        logprobs = np.zeros(len(mask), np.float32)
        logprobs[mask] = row.logprobs[len(row.logprobs) - int(mask.sum()) :]
    advantage = (row.advantage or 0.0) * row.weight
    return _Sequence(row.token_ids[:start], row.token_ids[start:], mask, logprobs, advantage)


def _filling(row: Row) -> _Sequence:
    sequence = _sequence(row)
    return _Sequence(
        sequence.prompt, sequence.completion, np.zeros_like(sequence.mask), sequence.logprobs, 0.0
    )


def _tensors(sequences: Sequence[_Sequence], pad_id: int) -> dict[str, Tensor]:
    """Pad prompts on the left and completions on the right."""
    prompts = [sequence.prompt for sequence in sequences]
    completions = [sequence.completion for sequence in sequences]
    tensors = {
        "prompt_ids": _padded(prompts, pad_id, torch.long, on_left=True),
        "prompt_mask": _padded([np.ones_like(ids) for ids in prompts], 0, torch.long, on_left=True),
        "completion_ids": _padded(completions, pad_id, torch.long),
        "completion_mask": _padded([np.ones_like(ids) for ids in completions], 0, torch.long),
        "tool_mask": _padded([sequence.mask for sequence in sequences], 0, torch.long),
        "advantages": torch.tensor([sequence.advantage for sequence in sequences]),
    }
    logprobs = [sequence.logprobs for sequence in sequences if sequence.logprobs is not None]
    if logprobs:
        tensors["old_per_token_logps"] = _padded(logprobs, 0.0, torch.float32)
    return tensors


def _padded(
    arrays: Sequence[NDArray[Any]], value: float, dtype: torch.dtype, *, on_left: bool = False
) -> Tensor:
    width = max(map(len, arrays))
    padded = torch.full((len(arrays), width), value, dtype=dtype)
    for row, array in zip(padded, arrays, strict=True):
        start = width - len(array) if on_left else 0
        row[start : start + len(array)] = torch.tensor(array, dtype=dtype)
    return padded


def _check(rows: Sequence[Row], layout: Layout) -> None:
    room = layout.number * layout.size
    if len(rows) > room:
        raise TrinityError(
            f"The batch has {len(rows)} rows, and per_device_train_batch_size {layout.size} times "
            f"gradient_accumulation_steps {layout.number} is {room}: make one of them larger."
        )
    if len({row.logprobs is None for row in rows}) > 1:
        raise TrinityError(
            "Some rows of the batch have log-probabilities of the policy that sampled them, and others have "
            "none: train them in different runs."
        )
    for row in rows:
        sampled = np.float32(layout.run_temperature) if row.temperatures is None else row.temperatures
        if not np.all(sampled == np.float32(layout.temperature)):
            raise TrinityError(
                f"Row {row.id} was sampled at temperature {np.unique(sampled)[0]:g}, and TRL computes "
                f"log-probabilities at {layout.temperature:g}: set GRPOConfig(temperature=...) to that of "
                "the run's explorer, and let all its requests have the same."
            )
