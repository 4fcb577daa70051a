"""Rounding to 16 bits shows each update at once, and depends on name and index alone."""

import pytest
import torch
from torch import Tensor

from trinity_db.models import rounding
from trinity_db.models.rounding import inexact, round_to, seed_names

BITS = "1111101011010100100000111011101111001111011011111100100110001011"
"""Which of the first 64 weights half-way between two values are rounded up."""
HALF = [torch.bfloat16, torch.float16]
NAME = "model.layers.3.mlp.up_proj.weight"


def pretrained(count: int = 1 << 20) -> Tensor:
    """Weights as a released model has them: values of bfloat16 of about 0.02, that float16 holds too."""
    weights = torch.randn(count, generator=torch.Generator().manual_seed(5)) * 0.02
    return weights[weights.abs() > 1e-3].bfloat16().float()


@pytest.mark.parametrize("dtype", HALF)
def test_values_of_the_grid_stay_as_they_are(dtype: torch.dtype) -> None:
    every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    rounded = round_to(every.float(), NAME, dtype)
    is_number = ~every.isnan()
    assert torch.equal(rounded.view(torch.int16)[is_number], every.view(torch.int16)[is_number])
    assert rounded[~is_number].isnan().all()
    assert round_to(every, NAME, dtype) is every or torch.equal(
        round_to(every, NAME, dtype).view(torch.int16), every.view(torch.int16)
    )


@pytest.mark.parametrize("dtype", HALF)
def test_each_value_becomes_one_of_its_two_neighbours(dtype: torch.dtype) -> None:
    bits = torch.randint(0, 1 << 31, (1 << 18,), generator=torch.Generator().manual_seed(1))
    exact = torch.cat([bits, bits - (1 << 31)]).to(torch.int32).view(torch.float32)
    exact = exact[exact.abs() <= torch.finfo(dtype).max]
    rounded = round_to(exact, NAME, dtype).double()
    nearest = exact.to(dtype)
    distance = (exact.double() - nearest.double()).abs()
    is_other = rounded != nearest.double()
    # The other neighbour is on the other side of the value.
    assert (
        ((rounded - exact.double()) * (nearest.double() - exact.double())).masked_select(is_other).le(0).all()
    )
    up = torch.nextafter(nearest, torch.full_like(nearest, torch.inf)).double()
    down = torch.nextafter(nearest, torch.full_like(nearest, -torch.inf)).double()
    assert ((rounded == nearest.double()) | (rounded == up) | (rounded == down)).all()
    assert distance[is_other].gt(0).all()
    assert torch.equal(rounded.signbit(), exact.signbit()), "also of zeros"
    assert rounded.isfinite().all()


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("rate", [1e-7, 1e-6, 1e-5, 1e-4])
@pytest.mark.parametrize("direction", ["random", "constant", "towards zero"])
def test_the_visible_update_is_the_update(dtype: torch.dtype, rate: float, direction: str) -> None:
    start = pretrained(1 << (22 if rate < 1e-6 else 20))
    steps = {
        "random": torch.randn(start.shape, generator=torch.Generator().manual_seed(2)),
        "constant": torch.ones_like(start),
        "towards zero": -start.sign(),
    }
    moved = start + rate * steps[direction]
    update = (moved - start).double()  # what float32 has of it
    visible = round_to(moved, NAME, dtype).double() - start.double()
    share = float((visible * update).sum() / (update * update).sum())
    # Within 1 %, or three standard deviations over the choice of thresholds if few weights change.
    spread = float((visible - update).mul(update).square().sum().sqrt() / (update * update).sum())
    assert abs(share - 1) < max(0.01, 3 * spread)
    assert spread < 0.02
    if rate <= 1e-6 and dtype == torch.bfloat16:
        nearest = moved.to(dtype).double() - start.double()
        assert (nearest * update).sum() / (update * update).sum() < 0.2, "so it is worth it"


def test_a_subnormal_number_of_float16_is_rounded_by_value() -> None:
    """Below 2**-14 the distance is 2**-24 for all."""
    exact = torch.full((1 << 16,), 2.0**-24 * 5.25)
    rounded = round_to(exact, NAME, torch.float16).double() * 2**24
    assert set(rounded.tolist()) == {5.0, 6.0}
    assert float(rounded.mean()) == pytest.approx(5.25, abs=0.01)
    tiny = round_to(torch.full((1 << 16,), -(2.0**-26)), NAME, torch.float16).double() * 2**24
    assert float(tiny.mean()) == pytest.approx(-0.25, abs=0.01)


@pytest.mark.parametrize("dtype", HALF)
def test_what_is_not_finite_or_beyond_the_format_is_rounded_to_nearest(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    above = {torch.bfloat16: 3.3961e38, torch.float16: 65519.0}[dtype]  # nearest is the largest number
    far = torch.finfo(torch.float32).max  # nearest is infinity
    values = torch.tensor([torch.inf, -torch.inf, torch.nan, above, -above, far, -far, largest, 0.0, -0.0])
    rounded = round_to(values.repeat(1000), NAME, dtype).reshape(1000, -1)
    nearest = values.to(dtype)
    assert torch.allclose(rounded.float(), nearest.float().expand(1000, -1), rtol=0, atol=0, equal_nan=True)
    assert nearest[3] == largest
    assert nearest[5] == torch.inf


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_with_slices_compute_the_bits_of_the_whole(dtype: torch.dtype, ranks: int) -> None:
    whole = torch.randn(1031, 1029, generator=torch.Generator().manual_seed(3))  # two blocks, odd widths
    rows = -(-len(whole) // ranks)
    parts = [
        round_to(whole[rank * rows : (rank + 1) * rows], NAME, dtype, rank * rows * whole.shape[1])
        for rank in range(ranks)
    ]
    assert torch.equal(torch.cat(parts), round_to(whole, NAME, dtype))


def test_how_many_elements_are_rounded_at_a_time_makes_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU takes a whole block, and the CPU less."""
    weight = torch.randn((1 << 20) + 3, generator=torch.Generator().manual_seed(3))
    expected = round_to(weight, NAME, torch.bfloat16)
    monkeypatch.setattr(rounding, "CHUNKS", {})
    assert torch.equal(round_to(weight, NAME, torch.bfloat16), expected)
    strided = torch.stack([weight, weight], 1)[:, 0]
    assert torch.equal(round_to(strided, NAME, torch.bfloat16), expected)


def test_a_restarted_process_has_the_thresholds_that_all_versions_have() -> None:
    """These bits are part of the format: other thresholds would change weights that did not move."""
    middle = torch.full((1 << 20,), 1.0 + 2**-8)
    above = round_to(middle, "weight.0", torch.bfloat16).gt(1)
    assert float(above.float().mean()) == pytest.approx(0.5, rel=0.01)
    assert "".join(map(str, above[:64].int().tolist())) == BITS


def test_thresholds_of_other_parameters_and_blocks_are_others() -> None:
    middle = torch.full((1 << 21,), 1.0 + 2**-8)  # half of the distance
    one, other = (round_to(middle, name, torch.bfloat16).gt(1).float() for name in ("a", "b"))
    assert float(torch.corrcoef(torch.stack([one, other]))[0, 1]) == pytest.approx(0, abs=0.005)
    blocks = one.reshape(2, -1)
    assert float(torch.corrcoef(blocks)[0, 1]) == pytest.approx(0, abs=0.005)
    assert float(torch.corrcoef(torch.stack([one[:-1], one[1:]]))[0, 1]) == pytest.approx(0, abs=0.005)


def test_tied_and_adapted_parameters_have_one_name() -> None:
    model = torch.nn.ModuleDict({"embedding": torch.nn.Linear(2, 2, bias=False)})
    model["head"] = torch.nn.Linear(2, 2)
    model["head"].weight = model["embedding"].weight
    model["adapted"] = torch.nn.ModuleDict({"base_layer": torch.nn.Linear(2, 2, bias=False)})
    assert seed_names(model) == {
        "embedding.weight": "embedding.weight",
        "head.weight": "embedding.weight",
        "head.bias": "head.bias",
        "adapted.weight": "adapted.weight",
    }


def test_weights_without_a_float16_value_are_counted() -> None:
    weights = [torch.tensor([1.0, 2.0**-24, 1.5 * 2.0**-24]), torch.tensor([[0.0]])]
    assert inexact(weights, torch.float16) == (0.25, 0.5 * 2.0**-24)
    assert inexact(weights, torch.float32) == (0.0, 0.0)
