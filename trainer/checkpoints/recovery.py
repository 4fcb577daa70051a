"""Chooses what a trainer starts from: the run's starting model, or the latest complete checkpoint.

A checkpoint is complete if its files are, and those of its version's weights, which explorers sample with.
Complete objects in an object store count too, and are fetched.

Weights and rows must agree at a start. So `recover` reopens every batch that the chosen checkpoint does not
include, and records what a server has lost (docs/how-it-works/checkpoints.md).
"""

import logging
from collections.abc import Container, Sequence
from dataclasses import dataclass

from trinity_db.errors import ConfigError, TrinityError
from trinity_db.store import batches, lost_commits, policies
from trinity_db.trainer.checkpoints import fetched, lost_versions
from trinity_db.trainer.checkpoints.folder import Publication, is_owned_by
from trinity_db.trainer.checkpoints.run_files import RunFiles, check_is_there, is_elsewhere
from trinity_db.weights.manifest import BrokenUpload

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Allowed:
    """Permissions given by the person who starts the trainer, for this start only."""

    from_start: bool = False
    """Continue from the starting model if the run has checkpoints but none in the store is complete."""
    from_version: int | None = None
    """Continue from the checkpoint of this version, which the server has lost."""


def recover(
    files: RunFiles, allowed: Allowed, lost: Sequence[int] = (), weights: lost_versions.Weights | None = None
) -> policies.PolicyVersion:
    """Choose the latest version with a complete checkpoint, and reopen every batch that it does not include.

    Later versions, which have only weights, or damaged or missing files, are withdrawn with a warning. A
    checkpoint in another owner's folder is copied into the run's own folder, because the other owner may
    delete it. A loss on the server's side is recorded.

    Args:
        lost: Versions that the server has lost and whose checkpoints were set aside.
        weights: The steps in the learner's weights, if the trainer noticed a loss while it was running.

    Raises:
        ConfigError: if no checkpoint is complete, not even the starting model, or `from_version` names a
            version that does not exist. Then nothing is changed.
        TrinityError: if only the starting model is complete, or the folder of checkpoints is missing. Then
            nothing is changed.
        LeaseLost: if another trainer has taken over. Then nothing is changed.
    """
    with files.database.transaction() as tx:
        recorded = policies.with_checkpoint(tx, files.run.id)
        if not recorded:  # for example a run that was copied without its files
            raise _nothing_whole(files)
        mark = batches.hold_trainer(tx, files.run.id, files.worker_id)
        from_version = allowed.from_version
        is_adopted = from_version is not None and lost_commits.adopted(tx, files.run.id, from_version)
    setback = lost_versions.find_setback(files, mark, lost, weights)
    if from_version is not None and not is_adopted:
        return lost_versions.adopt(files, from_version, setback, mark)
    newest, damaged = _newest_whole(files, [policy for policy in recorded if policy.is_start], allowed)
    if newest.version == 0 and (damaged or lost) and not allowed.from_start:
        raise TrinityError(lost_versions.refusal_to_start_over(files, damaged, setback))
    policy = _copy_if_foreign(files, newest)
    shared = _go_on_from(files, policy, damaged, setback)
    _delete_weights(files, [later for later in recorded if later.version > policy.version], shared)
    _note(files, policy)
    return policy


def _note(files: RunFiles, policy: policies.PolicyVersion) -> None:
    """Note what the store has of a version. The trainer that recorded it may have crashed before its note."""
    resumed = policy.resumed
    if resumed is None:
        return
    resume_hash = None if resumed.folder == policy.checkpoint else resumed.hash
    known = Publication(policy.version, policy.step, policy.checkpoint_hash, resume_hash)
    if known not in files.folder.publications():
        files.folder.acknowledge(known)


def _delete_weights(
    files: RunFiles, withdrawn: Sequence[policies.PolicyVersion], shared: Container[str]
) -> None:
    """Delete files of withdrawn versions that no trainer can resume from, and that no other run uses."""
    alone = [policy for policy in withdrawn if not policy.is_start]
    for policy in alone:
        if policy.checkpoint.name not in shared:
            files.folder.delete(policy.version, policy.checkpoint)
    if alone:
        logger.warning(
            "%s: withdrawn, as the latest checkpoint is older", lost_versions.versions_in_words(alone)
        )


def _go_on_from(
    files: RunFiles,
    policy: policies.PolicyVersion,
    damaged: Sequence[policies.PolicyVersion],
    setback: lost_commits.Setback | None,
) -> set[str]:
    """Make a version the newest one: reopen later batches, withdraw damaged versions, record a setback.

    Return the names of folders that other runs use, which are not set aside.
    """
    with files.database.transaction() as tx:
        reopened = batches.reopen(tx, files.run.id, files.worker_id, policy.version)
        policies.relocate(tx, files.run.id, policy)
        if setback:
            lost_commits.record(tx, files.run.id, files.worker_id, setback, policy.version)
        # Within the transaction: after its commit no version refers to these folders, and a trainer that
        # starts after a crash would delete them as leftovers.
        shared = files.shared(tx)
        for broken in damaged:
            for folder in broken.folders:
                if folder.name not in shared:
                    files.folder.set_aside(broken.version, folder)
    if setback:
        logger.warning(
            "the server has lost %s: resuming from version %d, step %d%s",
            *(setback, policy.version, policy.step, lost_versions.offer(files, setback)),
        )
    if reopened:
        logger.warning("version %d does not include %d batches: reopened", policy.version, reopened)
    return shared


def _newest_whole(
    files: RunFiles, recorded: Sequence[policies.PolicyVersion], allowed: Allowed
) -> tuple[policies.PolicyVersion, list[policies.PolicyVersion]]:
    """Return the newest complete version, with its folders, and the later, damaged versions."""
    damaged: list[policies.PolicyVersion] = []
    for policy in recorded:
        located = files.locate_all(policy)
        if isinstance(located, policies.PolicyVersion):
            return located, damaged
        why = f"its checkpoint at {located} is damaged or missing"
        try:
            if (here := fetched.fetch_all(files, policy)) is not None:
                return here, damaged
        except BrokenUpload as error:
            why += f", and cannot be fetched: {error}"
        if policy.version > 0 and not allowed.from_start and not is_elsewhere(recorded):
            check_is_there(located.parent)
        logger.warning("version %d: %s", policy.version, why)
        damaged.append(policy)
    raise _nothing_whole(files)


def _nothing_whole(files: RunFiles) -> ConfigError:
    return ConfigError(
        f"Run '{files.run.name}': no checkpoint is whole, and its starting model has changed or is gone; "
        "restore one of them."
    )


def _copy_if_foreign(files: RunFiles, policy: policies.PolicyVersion) -> policies.PolicyVersion:
    """Copy a version and its checkpoint from another owner's folder, because that owner may delete them."""
    folders = policy.folders
    if policy.version == 0 or all(is_owned_by(folder.parent, files.folder.owner) for folder in folders):
        return policy
    copied = files.copied(policy)
    logger.info("version %d: copied from %s to %s", policy.version, policy.checkpoint, copied.checkpoint)
    return copied
