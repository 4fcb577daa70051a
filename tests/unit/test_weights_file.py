"""A thread writes a weights file while the owner of its tensors keeps working and changes them."""

from itertools import islice
from typing import Any

import pytest
import torch
from safetensors.torch import load

from trinity_db.models import weights_file
from trinity_db.models.weights_file import WeightsFile

BLOCK = 64  # bytes; the tensors below have several blocks


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "wide": torch.randn(5, 9, generator=generator),
        "transposed": torch.randn(6, 8, generator=generator).T,
        "half": torch.randn(33, generator=generator).bfloat16(),
        "empty": torch.zeros(0, 3),
        "flags": torch.tensor([True, False, True]),
    }


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_file, "BLOCK_BYTES", BLOCK)


@pytest.mark.parametrize("written", range(10))
def test_tensors_may_change_after_a_copy_of_what_is_not_written(written: int) -> None:
    own = tensors()
    file = WeightsFile(own)
    blocks = file.blocks()
    content = b"".join(bytes(block) for block in islice(blocks, written))
    file.copy_unwritten()
    for tensor in own.values():
        tensor.zero_()
    content += b"".join(blocks)
    assert len(content) == file.size
    found = load(content)
    assert found.keys() == own.keys()
    for name, tensor in tensors().items():
        assert torch.equal(found[name], tensor), name


def test_a_file_of_tensors_that_do_not_change_takes_one_block_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied = []
    copy = torch.Tensor.to

    def counted(tensor: torch.Tensor, *arguments: Any, **keywords: Any) -> torch.Tensor:
        copied.append(tensor.numel() * tensor.element_size())
        found: torch.Tensor = copy(tensor, *arguments, **keywords)
        return found

    monkeypatch.setattr(torch.Tensor, "to", counted)
    size = sum(len(block) for block in WeightsFile({"wide": torch.zeros(100, 100)}).blocks())
    assert max(copied) == BLOCK
    assert size > 100 * 100 * 4
