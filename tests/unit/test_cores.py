"""How many cores there are to use, and how threads wait for one another."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trinity_db.worker import cores


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


SPINS = """
import os, sys, time
from trinity_db.worker import cores
if sys.argv[1:]:
    os.environ.update(dict([sys.argv[1].split("=")]))
cores.wait_passively()
import torch
torch.set_num_threads(2)
small = torch.ones(300, 300)
small @ small  # starts the second thread
began = time.process_time()
for _ in range(50):
    small @ small
    time.sleep(0.004)  # shorter than libgomp spins by default
print(time.process_time() - began)
"""


def test_threads_of_torch_sleep_while_they_wait_unless_a_person_wants_them_to_spin() -> None:
    passive, active = (
        float(
            subprocess.check_output(
                [sys.executable, "-c", SPINS, *arguments], text=True, env=clean_environment()
            )
        )
        for arguments in ([], ["OMP_WAIT_POLICY=ACTIVE"])
    )
    assert passive < active / 2


def clean_environment() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    }
