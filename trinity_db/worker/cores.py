"""Number of processor cores available to this process, and how its threads wait for one another.

A computing role starts one thread per core. By default these threads spin while they wait, so two roles on
the same cores slow each other down many times over. With passive waiting they sleep, so that all roles of a
run may use all cores, and a synchronous run, whose roles alternate, uses them fully.
"""

import math
import os
from pathlib import Path, PurePosixPath

VARIABLE = "OMP_NUM_THREADS"


def wait_passively() -> None:
    """Let OpenMP's threads, which torch uses, sleep while they wait.

    Call it before torch is loaded. A value set by the user is kept; child processes inherit it.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def available(proc: Path = Path("/proc/self/cgroup"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the number of cores of this process, from its affinity and the quotas of its control groups.

    At least 1. Fractions are rounded down and left to other processes: a quota of 2.5 cores gives 2.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity
        cores = os.cpu_count() or 1
    return max(1, math.floor(min([float(cores), *_quotas(proc, cgroups)])))


def _quotas(proc: Path, cgroups: Path) -> list[float]:
    """Return the limits in cores of this process's control groups and their ancestors."""
    quotas = []
    for line in _read(proc).splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers:  # version 2
            roots = [cgroups, cgroups / "unified"]
        elif "cpu" in controllers.split(","):
            roots = [cgroups / controllers, cgroups / "cpu"]
        else:
            continue
        path = PurePosixPath(group)
        for folder in (path, *path.parents):
            for root in roots:
                quotas += _quota(root / str(folder).lstrip("/"))
    return quotas


def _quota(folder: Path) -> list[float]:
    """Return the limit of a control group, from cpu.max (version 2) or cpu.cfs_quota_us (version 1)."""
    numbers = _read(folder / "cpu.max").split()
    if not numbers:
        numbers = [*_read(folder / "cpu.cfs_quota_us").split(), *_read(folder / "cpu.cfs_period_us").split()]
    try:
        quota, period = map(int, numbers)
    except ValueError:  # "max 100000", or empty
        return []
    return [quota / period] if quota > 0 and period > 0 else []


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
