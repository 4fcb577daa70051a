"""The settings of a run that exists: changed while no worker is alive, each change a dated row.

The caller decides what may change; the verbs here hold the run still and write down what it becomes.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from trinity_db.database import Transaction
from trinity_db.errors import ConfigError
from trinity_db.schema.queries import query
from trinity_db.schema.states import Draws
from trinity_db.store import deletion, runs, workers


@dataclass(frozen=True)
class Use:
    """How far a run has come."""

    has_rows: bool
    """A rollout ended well, a row was judged, or another run started from this one."""
    is_trained: bool
    """A step was committed, reopened or not."""


def use(tx: Transaction, run_id: int) -> Use:
    """How far a run has come by now."""
    row = tx.execute(query("use_of_run"), {"run_id": run_id}).fetchone()
    assert row is not None
    return Use(row["has_rows"], row["is_trained"])


def hold(tx: Transaction, run: runs.Run, lease_seconds: float) -> None:
    """Let no worker enter the run, and no role adopt rows for it, before this transaction ends.

    Raises:
        ConfigError: workers are alive, or the settings were changed meanwhile.
    """
    runs.hold(tx, run)
    if runs.newest_setting(tx, run.id) != run.setting_id:
        raise ConfigError(f"The settings of run '{run.name}' were changed meanwhile; look at them again.")
    workers.all_gone(tx, run, lease_seconds, "change its configuration")


def change(tx: Transaction, run: runs.Run, config: Mapping[str, Any], draws: Draws) -> None:
    """Give a run that is held another configuration, for all that follows.

    Args:
        draws: what the batches of its algorithm are made of.
    """
    values = {"run_id": run.id, "config": Jsonb(config), "draws": draws, "host": socket.gethostname()}
    tx.execute(query("change_setting"), values)
    runs.announce(tx, run.id)


def latest(tx: Transaction, run_id: int) -> dict[str, datetime]:
    """When each key that was changed got the value that it has."""
    return {row["key"]: row["changed_at"] for row in tx.execute(query("latest_changes"), {"run_id": run_id})}


def begin_again(tx: Transaction, run: runs.Run, config: Mapping[str, Any], draws: Draws) -> int:
    """Give a run that is held, and has neither rows nor steps, another configuration in every respect.

    What its first start left goes: adopted rows, groups without a rollout that ended well, version 0.

    Returns:
        how many attempts, all of them failed, went with their groups.
    """
    row = tx.execute(query("failed_attempts"), {"run_id": run.id}).fetchone()
    assert row is not None
    deletion.empty(tx, run.id)
    change(tx, run, config, draws)
    return int(row["failed"])
