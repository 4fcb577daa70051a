"""The folders of a run's checkpoints: claimed for the run, cleared of leftovers, searched for whole files."""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trinity_db.database import Database, Transaction
from trinity_db.errors import TrinityError
from trinity_db.models import folder_digest
from trinity_db.store import instances, policies, runs, workers
from trinity_db.trainer.checkpoints import writing
from trinity_db.trainer.checkpoints.folder import Folder, claim
from trinity_db.trainer.checkpoints.patience import Patience
from trinity_db.trainer.checkpoints.uploads import Uploads

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


def addresses(kept: Sequence[policies.PolicyVersion]) -> list[str]:
    """Where the checkpoints of versions are in an object store."""
    return [policy.resumed.address for policy in kept if policy.resumed and policy.resumed.address]


def is_elsewhere(recorded: Sequence[policies.PolicyVersion]) -> bool:
    """Whether a trainer may go on without the folder: there is a checkpoint in an object store."""
    return bool(addresses(recorded))


def check_is_there(checkpoints: Path) -> None:
    """Raise an error if the folder is missing: probably a disk is not mounted."""
    if not os.path.isdir(checkpoints):  # Path.is_dir raises where the path may not be looked at
        raise TrinityError(
            f"The folder of checkpoints {checkpoints} is missing: mount or restore it. "
            "To train again without them, create it and use --from-start."
        )
