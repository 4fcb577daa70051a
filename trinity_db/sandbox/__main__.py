"""Confines itself and says how: `python -m trinity_db.sandbox` is what `trinity-db doctor` asks."""

import sys

from trinity_db.sandbox.confine import CannotConfine, confine

try:
    print(confine(memory_bytes=1 << 30, cpu_seconds=10))
except (CannotConfine, OSError, ValueError) as error:
    sys.exit(str(error))
