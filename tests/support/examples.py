"""The examples of configs/ that need no data of others: their scripts, runs and curves."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.acceptance.command import COMMAND, Store
from tests.support.postgres import by_login

ROOT = Path(__file__).parents[2]


def script(store: Store, *command: str | Path, timeout: float) -> None:
    """Give a command of an example from the project's folder, on this store."""
    path = f"{COMMAND.parent}{os.pathsep}{os.environ['PATH']}"
    # Questions are not asked by a superuser.
    environment = store.environment | {"PATH": path, "TRINITY_DB_READ_URL": by_login(store.url)}
    ended = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout
    )
    assert ended.returncode == 0, ended.stderr


def curve(store: Store, example: str) -> list[dict[str, Any]]:
    """The rows that the example's picture is drawn from."""
    query = (ROOT / "configs" / example / "curve.sql").read_text()
    return store.rows(query.replace("%", "%%"))  # which has no parameters


def reward_model(store: Store, *options: str, timeout: float) -> None:
    """The commands of configs/reward_model/run.sh up to its curve, with options of the policy's run."""
    example, folder = ROOT / "configs" / "reward_model", store.folder / "data"
    commands: tuple[tuple[str | Path, ...], ...] = (
        (sys.executable, example / "make_pairs.py", folder),
        ("trinity-db", "import", folder / "tasks.jsonl", "--as", "tasks", "--name", "large-digits"),
        (
            "trinity-db",
            "import",
            folder / "pairs.jsonl",
            "--as",
            "preferences",
            "--name",
            "large-digits-pairs",
        ),
        ("trinity-db", "train", example / "reward.yaml"),
        ("trinity-db", "run", example / "ppo.yaml", *options),
    )
    for command in commands:
        script(store, *command, timeout=timeout)
