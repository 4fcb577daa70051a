"""Too little memory ends in one line that says what to do. A limit on this process provokes it for real."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.recipes import recipe
from trinity_db.arrays.codec import Payload
from trinity_db.config.shared import ScratchConfig
from trinity_db.errors import TrinityError
from trinity_db.models import build_scratch
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.distribution.ranks import ALONE
from trinity_db.trainer.learner import policy
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner
from trinity_db.trainer.learner.memory import model_has_to_fit, rows_have_to_fit
from trinity_db.trainer.loop.lead_follow import LearnerSetup

MIB = 1 << 20
ON_GPU = torch.OutOfMemoryError("Tried to allocate 20 GiB.\nGPU 0 has 79 GiB")


@contextmanager
def little_memory() -> Iterator[None]:
    """Within this `with`, this process may take 8 MiB more of addresses."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 8 * MIB, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def rows(*lengths: int) -> list[Payload]:
    return [Payload(np.zeros(length, np.int32), np.arange(length) > 0) for length in lengths]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model that is so wide that the first array of a long row, of 123 MB, is already too large."""
    scratch = ScratchConfig(alphabet="0123456789", hidden_size=512, layers=1, heads=2, context=32)
    build_scratch(scratch, 0, tmp_path)
    return tmp_path


def said_of(config: TrainerConfig, *lengths: int, width: int = 1, ranks: int = 1) -> str:
    with pytest.raises(TrinityError) as raised, rows_have_to_fit(config, rows(*lengths), width, ranks):
        raise ON_GPU
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_row_that_does_not_fit_names_the_keys_that_help(model: Path) -> None:
    one = Learner(TrainerConfig(), recipe("sft"), model, total_steps=1, device="cpu")
    expected = (
        r"^The memory of this machine is too small for these rows \(its longest row has 60000 tokens.*"
        r"set trainer.gradient_checkpointing: true or trainer.sharding: full on more ranks, or "
        r"shorten rows: rollouts with explorer.max_new_tokens, imported ones in a new run with "
        r"trainer.max_length"
    )
    with little_memory(), pytest.raises(TrinityError, match=expected) as raised:
        one.step(Batch(rows(60_000, 10)))
    assert "micro_batch_tokens" not in str(raised.value), "the row goes through the model by itself"
    with little_memory(), pytest.raises(TrinityError, match="its longest row has 60000 tokens"):
        one.evaluate(Batch(rows(60_000, 10)))
    assert one.steps_done == 0


def test_a_model_that_does_not_fit_names_the_keys_that_help(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        policy, "load_model", lambda *_: torch.empty(1 << 46)
    )  # more than there are addresses
    setup = LearnerSetup(TrainerConfig(), recipe("sft"), model, None, 1, 0, None, 1.0)
    expected = r"too small for the model: set trainer.sharding: full on more ranks or trainer.lora: \{\}, or"
    with pytest.raises(TrinityError, match=expected):
        setup.build(Learner, ALONE)


def test_a_smaller_micro_batch_is_advised_where_several_rows_share_one() -> None:
    said = said_of(TrainerConfig(), 900, 100)
    assert said.startswith(
        "The memory of the GPU is too small for these rows (its longest row has 900 tokens, and one device "
        "computes all of a row): lower trainer.micro_batch_tokens, which is 4096, or set "
    )
    assert said.endswith("in a new run with trainer.max_length. Tried to allocate 20 GiB. GPU 0 has 79 GiB")


def test_a_pair_goes_through_the_model_together() -> None:
    config = TrainerConfig(micro_batch_tokens=1000)
    assert "lower trainer.micro_batch_tokens" in said_of(config, 900, 100, 100, 900)
    assert "micro_batch_tokens" not in said_of(config, 900, 100, 100, 900, width=2)


def test_keys_that_are_set_are_not_advised() -> None:
    config = TrainerConfig(gradient_checkpointing=True, sharding="full")
    assert "or set trainer.offload: true, or shorten" in said_of(config, 10, ranks=2)
    assert "set trainer" not in said_of(config.model_copy(update={"offload": True}), 10, ranks=2)


def test_one_rank_needs_others_to_share_the_weights() -> None:
    config = TrainerConfig(gradient_checkpointing=True, sharding="full", offload=True)
    assert "or set trainer.sharding: full on more ranks, or shorten" in said_of(config, 10)


def test_other_errors_stay_as_they_are() -> None:
    for hold in (model_has_to_fit(TrainerConfig()), rows_have_to_fit(TrainerConfig(), rows(5))):
        with pytest.raises(RuntimeError, match="of another kind"), hold:
            raise RuntimeError("of another kind")
