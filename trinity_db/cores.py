"""How many processor cores this process may use, and how the roles of a run share them.

A role that computes starts one thread for each core it knows of, and these threads spin while they wait for
one another. Two such roles on the same cores slow each other many times over. So a supervisor tells each role
its share by OMP_NUM_THREADS, which torch and numpy read when they are loaded.
"""

import math
import os
from collections.abc import Collection, Sequence
from pathlib import Path, PurePosixPath

VARIABLE = "OMP_NUM_THREADS"


def available(proc: Path = Path("/proc/self/cgroup"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores that this process may use: by its affinity, and by the quotas of its control groups.

    At least 1. Part of a core is left to the other processes: a quota of 2.5 cores is 2.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity
        cores = os.cpu_count() or 1
    return max(1, math.floor(min([float(cores), *_quotas(proc, cgroups)])))


def shares(roles: Sequence[str], computing: Collection[str], cores: int) -> dict[str, int]:
    """Threads for each of the roles: those that compute share all cores but one, the others get one thread.

    One core is left to the store, the supervisor and roles that do not compute: where something else runs on
    the core of one thread, all others spin until that thread is through. What does not divide evenly goes to
    the last of the roles that compute. Each has one thread at least.
    """
    workers = [role for role in roles if role in computing]
    threads = dict.fromkeys(roles, 1)
    for role in workers:
        threads[role] = max(1, (cores - 1) // len(workers))
    if workers:
        threads[workers[-1]] = max(1, cores - 1 - sum(threads[role] for role in workers[:-1]))
    return threads


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
