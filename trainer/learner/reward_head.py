"""The reward head scores a response, from the last hidden state of its last token.

A version is a checkpoint that `transformers` loads as a sequence classification model with one label, and
also as the causal language model: the file of weights contains both. The trainer also keeps the head in a
separate file next to them.
"""

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from trinity_db.arrays.codec import Payload
from trinity_db.errors import ConfigError
from trinity_db.trainer.learner.value_head import ValueHead

WEIGHT = "score.weight"  # name in a sequence classification model


class RewardHead(ValueHead):
    """r = w·h of hidden states [N, H]. w starts at 0. Pairs only compare rewards, so that no b is needed."""

    file: ClassVar[str] = "reward_head.safetensors"

    def __init__(self, hidden_size: int) -> None:
        super().__init__(hidden_size, bias=False)

    @property
    def weights(self) -> dict[str, Tensor]:
        """Its weight under its name in a sequence classification model."""
        return {WEIGHT: self.state_dict()["weight"]}


def classifier_of(model: Any) -> str:
    """Return the name of the sequence classification class for the weights of a causal language model.

    Raises:
        ConfigError: if transformers has no class that consists of this model and one matrix.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING as KNOWN

    classifier = KNOWN.get(type(model.config), None)
    if classifier is not None:
        with torch.device("meta"):
            names = set(classifier(model.config).state_dict())
        if names - model.state_dict().keys() == {WEIGHT}:
            return str(classifier.__name__)
    raise ConfigError(
        f"transformers has no sequence classification for {type(model).__name__}; start the reward model "
        "from a causal language model of another family."
    )


def ended(payload: Payload, pad: int | None) -> Payload:
    """Return a row whose only trained token is after its last one, where the head reads the hidden state.

    transformers uses the last token that is not padding. So does this function, if a row ends in padding
    tokens.

    Args:
        pad: Padding token in the model's configuration.
    """
    tokens = payload.token_ids
    if pad is not None and (kept := np.flatnonzero(tokens != pad)).size:
        tokens = tokens[: kept[-1] + 1]
    behind = np.append(tokens, np.int32(0))  # the choice of token has no effect
    return Payload(behind, np.arange(len(behind)) == len(tokens))
