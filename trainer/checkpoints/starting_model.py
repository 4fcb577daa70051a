"""Version 0 of a run, its starting model: recorded by the trainer, and found again later."""

import os
import shutil
from pathlib import Path

import torch

from trinity_db.config.shared import ModelConfig
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.models import (
    build_scratch,
    check_source,
    folder_digest,
    hub,
    load_adapted,
    load_tokenizer,
    model_folder,
)
from trinity_db.models.adapter_folder import is_adapter
from trinity_db.postgres.connection import Database
from trinity_db.store import policies, runs, workers
from trinity_db.trainer.checkpoints import fetched, writing
from trinity_db.trainer.checkpoints.run_files import RunFiles
from trinity_db.trainer.learner import value_head
from trinity_db.weights.manifest import BrokenUpload


def publish_first_version(files: RunFiles, model: ModelConfig, seed: int) -> None:
    """Record the starting model as policy version 0, unless the run has versions.

    Raises:
        ConfigError: if the model does not exist.
        TrinityError: if the model cannot be downloaded or written, or it is another run's checkpoint and was
            pruned meanwhile. Then nothing is published.
        LeaseLost: if another trainer has taken over.
    """
    with files.database.transaction() as tx:
        if policies.latest_version(tx, files.run.id) is not None:
            return
    is_downloaded = model.path is not None and hub.is_name(model.path)
    source = _starting_model(files.database, model)
    own = files.folder.version_folder(0)
    if source is None:
        scratch = model.scratch
        assert scratch is not None
        folder, digest = own, writing.write_folder(own, lambda aside: build_scratch(scratch, seed, aside))
    else:
        named, recorded, address = source
        folder = named
        if recorded is not None and address is not None and not os.path.isdir(named):
            folder = _fetched(files, model, named, address, recorded)
        digest = _digest(folder, recorded, model)
        if is_adapter(folder):
            folder, digest = own, _write_merged(folder, own, model)
        elif folder != named or is_downloaded:  # in a cache, which other programs may empty
            writing.copy(folder, lambda copy: folder_digest.verify(copy, digest), own)
            folder = own
    weights = files.uploads.versions.upload(0, folder, digest) if files.uploads else None
    with files.database.transaction() as tx:
        workers.hold_place(tx, files.worker_id)
        if model.run is not None and folder != own:
            source_run = runs.find(tx, model.run)
            if not policies.hold_checkpoint(tx, source_run.id, folder):
                raise _pruned(model.run)
        policies.publish(tx, files.run.id, policies.PolicyVersion(0, 0, folder, digest, weights=weights))


def _fetched(files: RunFiles, model: ModelConfig, named: Path, address: str, digest: str) -> Path:
    """Return another run's version on this machine, fetching it if its folder is not here."""
    try:
        return fetched.fetch_other(files.patience, address, digest)
    except BrokenUpload as error:
        raise TrinityError(
            f"model.run: the checkpoint of '{model.run}' is not at {named}, and cannot be fetched: {error}"
        ) from error


def _write_merged(adapter: Path, folder: Path, model: ModelConfig) -> str:
    """Write the merged model of an adapter and its base, which may be deleted with the other run.

    The adapter's value head is included, like for a run that starts from a whole model.
    """
    try:
        adapted = load_adapted(adapter)
    except ConfigError as error:
        if model.run is None or adapter.is_dir():
            raise
        raise _pruned(model.run) from error

    def write(aside: Path) -> None:
        tokenizer = load_tokenizer(adapted.base)
        model_folder.write_with_tokenizer(adapted.model, adapted.merged(), aside, torch.float32, tokenizer)
        if (adapter / value_head.FILE).is_file():
            shutil.copyfile(adapter / value_head.FILE, aside / value_head.FILE)

    return writing.write_folder(folder, write)


def first_digest(database: Database, run: runs.Run) -> str:
    """Return the digest of the starting model's files, recorded at the start of the run."""
    with database.transaction() as tx:
        return policies.with_checkpoint(tx, run.id)[-1].checkpoint_hash


def first_model(files: RunFiles) -> Path:
    """Return the folder of the run's starting model: the reference, or the base of the adapter.

    Raises:
        ConfigError: if the files have changed or are gone.
    """
    with files.database.transaction() as tx:
        oldest = policies.with_checkpoint(tx, files.run.id)[-1]
    folder = None
    if oldest.version == 0:
        folder = files.locate(oldest) or fetched.fetch_first(files, oldest)
    if folder is None:
        raise ConfigError(
            f"Run '{files.run.name}': its starting model has changed or is gone, but it is needed as the "
            "reference, or as the base of the adapter; restore it."
        )
    return folder


def _starting_model(database: Database, model: ModelConfig) -> tuple[Path, str | None, str | None] | None:
    """Return the starting model's folder; None for a scratch model. A model on the Hub is downloaded.

    If another run recorded it, also return its digest, and its address in an object store.
    """
    if model.path is not None:
        check_source(model)
        return hub.folder(model.path, model.revision).absolute(), None, None
    if model.run is not None:
        with database.transaction() as tx:
            versions = policies.with_checkpoint(tx, runs.find(tx, model.run).id)
        # Not of a later version, which the other run's trainer may withdraw and delete.
        policy = next((version for version in versions if version.is_start), None)
        if policy is None:
            raise ConfigError(f"model.run: run '{model.run}' has no checkpoint yet; train it first.")
        return policy.checkpoint, policy.checkpoint_hash, policy.weights
    return None


def _digest(folder: Path, expected: str | None, model: ModelConfig) -> str:
    """Compute the digest of the starting model's files. It must equal a digest recorded by another run."""
    try:
        digest = folder_digest.digest(folder)
    except FileNotFoundError as error:
        if model.run is None:
            raise
        raise _pruned(model.run) from error
    if expected not in (None, digest):
        raise TrinityError(
            f"model.run: the checkpoint of '{model.run}' at {folder} is damaged, or is being deleted because "
            "a newer version replaced it; start again."
        )
    return digest


def _pruned(run_name: str) -> TrinityError:
    return TrinityError(
        f"model.run: the checkpoint of '{run_name}' was replaced by a newer version meanwhile; start again."
    )
