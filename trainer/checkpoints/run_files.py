"""The folders of a run's checkpoints: claimed for the run, cleared of leftovers, searched for whole files."""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trinity_db.database import Database, Transaction
from trinity_db.errors import TrinityError
from trinity_db.models import folder_digest
from trinity_db.models.adapter_folder import is_adapter
from trinity_db.store import instances, policies, runs, workers
from trinity_db.trainer.checkpoints import writing
from trinity_db.trainer.checkpoints.folder import Folder, claim
from trinity_db.trainer.checkpoints.patience import Patience
from trinity_db.trainer.checkpoints.uploads import Uploads
from trinity_db.weights.broadcast import Broadcasts

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
    uploads: Uploads | None = None
    """The run's objects; None: versions and checkpoints are in the folder alone."""
    patience: Patience = field(default_factory=lambda: Patience(lambda: False))
    """With the object store, for objects that it fetches."""
    broadcasts: Broadcasts | None = None
    """What sends new versions to explorers; None: they use the files."""

    def locate(self, policy: policies.PolicyVersion) -> Path | None:
        """Return the folder that holds a version's weights whole, or None.

        It is the recorded one, or a folder of the same name in this run's folders if the store was moved.
        """
        return self._whole(policy.checkpoint, policy.checkpoint_hash, folder_digest.verify)

    def locate_checkpoint(self, policy: policies.PolicyVersion) -> Path | None:
        """Return the folder that holds a version's checkpoint whole, found as by `locate`, or None."""
        resumed = policy.resumed
        if resumed is None:
            return None
        return self._whole(resumed.folder, resumed.hash, folder_digest.verify_checkpoint)

    def locate_all(self, policy: policies.PolicyVersion) -> policies.PolicyVersion | Path:
        """Return a version with the folders that hold its weights and its checkpoint whole.

        If one is damaged or missing, return the recorded folder of that.
        """
        weights = self.locate(policy)
        if weights is None:
            return policy.checkpoint
        resumed = policy.resumed
        if resumed is None:
            return replace(policy, checkpoint=weights)
        if (resumed.folder, resumed.hash) == (policy.checkpoint, policy.checkpoint_hash):  # one for both
            return replace(policy, checkpoint=weights, resumed=replace(resumed, folder=weights))
        place = self.locate_checkpoint(policy)
        if place is None:
            return resumed.folder
        return replace(policy, checkpoint=weights, resumed=replace(resumed, folder=place))

    def copied(self, policy: policies.PolicyVersion) -> policies.PolicyVersion:
        """Copy a version and its checkpoint into the run's own folder. Return it with its new folders."""
        weights, resumed = self.folder.version_folder(policy.version), policy.resumed
        writing.copy(
            policy.checkpoint, lambda copy: folder_digest.verify(copy, policy.checkpoint_hash), weights
        )
        if resumed is not None and resumed.folder == policy.checkpoint:
            resumed = replace(resumed, folder=weights)
        elif resumed is not None:
            place, digest = self.folder.checkpoint_folder(policy.version), resumed.hash
            writing.copy(resumed.folder, lambda copy: folder_digest.verify_checkpoint(copy, digest), place)
            resumed = replace(resumed, folder=place)
        return replace(policy, checkpoint=weights, resumed=resumed)

    def shared(self, tx: Transaction) -> set[str]:
        """The names of folders in the run's own one that other runs name: they started from those weights.

        A run that is starting holds the version's row. So call this after the transaction's change to that.
        """
        return self.folder.names_among(policies.folders_of_others(tx, self.run.id))

    def _whole(self, recorded: Path, expected: str, verify: Callable[[Path, str], bool]) -> Path | None:
        moved = (parent / recorded.name for parent in (self.folder.path, self.default))
        places = dict.fromkeys([recorded, *moved])
        return next((place for place in places if verify(place, expected)), None)


def own_folder(
    database: Database,
    run: runs.Run,
    worker_id: int,
    default: Path,
    weights: str | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> RunFiles:
    """Find or create the run's own folder of checkpoints. No other run and no other store writes to it.

    Args:
        weights: the object store that versions and checkpoints are uploaded to; None: to none.
        should_stop: whether to give up the object store.

    Raises:
        ConfigError: the default folder and the one beside it have other owners. Nothing is changed then.
        TrinityError: the folder cannot be written, or it is missing although versions lie in it; or as
            `Uploads`.
    """
    with database.transaction() as tx:
        instance = instances.identify(tx)
        published = policies.with_checkpoint(tx, run.id)
    if any(policy.checkpoint.parent == default for policy in published) and not is_elsewhere(published):
        check_is_there(default)
    identity = {"store": str(instance.id)} | run.identity
    folder = claim(default, identity)
    patience = Patience(should_stop)
    uploads = None if weights is None else Uploads(weights, identity, run.name, patience)
    return RunFiles(database, run, worker_id, default, folder, uploads, patience)


def clear_leftovers(files: RunFiles) -> list[int]:
    """Remove from the run's own folder what crashes left. What a version names stays.

    Files of versions that the server has lost are set aside. Returns the numbers of these versions.

    Raises:
        LeaseLost: another trainer has this one's place. Files that no version names may be that trainer's.
    """
    with files.database.transaction() as tx:
        workers.hold_place(tx, files.worker_id)
        newest = policies.latest_version(tx, files.run.id)
        kept = policies.with_checkpoint(tx, files.run.id)
        shared = files.shared(tx)
    published = {place.name for policy in kept for place in policy.folders} | shared
    lost = files.folder.set_lost_aside(-1 if newest is None else newest)
    files.folder.clear_leftovers(published)
    return lost


def upload_missing(files: RunFiles, newest: policies.PolicyVersion) -> None:
    """Upload version 0 and the version that the trainer goes on from, unless they are in the object store.

    Then delete the objects of versions that are not kept, whole or not, as crashes leave them.

    Raises:
        LeaseLost: another trainer has this one's place.
        TrinityError: as `Uploads.upload`.
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
    """Upload versions again whose objects explorers found missing or damaged.

    Raises:
        LeaseLost, TrinityError: as `upload_missing`.
    """
    if files.uploads is None:
        return
    with files.database.transaction() as tx:
        broken = policies.broken_weights(tx, files.run.id)
        first = policies.with_checkpoint(tx, files.run.id)[-1] if broken else None
    for policy in broken:
        logger.warning(
            "version %d: its objects are missing or damaged, and are uploaded again", policy.version
        )
        if is_adapter(policy.checkpoint) and first is not None and first.version == 0:
            files.uploads.versions.begin(_upload(files, first).weights or "")
        _upload(files, policy)


def sweep(files: RunFiles) -> None:
    """Delete the objects of what is not kept. If the object store is away, a later call does it.

    Raises:
        LeaseLost: another trainer has this one's place.
    """
    if files.uploads is None or files.patience.is_over:
        return
    with files.database.transaction() as tx:
        workers.hold_place(tx, files.worker_id)
        kept = policies.with_checkpoint(tx, files.run.id)
    files.uploads.versions.sweep([policy.weights for policy in kept if policy.weights])
    files.uploads.checkpoints.sweep(addresses(kept))


def addresses(kept: Sequence[policies.PolicyVersion]) -> list[str]:
    """Where the checkpoints of versions are in an object store."""
    return [policy.resumed.address for policy in kept if policy.resumed and policy.resumed.address]


def is_elsewhere(recorded: Sequence[policies.PolicyVersion]) -> bool:
    """Whether a trainer may go on without the folder: there is a checkpoint in an object store."""
    return bool(addresses(recorded))


def _upload(files: RunFiles, policy: policies.PolicyVersion) -> policies.PolicyVersion:
    """Upload a version that is on record, and record where it is; not if its files are damaged."""
    assert files.uploads is not None, "only a run with an object store uploads"
    place = files.locate(policy)
    if place is None:
        logger.warning(
            "version %d: %s is damaged or missing: not uploaded", policy.version, policy.checkpoint
        )
        return policy
    address = files.uploads.versions.upload(policy.version, place, policy.checkpoint_hash, whole=True)
    uploaded = replace(policy, weights=address)
    with files.database.transaction() as tx:
        workers.hold_place(tx, files.worker_id)
        policies.record_weights(tx, files.run.id, uploaded)
    return uploaded


def check_is_there(checkpoints: Path) -> None:
    """Raise an error if the folder is missing: probably a disk is not mounted."""
    if not os.path.isdir(checkpoints):  # Path.is_dir raises where the path may not be looked at
        raise TrinityError(
            f"The folder of checkpoints {checkpoints} is missing: mount or restore it. "
            "To train again without them, create it and use --from-start."
        )
