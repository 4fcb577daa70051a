"""How many cores there are to use, and how roles share them."""

import os
from pathlib import Path

import pytest

from trinity_db import cores


@pytest.fixture(autouse=True)
def _a_machine_of_eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        ("0::/", {}, 8),
        ("0::/", {"cpu.max": "max 100000"}, 8),
        ("0::/", {"cpu.max": "200000 100000"}, 2),
        ("0::/", {"cpu.max": "250000 100000"}, 2),
        ("0::/", {"cpu.max": "50000 100000"}, 1),
        ("0::/slice/job", {"slice/cpu.max": "300000 100000", "slice/job/cpu.max": "max 100000"}, 3),
        ("0::/slice/job", {"slice/cpu.max": "300000 100000", "slice/job/cpu.max": "100000 100000"}, 1),
        ("0::/", {"unified/cpu.max": "400000 100000"}, 4),
        ("2:cpu,cpuacct:/j", {"cpu/j/cpu.cfs_quota_us": "600000", "cpu/j/cpu.cfs_period_us": "100000"}, 6),
        ("1:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ("3:cpuset:/", {"cpuset/cpu.cfs_quota_us": "100000", "cpuset/cpu.cfs_period_us": "100000"}, 8),
        ("0::/", {"cpu.max": "1600000 100000"}, 8),
    ],
)
def test_quotas_limit_the_cores_that_are_used(
    tmp_path: Path, group: str, files: dict[str, str], expected: int
) -> None:
    (tmp_path / "self").write_text(f"{group}\n")
    assert cores.available(tmp_path / "self", written(tmp_path / "groups", files)) == expected


def test_this_machine_has_a_core() -> None:
    assert 1 <= cores.available() <= 8


@pytest.mark.parametrize(
    ("roles", "computing", "number", "expected"),
    [
        ("explore process train", "explore train", 9, [4, 1, 4]),
        ("explore process train", "explore train", 8, [3, 1, 4]),
        ("explore process train", "explore process train", 8, [2, 2, 3]),
        ("explore process train", "explore train", 2, [1, 1, 1]),
        ("explore process train", "explore train", 1, [1, 1, 1]),
        ("train", "explore train", 2, [1]),
        ("train", "explore train", 8, [7]),
        ("process train", "explore train", 8, [1, 7]),
    ],
)
def test_roles_that_compute_share_the_cores(
    roles: str, computing: str, number: int, expected: list[int]
) -> None:
    assert list(cores.shares(roles.split(), computing.split(), number).values()) == expected
