"""Deltas between files of weights: what they give back, what they refuse, and what they are not worth."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trinity_db.weights import delta


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small files have several blocks."""
    monkeypatch.setattr(delta, "BLOCK_WORDS", 300)


def changed(folder: Path, old: bytes, new: bytes) -> bytes | None:
    """What a delta makes of the old file; None if there is no delta."""
    for name, content in (("old", old), ("new", new)):
        (folder / name).write_bytes(content)
    if not delta.write(folder / "old", folder / "new", folder / "delta"):
        return None
    delta.apply([folder / "delta"], folder / "old", folder / "target")
    return (folder / "target").read_bytes()


@settings(max_examples=200)
@given(
    size=st.integers(1000, 20_000),
    share=st.floats(0, 0.15),
    seed=st.integers(0, 2**32 - 1),
    odd=st.booleans(),
)
def test_any_old_file_becomes_the_new_one(
    tmp_path_factory: pytest.TempPathFactory, size: int, share: float, seed: int, odd: bool
) -> None:
    chance = np.random.default_rng(seed)
    old = chance.integers(0, 256, 2 * size + odd, dtype=np.uint8)
    new = np.where(chance.random(old.size) < share, chance.integers(0, 256, old.size, dtype=np.uint8), old)
    found = changed(tmp_path_factory.mktemp("delta"), old.tobytes(), new.tobytes())
    assert found == new.tobytes()


@pytest.mark.parametrize("place", [0, 1, 599, 600, 601, 40_000, 40_001])
def test_one_byte_at_either_side_of_a_block(tmp_path: Path, place: int) -> None:
    old = bytes(40_002)
    new = bytearray(old)
    new[place] = 255
    assert changed(tmp_path, old, bytes(new)) == bytes(new)


@pytest.mark.parametrize("gap", [0, 1, 253, 254, 255, 256, 508, 509, 510, 511, 2**21])
def test_gaps_of_every_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gap: int) -> None:
    monkeypatch.setattr(delta, "BLOCK_WORDS", 1 << 22)
    old = np.zeros(gap + 5000, dtype="<u2")
    new = old.copy()
    new[[0, gap + 1]] = 7
    assert changed(tmp_path, old.tobytes(), new.tobytes()) == new.tobytes()


def test_several_deltas_are_applied_in_order(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    files = [chance.integers(0, 2**16, 5000, dtype="<u2")]
    for _ in range(4):
        files.append(files[-1] + (chance.random(5000) < 0.1) * chance.integers(0, 2**16, 5000, dtype="<u2"))
    for number, content in enumerate(files):
        (tmp_path / f"file-{number}").write_bytes(content.astype("<u2").tobytes())
    deltas = []
    for number in range(4):
        deltas.append(tmp_path / f"delta-{number}")
        assert delta.write(tmp_path / f"file-{number}", tmp_path / f"file-{number + 1}", deltas[-1])
    delta.apply(deltas, tmp_path / "file-0", tmp_path / "made")
    assert (tmp_path / "made").read_bytes() == (tmp_path / "file-4").read_bytes()


def test_a_file_of_another_size_has_no_delta(tmp_path: Path) -> None:
    assert changed(tmp_path, bytes(5000), bytes(5001)) is None


def test_a_file_that_changed_everywhere_is_not_worth_a_delta(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "SPARE_BYTES", 0)
    chance = np.random.default_rng(0)
    old, new = (chance.integers(0, 256, 2_000_000, dtype=np.uint8).tobytes() for _ in range(2))
    assert changed(tmp_path, old, new) is None
    assert (tmp_path / "delta").stat().st_size < 1_500_000, "it was given up on the way"


def test_a_step_of_a_low_learning_rate_takes_a_small_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "BLOCK_WORDS", 1 << 22)
    chance = np.random.default_rng(0)
    old = chance.integers(0, 2**16, 1_000_000, dtype="<u2")
    new = old + (chance.random(old.size) < 0.02).astype("<u2")
    assert changed(tmp_path, old.tobytes(), new.tobytes()) == new.tobytes()
    assert (tmp_path / "delta").stat().st_size < 0.01 * new.nbytes


@settings(max_examples=300)
@given(data=st.data())
def test_a_damaged_delta_is_refused_or_gives_other_bytes_of_the_same_size(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    chance = np.random.default_rng(0)
    old = chance.integers(0, 256, 10_000, dtype=np.uint8)
    new = np.where(chance.random(old.size) < 0.05, old + 1, old).astype(np.uint8)
    assert changed(folder, old.tobytes(), new.tobytes()) == new.tobytes()
    damaged = bytearray((folder / "delta").read_bytes())
    if data.draw(st.booleans(), "cut"):
        del damaged[data.draw(st.integers(0, len(damaged) - 1), "length") :]
    else:
        damaged[data.draw(st.integers(0, len(damaged) - 1), "place")] ^= data.draw(st.integers(1, 255), "by")
    (folder / "delta").write_bytes(damaged)
    try:
        delta.apply([folder / "delta"], folder / "old", folder / "target")
    except delta.Damaged:
        return
    # The manifest's digest finds what the delta itself does not show.
    assert (folder / "target").stat().st_size == old.size


def test_a_delta_of_another_file_is_refused(tmp_path: Path) -> None:
    changed(tmp_path, bytes(5000), bytes(4999) + b"1")
    (tmp_path / "old").write_bytes(bytes(6000))
    with pytest.raises(delta.Damaged, match="not a delta of a file of 6000 bytes"):
        delta.apply([tmp_path / "delta"], tmp_path / "old", tmp_path / "target")
