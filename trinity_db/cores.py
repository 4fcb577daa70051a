"""How many processor cores this process may use, and how its threads wait for one another.

A role that computes starts one thread for each core. By default these threads spin while they wait: two such
roles on the same cores slow each other down many times over. With passive waiting they sleep, so that all
roles of a run may use all cores, and a synchronous run, whose roles take turns, uses them fully.
"""

import math
import os
from pathlib import Path, PurePosixPath

VARIABLE = "OMP_NUM_THREADS"


def wait_passively() -> None:
    """Let the threads of OpenMP, which torch computes with, sleep while they wait.

    Call it before torch is loaded. A value that a person has set stays, and child processes inherit it.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def available(proc: Path = Path("/proc/self/cgroup"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores that this process may use: by its affinity, and by the quotas of its control groups.

    At least 1. Part of a core is left to the other processes: a quota of 2.5 cores is 2.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity
        cores = os.cpu_count() or 1
    return max(1, math.floor(min([float(cores), *_quotas(proc, cgroups)])))


def _quotas(proc: Path, cgroups: Path) -> list[float]:
    """Cores that the control groups of this process and those above them allow, where they set a limit."""
    found = []
    for line in _read(proc).splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers:  # version 2
            roots = [cgroups, cgroups / "unified"]
        elif "cpu" in controllers.split(","):
            roots = [cgroups / controllers, cgroups / "cpu"]
        else:
            continue
        path = PurePosixPath(group)
        for place in (path, *path.parents):
            for root in roots:
                found += _quota(root / str(place).lstrip("/"))
    return found


def _quota(folder: Path) -> list[float]:
    """The limit that a control group sets, as cpu.max (version 2) or cpu.cfs_quota_us (version 1) says it."""
    numbers = _read(folder / "cpu.max").split()
    if not numbers:
        numbers = [*_read(folder / "cpu.cfs_quota_us").split(), *_read(folder / "cpu.cfs_period_us").split()]
    try:
        quota, period = map(int, numbers)
    except ValueError:  # "max 100000", or nothing at all
        return []
    return [quota / period] if quota > 0 and period > 0 else []


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
