"""Facts about the machine that a reader needs to judge figures; its name is not among them."""

import os
import platform
from datetime import UTC, datetime
from typing import Any

from benchmarks.context import Context
from trinity_db import __version__

GIB = 1 << 30


def facts(context: Context) -> dict[str, Any]:
    """Return the date, cores, memory, versions and the server's settings."""
    with context.server() as server:
        version = server.facts()["server_version"]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "postgres": version,
        "trinity_db": __version__,
        "repetitions": context.repetitions,
        "load_before": f"{os.getloadavg()[0]:.1f}",
    }
