"""The value head: what the policy expects a response to earn, read off its own last hidden state.

It lies beside the model in a checkpoint, in a file of its own that transformers does not look at.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

FILE = "value_head.safetensors"


class ValueHead(torch.nn.Linear):
    """V = w·h + b of hidden states [N, H], in units of reward; 0 throughout until it has learned.

    Zeros, as in the first code of RLHF (arXiv 1909.08593), and not the small random numbers of verl: they
    need no seed, the first step weighs tokens by what they earn and not by noise, and its loss of values
    moves the head alone, since it reaches the trunk through w.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__(hidden_size, 1)
        torch.nn.init.zeros_(self.weight)
        torch.nn.init.zeros_(self.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """[N] from [N, H], computed in the head's own dtype."""
        return super().forward(hidden.to(self.weight.dtype))[:, 0]

    def save(self, folder: Path) -> None:
        """Write it into the folder of its model."""
        save_file(self.state_dict(), folder / FILE)


def load_value_head(folder: Path, model: Any) -> ValueHead:
    """The one that lies beside a model, on the model's device; a new one where there is none."""
    head = ValueHead(model.config.get_text_config().hidden_size)
    if (folder / FILE).is_file():
        head.load_state_dict(load_file(folder / FILE))
    return head.to(next(model.parameters()).device)
