"""Finds what a trainer starts from: the run's starting model, or the latest checkpoint that is whole.

A checkpoint is whole if its files are, and those of its version's weights: explorers sample with these. What
is whole in an object store counts too, and is fetched.

Weights and rows must agree at a start. So `recover` reopens every batch that the chosen checkpoint does not
include, and records what a server has lost (docs/how-it-works/checkpoints.md).
"""

import logging
from collections.abc import Container, Sequence
from dataclasses import dataclass

from trinity_db.errors import ConfigError, TrinityError
from trinity_db.store import batches, policies, setbacks
from trinity_db.trainer.checkpoints import fetched, lost_versions
from trinity_db.trainer.checkpoints.folder import Publication, is_owned_by
from trinity_db.trainer.checkpoints.run_files import RunFiles, check_is_there, is_elsewhere
from trinity_db.weights.manifest import Broken

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Allowed:
    """What the person who starts the trainer allows it to do this once."""

    from_start: bool = False
    """Continue from the starting model if the run has checkpoints but none that the store knows is whole."""
    from_version: int | None = None
    """Continue from the checkpoint of this version, which the server has lost."""


def recover(
    files: RunFiles, allowed: Allowed, lost: Sequence[int] = (), weights: lost_versions.Weights | None = None
) -> policies.PolicyVersion:
    """Choose the latest version whose checkpoint is whole, and reopen every batch that it does not include.

    Later versions, which are weights alone or whose files are damaged or missing, are withdrawn, with a
    warning. A checkpoint in another owner's folder is copied into the run's own folder, because the other
    owner may delete it. A loss on the server's side is recorded.

    Args:
        lost: the versions that the server has lost and whose checkpoints were set aside.
        weights: the steps that the learner's weights contain, if the trainer noticed a loss while it worked.

    Raises:
        ConfigError: no checkpoint is whole, not even the starting model, or `from_version` names a version
            that is not there. Nothing is changed then.
        TrinityError: only the starting model is whole, or the folder of checkpoints is missing. Nothing is
            changed then.
        LeaseLost: another trainer has taken this one's place. Nothing is changed then.
    """
    with files.database.transaction() as tx:
        recorded = policies.with_checkpoint(tx, files.run.id)
        if not recorded:  # such as a run that was copied without its files
            raise _nothing_whole(files)
        mark = batches.hold_trainer(tx, files.run.id, files.worker_id)
        wanted = allowed.from_version
        is_adopted = wanted is not None and setbacks.adopted(tx, files.run.id, wanted)
    setback = lost_versions.find_setback(files, mark, lost, weights)
    if wanted is not None and not is_adopted:
        return lost_versions.adopt(files, wanted, setback, mark)
    found, damaged = _newest_whole(files, [policy for policy in recorded if policy.is_start], allowed)
    if found.version == 0 and (damaged or lost) and not allowed.from_start:
        raise TrinityError(lost_versions.refusal_to_start_over(files, damaged, setback))
    policy = _copy_if_foreign(files, found)
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
    """Delete the files of withdrawn versions that no trainer can go on from, and that no other run names."""
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
    setback: setbacks.Setback | None,
) -> set[str]:
    """Make a version the newest one: reopen later batches, withdraw damaged versions, record a setback.

    Returns the names of folders that other runs name. They are not set aside.
    """
    with files.database.transaction() as tx:
        reopened = batches.reopen(tx, files.run.id, files.worker_id, policy.version)
        policies.relocate(tx, files.run.id, policy)
        if setback:
            setbacks.record(tx, files.run.id, files.worker_id, setback, policy.version)
        # Within the transaction. After its commit no version names these folders, and a trainer that starts
        # after a crash would delete them as leftovers.
        shared = files.shared(tx)
        for broken in damaged:
            for place in broken.folders:
                if place.name not in shared:
                    files.folder.set_aside(broken.version, place)
    if setback:
        logger.warning(
            "the server has lost %s: going on from version %d, step %d%s",
            *(setback, policy.version, policy.step, lost_versions.offer(files, setback)),
        )
    if reopened:
        logger.warning("version %d does not include %d batches: reopened", policy.version, reopened)
    return shared


def _newest_whole(
    files: RunFiles, recorded: Sequence[policies.PolicyVersion], allowed: Allowed
) -> tuple[policies.PolicyVersion, list[policies.PolicyVersion]]:
    """Return the newest version whose files are whole, with its folders, and the later, damaged versions."""
    damaged: list[policies.PolicyVersion] = []
    for policy in recorded:
        found = files.locate_all(policy)
        if isinstance(found, policies.PolicyVersion):
            return found, damaged
        why = f"its checkpoint at {found} is damaged or missing"
        try:
            if (here := fetched.fetch_all(files, policy)) is not None:
                return here, damaged
        except Broken as error:
            why += f", and cannot be fetched: {error}"
        if policy.version > 0 and not allowed.from_start and not is_elsewhere(recorded):
            check_is_there(found.parent)
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
    places = policy.folders
    if policy.version == 0 or all(is_owned_by(place.parent, files.folder.owner) for place in places):
        return policy
    copied = files.copied(policy)
    logger.info("version %d: copied from %s to %s", policy.version, policy.checkpoint, copied.checkpoint)
    return copied
