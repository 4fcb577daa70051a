"""Finds what a trainer starts from: the run's starting model, or the latest checkpoint whose files are whole.

Weights and rows must agree at a start. So `recover` reopens every batch that the chosen checkpoint does not
include, and records what a server has lost (docs/how-it-works/checkpoints.md).
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trinity_db.config import ModelConfig
from trinity_db.database import Database, Transaction
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.models import build_scratch, check_source, folder_digest
from trinity_db.store import batches, instances, policies, runs, setbacks, workers
from trinity_db.trainer.checkpoints import checkpoint
from trinity_db.trainer.checkpoints.folder import Folder, Publication, claim, is_owned_by

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunFiles:
    """A run, the trainer's worker row, and the folders of the run's checkpoints."""

    database: Database
    run: runs.Run
    worker_id: int
    default: Path
    """The folder of checkpoints that the configuration names."""
    folder: Folder
    """The run's own folder: the default one, or one beside it."""

    def locate(self, policy: policies.PolicyVersion) -> Path | None:
        """Return the folder that holds a version's files whole, or None.

        It is the recorded one, or a folder of the same name in this run's folders if the store was moved.
        """
        moved = (parent / policy.checkpoint.name for parent in (self.folder.path, self.default))
        places = dict.fromkeys([policy.checkpoint, *moved])
        return next((place for place in places if folder_digest.verify(place, policy.checkpoint_hash)), None)


def own_folder(database: Database, run: runs.Run, worker_id: int, default: Path) -> RunFiles:
    """Find or create the run's own folder of checkpoints. No other run and no other store writes to it.

    Raises:
        ConfigError: the default folder and the one beside it have other owners. Nothing is changed then.
        TrinityError: the folder cannot be written, or it is missing although versions lie in it.
    """
    with database.transaction() as tx:
        instance = instances.identify(tx)
        published = policies.with_checkpoint(tx, run.id)
    if any(policy.checkpoint.parent == default for policy in published):
        _check_is_there(default)
    folder = claim(default, {"store": str(instance.id)} | run.identity)
    return RunFiles(database, run, worker_id, default, folder)


def clear_leftovers(files: RunFiles) -> list[int]:
    """Remove from the run's own folder what crashes left. Checkpoints that a version names stay.

    Checkpoints of versions that the server has lost are set aside. Returns the numbers of these versions.

    Raises:
        LeaseLost: another trainer has this one's place. Files that no version names may be that trainer's.
    """
    with files.database.transaction() as tx:
        workers.hold_place(tx, files.worker_id)
        newest = policies.latest_version(tx, files.run.id)
        published = {policy.checkpoint.name for policy in policies.with_checkpoint(tx, files.run.id)}
    lost = files.folder.set_lost_aside(-1 if newest is None else newest)
    files.folder.clear_leftovers(published)
    return lost


def publish_first_version(files: RunFiles, model: ModelConfig, seed: int) -> None:
    """Record the starting model as policy version 0, unless the run has versions.

    Raises:
        ConfigError: there is no such model.
        TrinityError: the model cannot be written, or it is another run's checkpoint and was pruned meanwhile.
            Nothing is published then.
        LeaseLost: another trainer has this one's place.
    """
    with files.database.transaction() as tx:
        if policies.latest_version(tx, files.run.id) is not None:
            return
        source = _starting_model(tx, model)
    if source is None:
        scratch = model.scratch
        assert scratch is not None
        folder = files.folder.version_folder(0)
        digest = checkpoint.write_folder(folder, lambda aside: build_scratch(scratch, seed, aside))
    else:
        folder, recorded = source
        digest = _digest(folder, recorded, model)
    with files.database.transaction() as tx:
        workers.hold_place(tx, files.worker_id)
        if model.run is not None:
            other = runs.find(tx, model.run)
            if not policies.hold_checkpoint(tx, other.id, folder):
                raise _pruned(model.run)
        policies.publish(tx, files.run.id, policies.PolicyVersion(0, 0, folder, digest))


@dataclass(frozen=True)
class Weights:
    """The steps that a learner's weights contain. The server had acknowledged all of them."""

    steps: int
    """The number of the last step."""
    rows: Mapping[int, int]
    """The number of rows of each step that this process has made, by step."""


@dataclass(frozen=True)
class Allowed:
    """What the person who starts the trainer allows it to do this once."""

    from_start: bool = False
    """Continue from the starting model if the run has checkpoints but none that the store knows is whole."""
    from_version: int | None = None
    """Continue from the checkpoint of this version, which the server has lost."""


def recover(
    files: RunFiles, allowed: Allowed, lost: Sequence[int] = (), weights: Weights | None = None
) -> policies.PolicyVersion:
    """Choose the latest version whose checkpoint is whole, and reopen every batch that it does not include.

    Later versions, whose files are damaged or missing, are withdrawn, with a warning. A checkpoint in another
    owner's folder is copied into the run's own folder, because the other owner may delete it. A loss on the
    server's side is recorded.

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
    setback = _setback(files, mark, lost, weights)
    if wanted is not None and not is_adopted:
        return _adopt(files, wanted, setback, mark)
    policy, place, damaged = _newest_whole(files, recorded, allowed)
    if policy.version == 0 and (damaged or lost) and not allowed.from_start:
        raise TrinityError(_refusal_to_start_over(files, damaged, setback))
    policy = replace(policy, checkpoint=_copy_if_foreign(files, policy, place))
    _go_on_from(files, policy, damaged, setback)
    return policy


def _go_on_from(
    files: RunFiles,
    policy: policies.PolicyVersion,
    damaged: Sequence[policies.PolicyVersion],
    setback: setbacks.Setback | None,
) -> None:
    """Make a version the newest one: reopen later batches, withdraw damaged versions, record a setback."""
    with files.database.transaction() as tx:
        reopened = batches.reopen(tx, files.run.id, files.worker_id, policy.version)
        policies.relocate(tx, files.run.id, policy)
        if setback:
            setbacks.record(tx, files.run.id, files.worker_id, setback, policy.version)
        # Within the transaction. After its commit no version names these folders, and a trainer that starts
        # after a crash would delete them as leftovers.
        for broken in damaged:
            files.folder.set_aside(broken.version, broken.checkpoint)
    if setback:
        logger.warning(
            "the server has lost %s: going on from version %d, step %d%s",
            *(setback, policy.version, policy.step, _offer(files, setback)),
        )
    if reopened:
        logger.warning("version %d does not include %d batches: reopened", policy.version, reopened)


def _newest_whole(
    files: RunFiles, recorded: Sequence[policies.PolicyVersion], allowed: Allowed
) -> tuple[policies.PolicyVersion, Path, list[policies.PolicyVersion]]:
    """Return the newest version whose files are whole, its folder, and the later, damaged versions."""
    damaged: list[policies.PolicyVersion] = []
    for policy in recorded:
        place = files.locate(policy)
        if place is not None:
            return policy, place, damaged
        if policy.version > 0 and not allowed.from_start:
            _check_is_there(policy.checkpoint.parent)
        logger.warning(
            "version %d: its checkpoint at %s is damaged or missing", policy.version, policy.checkpoint
        )
        damaged.append(policy)
    raise _nothing_whole(files)


def _nothing_whole(files: RunFiles) -> ConfigError:
    return ConfigError(
        f"Run '{files.run.name}': no checkpoint is whole, and its starting model has changed or is gone; "
        "restore one of them."
    )


def _setback(
    files: RunFiles, mark: batches.Mark, lost: Sequence[int], weights: Weights | None
) -> setbacks.Setback | None:
    """The setback that the notes in the folder and the learner's weights show, or None."""
    steps = [known.step for known in files.folder.publications() if known.version in lost]
    last_step = max([mark.step, *steps, weights.steps if weights else 0])
    if not lost and last_step == mark.step:
        return None
    num_rows = None
    if weights:
        num_rows = sum(rows for step, rows in weights.rows.items() if mark.step < step <= weights.steps)
    first, last = (lost[0], lost[-1]) if lost else (None, None)
    return setbacks.Setback(mark.version, mark.step, last_step, num_rows, first, last)


def _adopt(
    files: RunFiles, lost_version: int, setback: setbacks.Setback | None, mark: batches.Mark
) -> policies.PolicyVersion:
    """Continue from a checkpoint that the server has lost, and record it as a new version.

    The store still does not know the batches of its steps.
    """
    found = files.folder.lost_checkpoint(lost_version)
    with files.database.transaction() as tx:
        base = setbacks.base_of(tx, files.run.id, lost_version)
        newest = policies.latest_version(tx, files.run.id)
    if found is None or (base is None and setback is None):
        raise ConfigError(
            f"--from-version {lost_version}: {files.folder.path} has no whole checkpoint of a lost version "
            "of that number; leave the option out, or name another."
        )
    known, place = found
    lost = setback.last_version if setback else None
    version = max(newest or 0, lost or 0) + 1
    target = files.folder.version_folder(version)
    checkpoint.copy(place, known.hash, target)
    policy = policies.PolicyVersion(version, known.step, target, known.hash)
    with files.database.transaction() as tx:
        # The weights contain no step that was made after the loss. So all batches since then are reopened.
        reopened = batches.reopen(tx, files.run.id, files.worker_id, mark.version if base is None else base)
        if setback:
            setbacks.record(tx, files.run.id, files.worker_id, setback, version)
        setbacks.adopt(tx, files.run.id, lost_version, policy)
        runs.announce(tx, files.run.id)
    files.folder.acknowledge(Publication(version, known.step, known.hash))
    logger.warning(
        "going on from the lost version %d as version %d, step %d; rows of steps that the server has lost "
        "count as not trained and are drawn again, and so are those of %d batches that were reopened",
        *(lost_version, version, known.step, reopened),
    )
    return policy


def _offer(files: RunFiles, setback: setbacks.Setback) -> str:
    """The end of a message: how to continue from the newest checkpoint that the server has lost."""
    kept = _newest_kept(files, setback)
    if kept is None:
        return ""
    return (
        f"; checkpoints that it lost are kept as *.later in {files.folder.path}; to go on from the newest "
        f"instead, start once with --from-version {kept}"
    )


def _newest_kept(files: RunFiles, setback: setbacks.Setback) -> int | None:
    """The newest lost version whose checkpoint is kept as *.later."""
    versions = range(setback.last_version or -1, (setback.first_version or 0) - 1, -1)
    return next((version for version in versions if files.folder.lost_checkpoint(version)), None)


def _refusal_to_start_over(
    files: RunFiles, damaged: Sequence[policies.PolicyVersion], setback: setbacks.Setback | None
) -> str:
    """Why the trainer does not start again from the starting model without being told to, and what to do."""
    what = f"none of its checkpoints is whole ({_versions(damaged)})" if damaged else ""
    forgot = f"the server has lost {setback}" if setback else ""
    kept = _newest_kept(files, setback) if setback else None
    remedies = ["restore one of them"] if damaged else []
    remedies += [f"go on from one that the server has lost with --from-version {kept}"] if kept else []
    remedies.append("train again from the starting model with --from-start")
    reasons = " and ".join(reason for reason in (what, forgot) if reason)
    return f"Run '{files.run.name}': {reasons}; {', or '.join(remedies)}."


def first_digest(database: Database, run: runs.Run) -> str:
    """The digest of the starting model's files, as recorded when the run began."""
    with database.transaction() as tx:
        return policies.with_checkpoint(tx, run.id)[-1].checkpoint_hash


def first_model(files: RunFiles) -> Path:
    """The folder of the run's starting model. The policy is compared with it, or is an adapter on it.

    Raises:
        ConfigError: the files have changed or are gone.
    """
    with files.database.transaction() as tx:
        oldest = policies.with_checkpoint(tx, files.run.id)[-1]
    place = files.locate(oldest) if oldest.version == 0 else None
    if place is None:
        raise ConfigError(
            f"Run '{files.run.name}': its starting model has changed or is gone, and the policy is compared "
            "with it, or is an adapter on it; restore it."
        )
    return place


def _copy_if_foreign(files: RunFiles, policy: policies.PolicyVersion, place: Path) -> Path:
    """Copy a checkpoint from another owner's folder, because that owner may delete it. Return its folder."""
    if policy.version == 0 or is_owned_by(place.parent, files.folder.owner):
        return place
    target = files.folder.version_folder(policy.version)
    checkpoint.copy(place, policy.checkpoint_hash, target)
    logger.info("version %d: copied from %s to %s", policy.version, place, target)
    return target


def _check_is_there(checkpoints: Path) -> None:
    """Raise an error if the folder is missing: probably a disk is not mounted."""
    if not os.path.isdir(checkpoints):  # Path.is_dir raises where the path may not be looked at
        raise TrinityError(
            f"The folder of checkpoints {checkpoints} is missing: mount or restore it. "
            "To train again without them, create it and use --from-start."
        )


def _versions(damaged: Sequence[policies.PolicyVersion]) -> str:
    newest, oldest = damaged[0].version, damaged[-1].version
    return f"version {newest}" if newest == oldest else f"versions {oldest} to {newest}"


def _starting_model(tx: Transaction, model: ModelConfig) -> tuple[Path, str | None] | None:
    """The starting model's folder, with the digest if another run recorded it; None for a scratch model."""
    if model.path is not None:
        check_source(model)
        return model.path.expanduser().absolute(), None
    if model.run is not None:
        other = runs.find(tx, model.run)
        policy = policies.newest(tx, other.id)
        if policy is None:
            raise ConfigError(f"model.run: run '{model.run}' has no checkpoint yet; train it first.")
        return policy.checkpoint, policy.checkpoint_hash
    return None


def _digest(folder: Path, expected: str | None, model: ModelConfig) -> str:
    """Compute the digest of the starting model's files. It must equal the one that another run recorded."""
    try:
        found = folder_digest.digest(folder)
    except FileNotFoundError as error:
        if model.run is None:
            raise
        raise _pruned(model.run) from error
    if expected not in (None, found):
        raise TrinityError(
            f"model.run: the checkpoint of '{model.run}' at {folder} is damaged, or is being deleted because "
            "a newer version replaced it; start again."
        )
    return found


def _pruned(run_name: str) -> TrinityError:
    return TrinityError(
        f"model.run: the checkpoint of '{run_name}' was replaced by a newer version meanwhile; start again."
    )
