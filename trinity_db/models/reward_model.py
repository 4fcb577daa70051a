"""A reward model: a sequence classification checkpoint with one label, whose logit is the reward."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trinity_db.config.shared import ForwardConfig
from trinity_db.errors import ConfigError
from trinity_db.models.libraries import FROM_FOLDER, computing_dtype, default_device, library
from trinity_db.models.loading import check_folder

TokenIds = Sequence[int]


class RewardModel:
    """A model of the class AutoModelForSequenceClassification, without gradient.

    Rows are padded on the right, where no token attends to the padding.

    Args:
        config: micro-batch size and dtype of the weights.

    Raises:
        ConfigError: if the folder has no such model.
    """

    def __init__(self, folder: Path, config: ForwardConfig, *, device: str | None = None) -> None:
        check_reward_model(folder)
        transformers, safetensors = library("transformers"), library("safetensors")
        self._device = device or default_device()
        dtype = computing_dtype(config.dtype, self._device)
        try:
            model, report = transformers.AutoModelForSequenceClassification.from_pretrained(
                folder, **FROM_FOLDER, dtype=dtype, output_loading_info=True
            )
        except (OSError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
            why = " ".join(str(error).split())[:200]
            raise ConfigError(f"{folder}: is not a reward model: {why}") from error
        if missing := sorted(report["missing_keys"]):
            # transformers initializes them randomly.
            raise ConfigError(f"{folder}: is not a reward model: its files lack the weight {missing[0]}.")
        self._model: Any = model.to(self._device).eval()
        self._pad: int | None = model.config.get_text_config().pad_token_id
        self._max_sequences = config.micro_batch_size if self._pad is not None else 1
        self._max_tokens = config.enough_tokens_on(self._device.partition(":")[0])

    def rewards(self, rows: Sequence[TokenIds]) -> Iterator[tuple[int, float]]:
        """Yield each row's index and its reward, the longest rows first.

        Results come micro-batch by micro-batch, and the caller may stop between two of them.
        """
        longest_first = np.argsort([-len(row) for row in rows], kind="stable").tolist()
        chosen: list[int] = []
        for index in longest_first:
            width = len(rows[chosen[0]]) if chosen else 0
            is_full = len(chosen) >= self._max_sequences or (len(chosen) + 1) * width > self._max_tokens
            if chosen and is_full:
                yield from zip(chosen, self._ask([rows[member] for member in chosen]), strict=True)
                chosen = []
            chosen.append(index)
        if chosen:
            yield from zip(chosen, self._ask([rows[member] for member in chosen]), strict=True)

    def _ask(self, rows: Sequence[TokenIds]) -> list[float]:
        torch = library("torch")
        width = max(map(len, rows))
        pad = self._pad or 0
        tokens = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows], device=self._device)
        is_there = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        with torch.no_grad():
            logits = self._model(input_ids=tokens, attention_mask=is_there.to(self._device)).logits
        rewards: list[float] = logits[:, 0].float().tolist()
        return rewards


def check_reward_model(folder: Path) -> None:
    """Check without loading it that a folder has a reward model.

    Raises:
        ConfigError: if not; names the model that it has.
    """
    check_folder(folder)
    transformers = library("transformers")
    try:
        config = transformers.AutoConfig.from_pretrained(folder, **FROM_FOLDER)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder}: is not a reward model: {' '.join(str(error).split())[:200]}") from error
    made = (config.architectures or ["nothing"])[0]
    if not made.endswith("ForSequenceClassification"):
        raise ConfigError(
            f"{folder}: is not a reward model, but {made}; take a checkpoint of the class "
            "AutoModelForSequenceClassification with one label, as algorithm: reward_model makes it."
        )
    if config.num_labels != 1:
        raise ConfigError(f"{folder}: has {config.num_labels} labels; a reward model has one.")
