"""Sentence embeddings from a local model in Hugging Face format, without gradient."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinity_db.errors import ConfigError
from trinity_db.models.libraries import FROM_FOLDER, default_device, library
from trinity_db.models.loading import check_folder

BATCH = 32  # texts per batch, padded to the longest
POOLINGS = ("mean_tokens", "cls_token", "lasttoken")
"""Supported poolings of sentence-transformers' 1_Pooling/config.json, without the prefix pooling_mode_."""


class EmbeddingModel:
    """A model that maps a text to a unit vector, like sentence-transformers.

    The folder's 1_Pooling/config.json selects the pooling: the mean of the tokens' last hidden states (also
    the default without that file), or the state of the first or last token. Texts are truncated to the
    model's context.

    Raises:
        ConfigError: if the folder has no such model, or its pooling is not supported.
    """

    def __init__(self, folder: Path) -> None:
        self._pooling = check_embedding_model(folder)
        transformers = library("transformers")
        self._device = default_device()
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **FROM_FOLDER)
            model = transformers.AutoModel.from_pretrained(folder, **FROM_FOLDER, dtype="float32")
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(f"{folder}: cannot be loaded: {' '.join(str(error).split())[:200]}") from error
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._tokenizer.padding_side = "right"
        self._model: Any = model.to(self._device).eval()
        longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._context = min(self._tokenizer.model_max_length, longest or 8192)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[texts, size] Return the vectors of texts."""
        parts = [self._embed(texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)]
        return np.concatenate(parts)

    def _embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        torch = library("torch")
        # A text without tokens would have no mean.
        inputs = self._tokenizer(
            [text or " " for text in texts],
            padding=True,
            truncation=True,
            max_length=self._context,
            return_tensors="pt",
        ).to(self._device)
        with torch.no_grad():
            hidden = self._model(**inputs).last_hidden_state
            mask = inputs["attention_mask"]
            if self._pooling == "cls_token":
                pooled = hidden[:, 0]
            elif self._pooling == "lasttoken":
                pooled = hidden[torch.arange(len(hidden)), mask.sum(dim=1) - 1]
            else:
                pooled = (hidden * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
            vectors: NDArray[np.float32] = torch.nn.functional.normalize(pooled, dim=1).float().cpu().numpy()
        return vectors


def check_embedding_model(folder: Path) -> str:
    """Return the folder's pooling without loading the model.

    Raises:
        ConfigError: if it has no model, or its pooling is not supported.
    """
    check_folder(folder)
    file = folder / "1_Pooling" / "config.json"
    if not file.is_file():
        return POOLINGS[0]
    config = json.loads(file.read_text())
    # Newer versions of sentence-transformers have a name, older ones a flag.
    wanted = [key.removeprefix("pooling_mode_") for key, value in config.items() if value is True]
    named = {"mean": "mean_tokens", "cls": "cls_token"}.get(
        config.get("pooling_mode"), config.get("pooling_mode")
    )
    chosen = [named] if named else [pooling for pooling in wanted if pooling != "include_prompt"]
    if len(chosen) != 1 or chosen[0] not in POOLINGS:
        raise ConfigError(
            f"{file}: pools by {', '.join(map(str, chosen))}; supported are {', '.join(POOLINGS)}."
        )
    return str(chosen[0])
