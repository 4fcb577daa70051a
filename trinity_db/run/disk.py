"""Disk space of a run: the need, checked before it starts, and for `trinity-db status RUN` the use so far.

The use is an estimate for its tables, and the size of its files.
"""

import json
import logging
import os
import shutil
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity_db.errors import ConfigError

if TYPE_CHECKING:
    from trinity_db.postgres.connection import Transaction
    from trinity_db.run.configuration import RunConfig
    from trinity_db.store.runs import Run
    from trinity_db.trainer.checkpoints.disk_need import Shapes

logger = logging.getLogger(__name__)

SAMPLE_ROWS = 1_000  # rows whose text, payloads and processing records are sampled: 20 ms


def check_need(config: "RunConfig") -> None:
    """Check and log the disk space that a run's versions and checkpoints need; existing files count as free.

    A Hub model is downloaded first. Nothing is logged if the starting model has no safetensors files on this
    machine.

    Raises:
        ConfigError: if it is more than the disk has.
        NotFound: if the run in `model.run` does not exist.
    """
    from trinity_db.insight.checks.finding import size
    from trinity_db.models import hub
    from trinity_db.trainer.checkpoints import disk_need

    trainer, folder = config.trainer.model_copy(update={"publish": config.publishes}), config.checkpoints
    shapes = _starting_shapes(config)
    if not shapes:
        return
    publish_every = trainer.publish_every or (1 if config.is_online else 100)
    copies_start = config.model.path is None or hub.is_name(config.model.path)
    need = disk_need.estimate(shapes, trainer, publish_every, copies_start)
    free = shutil.disk_usage(next(parent for parent in (folder, *folder.parents) if parent.exists())).free
    of_each = (
        f"up to {need.num_versions} versions of {size(need.version)} and "
        f"{need.num_checkpoints} checkpoints of {size(need.checkpoint)}"
    )
    if need.total > free + bytes_in(folder):
        raise ConfigError(
            f"{folder}: the run needs {size(need.total)} ({of_each}), and {size(free)} are free. Free space "
            "there, lower trainer.keep_checkpoints, or name another folder with trainer.checkpoints."
        )
    logger.info("needs up to %s in %s: %s; %s are free", size(need.total), folder, of_each, size(free))
    if deltas := min(need.deltas, int(trainer.keep_deltas * free)):
        logger.info(
            "versions in 16 bits stay as deltas when they are old, in about %s more (trainer.keep_deltas)",
            size(deltas),
        )


def _starting_shapes(config: "RunConfig") -> "Shapes":
    """Shapes of the starting model's tensors; empty if unknown on this machine."""
    from trinity_db.models import hub
    from trinity_db.models.adapter_folder import whole_model
    from trinity_db.postgres.opening import open_database
    from trinity_db.store import policies, runs
    from trinity_db.trainer.checkpoints import disk_need
    from trinity_db.worker.service import LEASE_SECONDS

    model = config.model
    if model.scratch is not None:
        return {"all": (model.scratch.num_parameters,)}
    path = None if model.path is None else hub.folder(model.path, model.revision)
    if model.run is not None:
        with closing(open_database(LEASE_SECONDS)) as database, database.transaction() as tx:
            versions = policies.with_checkpoint(tx, runs.find(tx, model.run).id)
        path = next((version.checkpoint for version in versions if version.is_start), None)
    return disk_need.shapes_of(whole_model(path)) if path is not None and path.is_dir() else {}


def use(tx: "Transaction", run: "Run", num_rows: int) -> dict[str, Any]:
    """Estimate a run's rows and bytes by group of tables, and measure the bytes of its files on this machine.

    Args:
        num_rows: number of its experiences.
    """
    from trinity_db.schema.queries import query

    values = {"run_id": run.id, "rows": num_rows, "sample": SAMPLE_ROWS}
    tables = {
        row["family"]: {"rows": row["rows"], "bytes": row["bytes"]}
        for row in tx.execute(query("status_disk"), values)
    }
    return {
        "tables": tables,
        "checkpoint_bytes": _checkpoint_bytes(tx, run),
        "archive_bytes": _archive_bytes(tx, run),
    }


def describe(disk: Mapping[str, Any]) -> str | None:
    """Format the disk use in a few lines; None for an empty run."""
    lines = [
        f"{family}: about {table['rows']} rows, {megabytes(table['bytes'])}"
        for family, table in disk["tables"].items()
        if table["rows"]
    ]
    for name in ("checkpoint", "archive"):
        if disk[f"{name}_bytes"]:
            lines.append(f"{name} files: {megabytes(disk[f'{name}_bytes'])}")
    return "\n".join(lines) or None


def megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f} MB"


def _checkpoint_bytes(tx: "Transaction", run: "Run") -> int:
    """Bytes in folders that name this run as owner. A path in the database is not proof."""
    from trinity_db.config.base import home
    from trinity_db.store import instances, policies
    from trinity_db.trainer.checkpoints import folder

    store = instances.known(tx)
    if store is None:
        return 0
    identity: dict[str, Any] = {"store": str(store)} | run.identity
    parents = [path.parent for policy in policies.with_checkpoint(tx, run.id) for path in policy.folders]
    places = {*parents, *folder.places(home() / "checkpoints" / run.name, identity)}
    return sum(
        bytes_in(folder_of_run)
        for folder_of_run in places
        if folder_of_run.is_absolute()
        and folder.is_owned_by(folder_of_run, json.dumps(identity))
        and not folder_of_run.is_symlink()
    )


def _archive_bytes(tx: "Transaction", run: "Run") -> int | None:
    """Bytes in the Lance tables that this very store wrote; None for an object store."""
    from trinity_db.arrays import archive
    from trinity_db.store import instances, payloads

    store = instances.known(tx)
    tables = payloads.archives(tx, run.id, store) if store else []
    folders = [archive.folder(table) for table, is_own in tables if is_own]
    sizes = [bytes_in(folder) for folder in folders if folder is not None]
    return sum(sizes) if len(sizes) == len(folders) else None


def bytes_in(folder: Path) -> int:
    """Bytes of the files below a folder, skipping files that disappear meanwhile. Follows no links."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(parent, name).lstat().st_size
    return total
