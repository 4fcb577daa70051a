"""Keeps a run's objects in its object store in line with the run's store.

Versions that are missing there, or that explorers reported damaged, are uploaded. Objects no longer kept are
deleted.
"""

import logging
import time
from dataclasses import replace

from trinity_db.models.adapter_folder import is_adapter
from trinity_db.store import policies, workers
from trinity_db.trainer.checkpoints.fetched import is_whole
from trinity_db.trainer.checkpoints.run_files import RunFiles, addresses

logger = logging.getLogger(__name__)

CHECK_SECONDS = 600.0  # between checks of complete objects that an explorer reported damaged


def upload_missing(files: RunFiles, newest: policies.PolicyVersion) -> None:
    """Upload version 0 and the version that the trainer starts from, unless they are in the object store.

    Then delete the objects of versions that are not kept, complete or not, such as leftovers of crashes.

    Raises:
        LeaseLost: if another trainer has taken over.
        TrinityError: see `Versions.upload`.
    """
    if files.uploads is None:
        return
    with files.database.transaction() as tx:
        recorded = policies.with_checkpoint(tx, files.run.id)
    for policy in reversed(recorded):
        if policy.version in (0, newest.version) and not files.uploads.versions.has(policy.weights):
            policy = _upload(files, policy)
        if policy.version == 0 and policy.weights is not None:
            files.uploads.versions.begin(policy.weights)
    sweep(files)


def upload_broken(files: RunFiles) -> None:
    """Upload versions again whose objects explorers reported missing or damaged, if they are.

    If they are complete, the explorer's own machine damages what it fetches, and another upload would not
    help.

    Raises:
        LeaseLost, TrinityError: see `upload_missing`.
    """
    if files.uploads is None:
        return
    with files.database.transaction() as tx:
        broken = policies.broken_weights(tx, files.run.id)
        first = policies.with_checkpoint(tx, files.run.id)[-1] if broken else None
    for policy in broken:
        if _is_whole(files, policy):
            continue
        logger.warning(
            "version %d: its objects are missing or damaged, and are uploaded again", policy.version
        )
        if is_adapter(policy.checkpoint) and first is not None and first.version == 0:
            _upload(files, first)
        _upload(files, policy)


def _is_whole(files: RunFiles, policy: policies.PolicyVersion) -> bool:
    """Whether the objects of a version are complete, according to a check within the last CHECK_SECONDS."""
    assert files.uploads is not None, "only a run with an object store uploads"
    assert policy.weights is not None, "explorers name an address"
    seen = files.uploads.versions.whole_at
    if policy.weights in seen and time.monotonic() - seen[policy.weights] < CHECK_SECONDS:
        return True
    if not is_whole(files, policy):
        return False
    if policy.weights not in seen:
        logger.warning(
            "version %d: an explorer reports damaged objects, but they are intact: the explorer's disk or "
            "memory damages them. Its own log names the machine.",
            policy.version,
        )
    seen[policy.weights] = time.monotonic()
    return True


def sweep(files: RunFiles) -> None:
    """Delete objects that are no longer kept. If the object store is unreachable, a later call does it.

    Raises:
        LeaseLost: if another trainer has taken over.
    """
    if files.uploads is None or files.patience.is_over:
        return
    with files.database.transaction() as tx:
        workers.hold_place(tx, files.worker_id)
        recorded = policies.with_checkpoint(tx, files.run.id)
    files.uploads.versions.sweep([policy.weights for policy in recorded if policy.weights])
    files.uploads.checkpoints.sweep(addresses(recorded))


def _upload(files: RunFiles, policy: policies.PolicyVersion) -> policies.PolicyVersion:
    """Upload a recorded version, and record its address; not if its files are damaged."""
    assert files.uploads is not None, "only a run with an object store uploads"
    folder = files.locate(policy)
    if folder is None:
        logger.warning(
            "version %d: %s is damaged or missing: not uploaded", policy.version, policy.checkpoint
        )
        return policy
    address = files.uploads.versions.upload(policy.version, folder, policy.checkpoint_hash, whole=True)
    uploaded = replace(policy, weights=address)
    with files.database.transaction() as tx:
        workers.hold_place(tx, files.worker_id)
        policies.record_weights(tx, files.run.id, uploaded)
    return uploaded
