"""Confines this process and prints how: `trinity-db doctor` runs `python -m trinity_db.sandbox`."""

import sys

from trinity_db.sandbox.confine import CannotConfine, confine

try:
    print(confine(memory_bytes=1 << 30, cpu_seconds=10))
except (CannotConfine, OSError, ValueError) as error:
    sys.exit(str(error))
