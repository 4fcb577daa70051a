"""Fetches from an object store the files that a trainer resumes from, if this machine does not have them.

Files are fetched to a temporary folder, verified by hash, flushed, and then moved into the run's own folder.
A crash therefore leaves nothing that looks complete.
"""

import logging
import shutil
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from trinity_db.io import durable
from trinity_db.models import folder_digest
from trinity_db.store import policies, workers
from trinity_db.trainer.checkpoints import writing
from trinity_db.trainer.checkpoints.retrying_bucket import Patience, PatientBucket
from trinity_db.trainer.checkpoints.run_files import RunFiles
from trinity_db.weights import cache, delta, fetching, manifest
from trinity_db.weights.manifest import BrokenUpload

logger = logging.getLogger(__name__)


def fetch_all(files: RunFiles, policy: policies.PolicyVersion) -> policies.PolicyVersion | None:
    """Return a version with its weights and checkpoint on this machine, fetching what is missing.

    Returns:
        None if something is neither here nor in the object store.

    Raises:
        Broken: if objects are missing or damaged.
        GivenUp: if the trainer is stopping.
        TrinityError: if the object store was away for too long, or denies access; or the disk is not
            writable.
    """
    if policy.weights is None and (policy.resumed is None or policy.resumed.address is None):
        return None  # without checking the files, which takes minutes for a large model
    weights, checkpoint, resumed = files.locate(policy), files.locate_checkpoint(policy), policy.resumed
    if (weights is None and policy.weights is None) or (
        resumed is not None and checkpoint is None and resumed.address is None
    ):
        return None
    # The checkpoint first: it is larger, and the weights are useless without it.
    if resumed is not None:
        resumed = replace(resumed, folder=checkpoint or _checkpoint(files, policy.version, resumed))
    return replace(policy, checkpoint=weights or _weights(files, policy), resumed=resumed)


def fetch_first(files: RunFiles, first: policies.PolicyVersion) -> Path | None:
    """Return the starting model in the run's own folder, and record it; None if it is in no object store.

    Raises:
        Broken: if objects are missing or damaged.
        LeaseLost: if another trainer has taken over.
        TrinityError: see `fetch_all`.
    """
    if first.weights is None:
        return None
    here = replace(first, checkpoint=_weights(files, first))
    with files.database.transaction() as tx:
        workers.hold_place(tx, files.worker_id)
        policies.relocate(tx, files.run.id, here)
    return here.checkpoint


def fetch_other(patience: Patience, address: str, digest: str) -> Path:
    """Return the weights of another run's version, from this machine's cache or fetched into it.

    An adapter has its base model next to it.

    Raises:
        Broken, TrinityError: see `fetch_first`.
    """
    logger.info("fetching %s", address)
    return cache.fetch(address, digest, partial(PatientBucket, patience=patience))


def is_whole(files: RunFiles, policy: policies.PolicyVersion) -> bool:
    """Whether the objects of a version, and of its bases, give the files that were published.

    All of them are fetched to a temporary folder, since only this detects a flipped bit.

    Raises:
        GivenUp, TrinityError: see `fetch_all`.
    """
    assert policy.weights is not None
    aside = writing.aside_of(files.folder.version_folder(policy.version))
    try:
        url, name = manifest.split(policy.weights)
        bucket = PatientBucket(url, files.patience)
        first = manifest.read(bucket, name).adapter_on
        digests = [(name, policy.checkpoint_hash)]
        digests += [(first, manifest.read(bucket, first).digest)] if first else []
        return all(_gives(bucket, name, digest, aside) for name, digest in digests)
    except (BrokenUpload, delta.Damaged):
        return False


def _gives(bucket: PatientBucket, name: str, digest: str, aside: Path) -> bool:
    """Whether a version's objects, without any local file, give a folder with this digest."""
    with writing.or_nothing(aside, aside):
        aside.mkdir(parents=True)
        manifests = manifest.chain(bucket, name)
        for name_in_chain in reversed(manifests):
            fetching.make(aside, bucket, name_in_chain, manifests[name_in_chain])
        is_right = folder_digest.verify(aside, digest)
        shutil.rmtree(aside)
    return is_right


def _weights(files: RunFiles, policy: policies.PolicyVersion) -> Path:
    """Fetch a version's weights, and copy them into the run's own folder."""
    assert policy.weights is not None
    cached = fetch_other(files.patience, policy.weights, policy.checkpoint_hash)
    folder = files.folder.version_folder(policy.version)
    writing.copy(cached, lambda copy: folder_digest.verify(copy, policy.checkpoint_hash), folder)
    return folder


def _checkpoint(files: RunFiles, version: int, resumed: policies.Checkpoint) -> Path:
    """Fetch a checkpoint into the run's own folder."""
    assert resumed.address is not None
    begun = time.monotonic()
    logger.info("fetching %s", resumed.address)
    url, name = manifest.split(resumed.address)
    bucket = PatientBucket(url, files.patience)
    made = manifest.read(bucket, name)
    folder = files.folder.checkpoint_folder(version)
    aside = writing.aside_of(folder)
    with writing.or_nothing(folder, aside):
        aside.mkdir(parents=True)
        try:
            fetching.make(aside, bucket, name, made)
        except delta.Damaged as error:
            raise BrokenUpload(f"{resumed.address}: {error}") from error
        if not folder_digest.verify_checkpoint(aside, resumed.hash):
            raise BrokenUpload(f"{resumed.address}: its objects give other files than were saved.")
        durable.flush_all(aside)
        writing.rename(aside, folder)
    logger.info(
        "checkpoint %d: %.1f MB fetched in %.1f s", version, made.stored / 1e6, time.monotonic() - begun
    )
    return folder
