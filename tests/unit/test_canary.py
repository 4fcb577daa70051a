"""A checkpoint has a canary: what its weights say of a fixed sequence, computed before they were written."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.recipes import recipe
from tests.support.saving import save
from trinity_db.arrays.codec import Payload
from trinity_db.config.shared import ScratchConfig
from trinity_db.models import build_scratch, load_model, load_tokenizer
from trinity_db.models.canary import Canary, read, sequence, wrong
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_it_is_what_the_model_in_the_folder_says(tmp_path: Path, lora: dict[str, int] | None) -> None:
    start = tmp_path / "start"
    build_scratch(ScratchConfig(alphabet="0123456789", hidden_size=16, heads=2, context=24), 3, start)
    # Training itself computes in bfloat16 and at another temperature.
    config = TrainerConfig.model_validate({"learning_rate": 1e-1, "lora": lora, "dtype": "bfloat16"})
    one = Learner(config, recipe("sft"), start, total_steps=10, temperature=0.5, device="cpu")
    canaries = []
    for version in (1, 2):
        one.step(Batch([Payload(np.arange(8, dtype=np.int32), np.arange(8) > 3)]))
        folder = tmp_path / str(version)
        save(folder, one, load_tokenizer(start))
        canary = read(folder)
        assert canary is not None
        tokens = torch.tensor([canary.token_ids])
        with torch.no_grad():
            said = load_model(folder, "cpu")(tokens).logits[0, :-1].log_softmax(-1)
        expected = said.gather(-1, tokens[0, 1:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(canary.logprobs), expected, atol=1e-5, rtol=0)
        canaries.append(canary)
    assert canaries[0].token_ids == canaries[1].token_ids
    changes = np.abs(np.subtract(canaries[0].logprobs, canaries[1].logprobs))
    assert changes.max() > 0.1, "else it tells nothing"


def test_an_engine_has_room_for_it_and_for_one_more_token() -> None:
    longest, short = sequence(151_936, 32_768), sequence(11, 8)
    assert longest is not None
    assert short is not None
    assert (longest.num_tokens, short.num_tokens) == (32, 7)
    assert short.token_ids.max() < 11
    assert sequence(11, 2) is None


def test_a_starting_model_has_none(tmp_path: Path) -> None:
    assert read(tmp_path) is None


@pytest.mark.parametrize(
    ("learning_rate", "dtype", "tolerance", "is_noticed"),
    [
        (1e-6, torch.float32, 0.005, True),
        (5e-6, torch.float32, 0.005, True),
        (1e-6, torch.bfloat16, 0.3, False),  # rounding hides the step
        (3e-4, torch.bfloat16, 0.3, True),
    ],
)
def test_weights_of_the_step_before_are_noticed_if_rounding_does_not_hide_the_step(
    tmp_path: Path, learning_rate: float, dtype: torch.dtype, tolerance: float, is_noticed: bool
) -> None:
    start = tmp_path / "start"
    build_scratch(
        ScratchConfig(alphabet="0123456789", hidden_size=64, layers=2, heads=2, context=64), 3, start
    )
    config = TrainerConfig(learning_rate=learning_rate)
    one = Learner(config, recipe("sft"), start, total_steps=10, device="cpu")
    folders = [tmp_path / name for name in ("before", "after")]
    for folder in folders:
        one.step(Batch([Payload(np.arange(8, dtype=np.int32), np.arange(8) > 3)]))
        save(folder, one, load_tokenizer(start))
    before, after = (canary_of(folder) for folder in folders)
    old, new = (spoken(folder, after.token_ids, dtype) for folder in folders)
    assert np.abs(np.subtract(old, after.logprobs)).mean() < tolerance, "the tolerance alone does not notice"
    assert (wrong(old, after, before, tolerance) is not None) == is_noticed
    assert wrong(new, after, before, tolerance) is None
    assert wrong(old, after, None, tolerance) is None, "nothing is known of the version before"


def test_weights_beyond_the_tolerance_are_noticed_without_a_version_before() -> None:
    canary = Canary([1, 2, 3], [-1.0, -2.0])
    assert wrong([-1.0, -2.009], canary, None, 0.005) is None
    assert "by 0.0055 nats on average" in str(wrong([-1.0, -2.011], canary, None, 0.005))
    assert "by nan nats" in str(wrong([-1.0, float("nan")], canary, canary, 0.005))


def canary_of(folder: Path) -> Canary:
    canary = read(folder)
    assert canary is not None
    return canary


def spoken(folder: Path, token_ids: list[int], dtype: torch.dtype) -> list[float]:
    """What a model in the folder says of tokens, computed in a number format."""
    tokens = torch.tensor([token_ids])
    with torch.no_grad():
        logprobs = load_model(folder, "cpu").to(dtype)(tokens).logits[0, :-1].float().log_softmax(-1)
    found: list[float] = logprobs.gather(-1, tokens[0, 1:, None])[:, 0].tolist()
    return found
