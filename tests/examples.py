"""The examples of configs/ that need no data of others: their scripts, runs and curves."""

import os
import subprocess
from pathlib import Path
from typing import Any

from tests.acceptance.command import COMMAND, Store

ROOT = Path(__file__).parents[1]


def script(store: Store, *command: str | Path, timeout: float) -> None:
    """Give a command of an example from the project's folder, on this store."""
    environment = store.environment | {"PATH": f"{COMMAND.parent}{os.pathsep}{os.environ['PATH']}"}
    ended = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout
    )
    assert ended.returncode == 0, ended.stderr


def curve(store: Store, example: str) -> list[dict[str, Any]]:
    """The rows that the example's picture is drawn from."""
    query = (ROOT / "configs" / example / "curve.sql").read_text()
    return store.rows(query.replace("%", "%%"))  # which has no parameters
