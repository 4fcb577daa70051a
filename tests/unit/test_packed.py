"""Versions as deltas: any of a chain comes back to the bit, and damage names the versions that are lost."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from trinity_db.config.base import home
from trinity_db.errors import ConfigError
from trinity_db.models import folder_digest
from trinity_db.models.rounding import round_to
from trinity_db.models.weights_file import FILE, WeightsFile, is_sixteen_bit
from trinity_db.weights import cache, delta, packed

SIZE = 1_000_000  # elements: a file of 2 MB, which is large enough for a delta
LAST = 7


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(delta, "BLOCK_WORDS", 300_000)
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path / "home"))


def versions(parent: Path, count: int = LAST, dtype: torch.dtype = torch.bfloat16) -> Mapping[int, str]:
    """Write versions of a model that trains slowly; their digests by number."""
    chance = torch.Generator().manual_seed(0)
    exact = {"a": 0.02 * torch.randn(SIZE, generator=chance), "norm": torch.ones(8)}
    found = {}
    for number in range(1, count + 1):
        folder = whole(parent, number)
        (folder / "adapter").mkdir(parents=True)
        exact["a"] += 1e-5 * torch.randn(SIZE, generator=chance)
        tensors = {name: round_to(value, name, dtype) for name, value in exact.items()}
        (folder / "tokenizer.json").write_text("a" * 100_000)
        (folder / "adapter" / "canary.json").write_text(str(number))
        (folder / "empty").touch()
        folder_digest.complete(folder, {Path(FILE): WeightsFile(tensors)})
        found[number] = folder_digest.digest(folder)
    return found


def whole(parent: Path, number: int) -> Path:
    return parent / f"version-{number:06d}"


def pack(parent: Path, number: int, digest: str, base: int) -> None:
    folder = whole(parent, number)
    assert packed.write(folder, whole(parent, base), digest, packed.delta_folder(folder))
    shutil.rmtree(folder)


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints" / "run"


@pytest.fixture
def digests(parent: Path) -> Mapping[int, str]:
    """A run whose newest version is whole, and whose others are a chain of deltas to it."""
    found = versions(parent)
    for number in range(1, LAST):
        pack(parent, number, found[number], number + 1)
    return found


def test_any_version_of_a_chain_comes_back_to_the_bit(parent: Path, digests: Mapping[int, str]) -> None:
    for number, digest in digests.items():
        folder = cache.whole(whole(parent, number), number, digest)
        assert folder_digest.digest(folder) == digest
        assert (folder / "adapter" / "canary.json").read_text() == str(number)
    assert cache.whole(whole(parent, LAST), LAST, digests[LAST]) == whole(parent, LAST)
    kept = sorted(path.name[:14] for path in (home() / "weights" / "run").glob("version-*"))
    assert kept == ["version-000004", "version-000005", "version-000006"], "those that were used last"


def test_a_delta_takes_a_few_percent_of_a_version(parent: Path, digests: Mapping[int, str]) -> None:
    of_whole = sum(path.stat().st_size for path in whole(parent, LAST).rglob("*"))
    for number in range(1, LAST):
        place = packed.delta_folder(whole(parent, number))
        assert sum(path.stat().st_size for path in place.rglob("*")) < 0.1 * of_whole


def test_a_folder_that_moved_keeps_its_versions(parent: Path, digests: Mapping[int, str]) -> None:
    moved = parent.rename(parent.with_name("moved"))
    assert folder_digest.verify(cache.whole(whole(moved, 1), 1, digests[1]), digests[1])


@pytest.mark.parametrize("name", [FILE, "adapter/canary.json"])
def test_a_damaged_delta_names_the_versions_that_are_lost(
    parent: Path, digests: Mapping[int, str], name: str
) -> None:
    path = packed.delta_folder(whole(parent, 4)) / packed.FILES / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    if name == FILE:
        lost = "version-000001, version-000002, version-000003, version-000004"
        with pytest.raises(
            ConfigError, match=rf"version-000004\.delta is damaged; it is needed for {lost}, so"
        ):
            cache.whole(whole(parent, 2), 2, digests[2])
    else:
        assert folder_digest.verify(cache.whole(whole(parent, 2), 2, digests[2]), digests[2])
        with pytest.raises(ConfigError, match=r"version-000004\.delta is damaged"):
            cache.whole(whole(parent, 4), 4, digests[4])
    assert folder_digest.verify(cache.whole(whole(parent, 5), 5, digests[5]), digests[5])


@pytest.mark.parametrize("damage", ["cut", "not JSON", "leads out", "missing", "no delta.json"])
def test_a_delta_that_cannot_be_read_names_the_versions_that_are_lost(
    parent: Path, digests: Mapping[int, str], damage: str
) -> None:
    place = packed.delta_folder(whole(parent, 4))
    file = place / packed.FILE
    if damage == "cut":
        (place / packed.FILES / FILE).write_bytes((place / packed.FILES / FILE).read_bytes()[:-1])
    elif damage == "not JSON":
        file.write_text("{")
    elif damage == "leads out":
        file.write_text(file.read_text().replace('"tokenizer.json"', '"../tokenizer.json"'))
    elif damage == "missing":
        shutil.rmtree(place)
    else:
        file.unlink()
    with pytest.raises(ConfigError, match=r"version-000004"):
        cache.whole(whole(parent, 1), 1, digests[1])
    assert folder_digest.verify(cache.whole(whole(parent, 6), 6, digests[6]), digests[6])


def test_a_damaged_whole_version_at_the_end_of_a_chain_is_named(
    parent: Path, digests: Mapping[int, str]
) -> None:
    with (whole(parent, LAST) / FILE).open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    with pytest.raises(ConfigError, match=r"version-000007 is damaged .*; it is needed for version-000001, "):
        cache.whole(whole(parent, 3), 3, digests[3])


def test_bases_that_name_one_another_end(parent: Path, digests: Mapping[int, str]) -> None:
    file = packed.delta_folder(whole(parent, 4)) / packed.FILE
    file.write_text(file.read_text().replace('"version-000005"', '"version-000002"'))
    with pytest.raises(ConfigError, match="do not end"):
        cache.whole(whole(parent, 3), 3, digests[3])


def test_a_version_whose_files_have_changed_is_not_made_a_delta(tmp_path: Path) -> None:
    found = versions(tmp_path, 2)
    (whole(tmp_path, 1) / "tokenizer.json").write_text("other")
    with pytest.raises(packed.BrokenDelta, match="not those that were published"):
        packed.write(whole(tmp_path, 1), whole(tmp_path, 2), found[1], tmp_path / "aside")


def test_weights_that_changed_everywhere_are_not_worth_a_delta(tmp_path: Path) -> None:
    found = versions(tmp_path, 2)
    file = whole(tmp_path, 2) / FILE
    content = np.frombuffer(file.read_bytes(), dtype=np.uint8).copy()
    content[1000:] = np.random.default_rng(0).integers(0, 256, content.size - 1000)
    file.write_bytes(content.tobytes())
    assert not packed.write(whole(tmp_path, 1), whole(tmp_path, 2), found[1], tmp_path / "aside")


def test_a_base_that_becomes_a_delta_while_it_is_read_is_read_again(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = versions(parent, 3)
    pack(parent, 1, found[1], 2)
    chain, times = packed.chain, []

    def converts(folder: Path) -> tuple[list[packed.Packed], Path]:
        links = chain(folder)
        times.append(len(links[0]))
        if len(times) == 1:
            pack(parent, 2, found[2], 3)
        return links

    monkeypatch.setattr(packed, "chain", converts)
    assert folder_digest.verify(cache.whole(whole(parent, 1), 1, found[1]), found[1])
    assert times == [1, 2]


def test_a_version_that_the_server_has_lost_is_still_a_base(parent: Path, digests: Mapping[int, str]) -> None:
    place = packed.delta_folder(whole(parent, 6))
    place.rename(place.with_name(f"{place.name}.later"))
    whole(parent, 7).rename(parent / "version-000007.later")
    assert folder_digest.verify(cache.whole(whole(parent, 3), 3, digests[3]), digests[3])


@pytest.mark.parametrize(
    ("dtype", "expected"), [(torch.bfloat16, True), (torch.float16, True), (torch.float32, False)]
)
def test_the_number_format_of_a_version_is_read_from_its_file(
    tmp_path: Path, dtype: torch.dtype, expected: bool
) -> None:
    versions(tmp_path, 1, dtype)
    assert is_sixteen_bit(whole(tmp_path, 1) / FILE) is expected
    assert not is_sixteen_bit(tmp_path / "missing")
    assert not is_sixteen_bit(whole(tmp_path, 1) / "tokenizer.json")
