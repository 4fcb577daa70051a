"""The reward head says what a response is worth, from the last hidden state of its last token.

A version is a checkpoint that `transformers` loads as a model that classifies sequences by one label, and as
the causal language model too: the file of the weights has those of both. The head stands in a file of its own
beside them, as the trainer has it.
"""

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from trinity_db.arrays import Payload
from trinity_db.errors import ConfigError
from trinity_db.trainer.learner.value_head import ValueHead

WEIGHT = "score.weight"  # in a model that classifies sequences


class RewardHead(ValueHead):
    """r = w·h of hidden states [N, H]. w starts at 0. Pairs compare rewards, so that there is no b."""

    file: ClassVar[str] = "reward_head.safetensors"

    def __init__(self, hidden_size: int) -> None:
        super().__init__(hidden_size, bias=False)

    @property
    def weights(self) -> dict[str, Tensor]:
        """Its weight by its name in a model that classifies sequences."""
        return {WEIGHT: self.state_dict()["weight"]}


def classifier_of(model: Any) -> str:
    """The name of the class that classifies sequences with the weights of a causal language model.

    Raises:
        ConfigError: transformers has none that consists of this model and one matrix.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING as KNOWN

    found = KNOWN.get(type(model.config), None)
    if found is not None:
        with torch.device("meta"):
            names = set(found(model.config).state_dict())
        if names - model.state_dict().keys() == {WEIGHT}:
            return str(found.__name__)
    raise ConfigError(
        f"transformers has no class by which {type(model).__name__} says rewards; start the reward model "
        "from a causal language model of another family."
    )


def ended(payload: Payload, pad: int | None) -> Payload:
    """A row whose only trained token stands behind its last one, where the head reads the hidden state.

    transformers takes the last token that is no padding. So does this function, if a row ends in such tokens.

    Args:
        pad: the token of padding in the model's configuration.
    """
    tokens = payload.token_ids
    if pad is not None and (kept := np.flatnonzero(tokens != pad)).size:
        tokens = tokens[: kept[-1] + 1]
    behind = np.append(tokens, np.int32(0))  # which token it is has no effect
    return Payload(behind, np.arange(len(behind)) == len(tokens))
