"""Facts about the machine that a reader needs to judge the figures; none of them names it."""

import math
import os
import platform
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.context import Context
from trinity_db import __version__

GIB = 1 << 30
STAT = Path("/proc/stat")
LOOK_SECONDS = 1.0


def facts(context: Context) -> dict[str, Any]:
    """Cores, memory, versions, the server's settings, and the day."""
    with context.server() as server:
        settings = server.facts()
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "postgres": settings.pop("server_version"),
        **settings,
        "trinity_db": __version__,
        "repetitions": context.repetitions,
        "quick": context.quick,
        "cores_busy_before": f"{busy_cores():.1f}",
    }


def busy_cores() -> float:
    """Cores that work while this process waits: for others, if nothing of the benchmark works then. NaN where
    the system does not say."""
    if not STAT.exists():
        return math.nan
    before = _ticks()
    time.sleep(LOOK_SECONDS)
    busy, all_ticks = (now - then for now, then in zip(_ticks(), before, strict=True))
    return busy / all_ticks * (os.cpu_count() or 1)


def _ticks() -> tuple[int, int]:
    """Of all cores since the start, those that were busy, and all."""
    ticks = [int(one) for one in STAT.read_text().splitlines()[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)  # less idle, and waiting for the disk
