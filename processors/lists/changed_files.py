"""Detects changes of the files that steps depend on: their code, or files named by their options."""

import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path

from trinity_db.processors.lists.step import Step, digest_of

logger = logging.getLogger(__name__)

LOOK_SECONDS = 10.0  # between checks of the files


class ChangedFiles:
    """Files of the steps that a process has loaded."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._known: dict[Path, str | None] = {
            path: digest for step in steps for path, digest in step.files.items() if digest is not None
        }
        self._looked_at = -math.inf

    def say(self) -> None:
        """Log each change once. This process keeps using the loaded content, whose digest is stored."""
        if time.monotonic() - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = time.monotonic()
        for path, known in self._known.items():
            digest = digest_of(path)
            if digest != known:
                self._known[path] = digest
                change = "changed" if digest else "is gone"
                logger.warning(
                    "%s %s; this process continues with the loaded content. Restart it to use the "
                    "file, as a new version of the list",
                    path,
                    change,
                )
