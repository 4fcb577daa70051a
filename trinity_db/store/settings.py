"""Settings of an existing run: changed while no worker is alive; each change is a dated row.

The caller decides what may change; these functions lock the run and record the new configuration.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from trinity_db.errors import ConfigError
from trinity_db.postgres.connection import Transaction
from trinity_db.schema.queries import query
from trinity_db.schema.states import Draws
from trinity_db.store import deletion, runs, workers


@dataclass(frozen=True)
class Use:
    """Progress of a run."""

    has_rows: bool
    """Whether a rollout succeeded, a row was scored, or another run started from this one."""
    is_trained: bool
    """Whether a step was committed, reopened or not."""


def use(tx: Transaction, run_id: int) -> Use:
    """Return a run's progress."""
    row = tx.execute(query("use_of_run"), {"run_id": run_id}).fetchone()
    assert row is not None
    return Use(row["has_rows"], row["is_trained"])


def hold(tx: Transaction, run: runs.Run, lease_seconds: float) -> None:
    """Block workers from entering the run, and roles from adopting rows for it, until this transaction ends.

    Raises:
        ConfigError: if workers are alive, or the settings were changed meanwhile.
    """
    runs.hold(tx, run)
    if runs.newest_setting(tx, run.id) != run.setting_id:
        raise ConfigError(f"The settings of run '{run.name}' were changed meanwhile; look at them again.")
    workers.all_gone(tx, run, lease_seconds, "change its configuration (trinity-db run FILE --change)")


def change(tx: Transaction, run: runs.Run, config: Mapping[str, Any], draws: Draws) -> None:
    """Give a held run another configuration from now on.

    Args:
        draws: the unit of its algorithm's batches.
    """
    values = {"run_id": run.id, "config": Jsonb(config), "draws": draws, "host": socket.gethostname()}
    tx.execute(query("change_setting"), values)
    runs.announce(tx, run.id)


def latest(tx: Transaction, run_id: int) -> dict[str, datetime]:
    """Time of the last change of each changed key."""
    return {row["key"]: row["changed_at"] for row in tx.execute(query("latest_changes"), {"run_id": run_id})}


def begin_again(tx: Transaction, run: runs.Run, config: Mapping[str, Any], draws: Draws) -> int:
    """Replace the configuration of a held run that has neither rows nor steps.

    Leftovers of its first start are deleted: adopted rows, groups without a successful rollout, version 0.

    Returns:
        the number of attempts, all failed, that were deleted with their groups.
    """
    row = tx.execute(query("failed_attempts"), {"run_id": run.id}).fetchone()
    assert row is not None
    deletion.empty(tx, run.id)
    change(tx, run, config, draws)
    return int(row["failed"])
