"""The value head predicts the reward of a response from the policy's last hidden state.

In a checkpoint it is a file next to the model's files. transformers ignores that file.
"""

from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

FILE = "value_head.safetensors"


class ValueHead(torch.nn.Linear):
    """V = w·h + b of hidden states [N, H], in units of reward. w and b start at 0.

    RLHF's original code (arXiv 1909.08593) starts at 0 too; verl starts at small random numbers. Zeros need
    no seed. The first step's advantages then contain no noise from the head. Its value loss only changes the
    head, because the gradient reaches the model through w.
    """

    file: ClassVar[str] = FILE
    """File name in a checkpoint."""

    def __init__(self, hidden_size: int, bias: bool = True) -> None:
        super().__init__(hidden_size, 1, bias)
        for parameter in self.parameters():
            torch.nn.init.zeros_(parameter)

    def forward(self, hidden: Tensor) -> Tensor:
        """[N] from [N, H], computed in the head's own dtype."""
        return super().forward(hidden.to(self.weight.dtype))[:, 0]

    def save(self, folder: Path) -> None:
        """Write the head into the folder of its model."""
        save_file(self.state_dict(), folder / self.file)


Head = TypeVar("Head", bound=ValueHead)


def load_head(kind: type[Head], folder: Path, model: Any) -> Head:
    """Load the head in a model's folder onto the model's device. Without a file, create a new one."""
    head = kind(model.config.get_text_config().hidden_size)
    if (folder / head.file).is_file():
        head.load_state_dict(load_file(folder / head.file))
    return head.to(next(model.parameters()).device)
